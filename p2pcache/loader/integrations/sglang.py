"""SGLang's weights, by the entry point group `sglang.srt.plugins` and P2PCACHE_SGLANG=1.

SGLang's load formats are a closed list, but its plugins may wrap any function: ours stands around
`DefaultModelLoader._get_weights_iterator`, and lets it do whatever isn't ours.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.integrations.weights import EngineSettings, find_weights, stream_weights

log = logging.getLogger(__name__)

TARGET = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
SWITCH = "P2PCACHE_SGLANG"
_FORMATS = ("auto", "safetensors")
_MTP = "mtp.safetensors"  # SGLang reads it for some models though no index names it


@functools.cache
def register() -> None:
    """Called in each process of SGLang. Does nothing without P2PCACHE_SGLANG=1.

    Raises:
        UsageError: settings that can't be; SGLang logs it and goes on without us.
    """
    told = os.environ.get(SWITCH, "")
    if told in ("", "0"):
        return
    if told != "1":
        raise UsageError(f"{SWITCH}={told}: expected 1 or 0")
    settings = from_environment(os.environ)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, functools.partial(around, settings), HookType.AROUND)


def from_environment(environ: Mapping[str, str]) -> EngineSettings:
    """P2PCACHE_SGLANG_REF, _MEMORY_LIMIT and _TIMEOUT_S; the agent is P2PCACHE_AGENT, as elsewhere.

    Raises:
        UsageError: a value that can't be.
    """
    told: dict[str, Any] = {}
    for key in ("ref", "memory_limit", "timeout_s"):
        value = environ.get(f"{SWITCH}_{key.upper()}", "")
        if value:
            told[key] = value
    if "timeout_s" in told:
        try:
            told["timeout_s"] = float(told["timeout_s"])
        except ValueError:
            raise UsageError(f"{SWITCH}_TIMEOUT_S={told['timeout_s']}: not a number") from None
    return EngineSettings.parse(told, f"{SWITCH}_*")


def around(
    settings: EngineSettings,
    original: Callable[..., Iterable[tuple[str, Any]]],
    loader: Any,
    source: Any,
    **others: Any,
) -> Iterable[tuple[str, Any]]:
    """What SGLang calls in place of its own iterator.

    Args:
        settings: the operator's.
        original: SGLang's own, for what isn't ours.
        loader: its `DefaultModelLoader`.
        source: its `Source`.
        others: the original's further arguments.

    Raises:
        UsageError: the weights can't be streamed.
        P2PCacheError: as `iter_tensors`.
    """
    where = find_weights(source.model_or_path, settings)
    odd = _unusual(loader, source, where)
    if where is None or (odd and isinstance(where, Path)):
        return original(loader, source, **others)
    if odd:
        raise UsageError(
            f"{where}: can't be streamed ({odd}); pull the whole model and serve its directory"
        )
    # Here, not when we register: SGLang sets up its logging between the two.
    log.info("weights come by p2pcache from %s", where)
    if isinstance(where, Path) and others.get("resolved_source") is None:
        loader._prepare_weights(  # noqa: SLF001  # it also compares with --model-checksum
            source.model_or_path, source.revision, source.fall_back_to_pt
        )
    draft = loader.load_config.draft_model_idx
    if draft is not None:
        found: Iterable[tuple[str, Any]] = loader._filter_mtp_weights(  # noqa: SLF001
            stream_weights(where, settings), source.prefix, draft
        )
        return found
    if loader.counter_before_loading_weights == 0.0:
        loader.counter_before_loading_weights = time.perf_counter()
    return stream_weights(where, settings, prefix=source.prefix)


def _unusual(loader: Any, source: Any, where: object) -> str:
    """Why this source needs SGLang's own way of choosing or reading files; "": it doesn't."""
    told = loader.load_config.load_format
    if getattr(told, "value", told) not in _FORMATS:
        return f"--load-format {getattr(told, 'value', told)}"
    if source.allow_patterns_overrides is not None:
        return f"its weights are the files {', '.join(source.allow_patterns_overrides)}"
    if isinstance(where, Path) and (where / _MTP).is_file():
        return f"it has {_MTP}"
    return ""
