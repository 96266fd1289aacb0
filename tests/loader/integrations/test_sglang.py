"""SGLang's plugin without SGLang."""

import pytest

from p2pcache.errors import UsageError
from p2pcache.loader.integrations import sglang
from p2pcache.loader.integrations.weights import EngineSettings


def test_sglangs_plugin_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ("", "0"):
        monkeypatch.setenv(sglang.SWITCH, told)
        sglang.register()  # SGLang isn't here, and isn't asked for
        sglang.register.cache_clear()
    monkeypatch.setenv(sglang.SWITCH, "yes")
    with pytest.raises(UsageError, match="P2PCACHE_SGLANG=yes"):
        sglang.register()


def test_sglang_settings() -> None:
    told = {"P2PCACHE_SGLANG_REF": "a/b:c", "P2PCACHE_SGLANG_MEMORY_LIMIT": "2GiB",
            "P2PCACHE_SGLANG_TIMEOUT_S": "90", "P2PCACHE_SGLANG_DEVICE": "cuda"}  # fmt: skip
    assert sglang.from_environment(told) == EngineSettings("a/b:c", None, "2GiB", 90.0, "cuda")
    with pytest.raises(UsageError, match="not a number"):
        sglang.from_environment({"P2PCACHE_SGLANG_TIMEOUT_S": "soon"})
