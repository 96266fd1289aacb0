"""Settings of engines, and where their weights are."""

from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import Unreachable, UsageError
from p2pcache.loader.integrations.weights import EngineSettings, find_weights

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("page", ["vllm", "sglang"])
def test_the_pages_name_the_limit_that_holds(page: str) -> None:
    lines = (ROOT / "docs" / "engines" / f"{page}.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("|") and "memory_limit" in line.lower()]
    assert EngineSettings().memory_limit == row.split("|")[2].strip(' `"')


@pytest.mark.parametrize(
    "told",
    [{"rev": "x"}, {"ref": 3}, {"ref": "../x"}, {"memory_limit": 1.5}, {"memory_limit": "lots"},
     {"timeout_s": -1}, {"timeout_s": True}, {"agent": None}],
)  # fmt: skip
def test_wrong_settings_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        EngineSettings.parse(told, "here")


def test_weights_come_from_the_directory_if_it_has_safetensors(tmp_path: Path) -> None:
    # The engine itself loads a model by its name in a hub.
    assert find_weights("org/model", EngineSettings("a/b:c")) is None
    assert find_weights(str(tmp_path), EngineSettings()) is None  # no weights, no ref
    (tmp_path / "model.safetensors").touch()
    assert find_weights(str(tmp_path), EngineSettings("a/b:c")) == tmp_path


def test_an_adapter_is_not_filled_with_the_models_weights(tmp_path: Path) -> None:
    """Engines ask the same loader for LoRA adapters and drafts; these may be .bin files."""
    settings = EngineSettings("a/b:c", agent=f"unix://{tmp_path}/nobody.sock")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert find_weights(str(tmp_path), settings) is None
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    assert find_weights(str(tmp_path), settings) is None
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(Unreachable):  # now it is a model without weights: the ref is asked
        find_weights(str(tmp_path), settings)
