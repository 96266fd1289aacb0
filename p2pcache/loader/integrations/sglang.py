"""SGLang's plugin: entry point group `sglang.srt.plugins`, switched on by P2PCACHE_SGLANG=1.

SGLang's load formats are a closed list, but its plugins may wrap any function. This one wraps
`DefaultModelLoader._get_weights_iterator`, and calls it where weights can't come from p2pcache.
"""

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.integrations.gather import Groups
from p2pcache.loader.integrations.weights import (
    HOST,
    EngineSettings,
    find_weights,
    place_for,
    stream_weights,
)

log = logging.getLogger(__name__)

TARGET = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
SWITCH = "P2PCACHE_SGLANG"
_FORMATS = ("auto", "safetensors")


@functools.cache
def register() -> None:
    """Register the plugin; SGLang calls this in each of its processes. Nothing without P2PCACHE_SGLANG=1.

    Raises:
        UsageError: a setting is wrong. SGLang logs it and goes on without the plugin.
    """
    switch = os.environ.get(SWITCH, "")
    if switch in ("", "0"):
        return
    if switch != "1":
        raise UsageError(f"{SWITCH}={switch}: expected 1 or 0")
    settings = from_environment(os.environ)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, functools.partial(around, settings), HookType.AROUND)


def from_environment(environ: Mapping[str, str]) -> EngineSettings:
    """The settings in P2PCACHE_SGLANG_REF, _MEMORY_LIMIT, _TIMEOUT_S and _DEVICE. P2PCACHE_AGENT has the agent.

    Raises:
        UsageError: a value is wrong.
    """
    given: dict[str, Any] = {}
    for key in ("ref", "memory_limit", "timeout_s", "device"):
        value = environ.get(f"{SWITCH}_{key.upper()}", "")
        if value:
            given[key] = value
    if "timeout_s" in given:
        try:
            given["timeout_s"] = float(given["timeout_s"])
        except ValueError:
            raise UsageError(f"{SWITCH}_TIMEOUT_S={given['timeout_s']}: not a number") from None
    return EngineSettings.parse(given, f"{SWITCH}_*")


def around(
    settings: EngineSettings,
    original: Callable[..., Iterable[tuple[str, Any]]],
    loader: Any,
    source: Any,
    **others: Any,
) -> Iterable[tuple[str, Any]]:
    """The weights of a model, by SGLang's own iterator if it is complete, else as that yields them.

    Args:
        settings: the operator's.
        original: SGLang's own iterator.
        loader: its `DefaultModelLoader`.
        source: its `Source`.
        others: the original's further arguments.

    Raises:
        UsageError: the weights can't be streamed.
        P2PCacheError: as `iter_tensors`.
    """
    where, place = find_weights(source.model_or_path, settings), HOST
    reason = _unsupported(loader, source)
    if where is not None and not reason:
        place = place_for(where, settings, _tensor_parallel)
    if where is None or (not isinstance(where, str) and place == HOST):
        if where is not None:
            log.info("%s is complete: SGLang reads it itself", where)
            source = dataclasses.replace(source, model_or_path=str(where))
        return original(loader, source, **others)
    if reason:
        raise UsageError(
            f"{where}: can't be streamed ({reason}); pull the whole model and serve its directory"
        )
    # Not logged in `register`, since SGLang sets up its logging after it.
    log.info("weights come by p2pcache from %s", where)
    draft = loader.load_config.draft_model_idx
    if draft is not None:
        found: Iterable[tuple[str, Any]] = loader._filter_mtp_weights(  # noqa: SLF001
            stream_weights(where, settings, place=place), source.prefix, draft
        )
        return found
    if loader.counter_before_loading_weights == 0.0:
        loader.counter_before_loading_weights = time.perf_counter()
    return stream_weights(where, settings, prefix=source.prefix, place=place)


def _tensor_parallel() -> Groups:
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    return Groups(group.device_group, group.cpu_group)


def _unsupported(loader: Any, source: Any) -> str:
    """Why SGLang itself must choose or read the files of this source; "": it need not."""
    load_format = loader.load_config.load_format
    if getattr(load_format, "value", load_format) not in _FORMATS:
        return f"--load-format {getattr(load_format, 'value', load_format)}"
    if source.allow_patterns_overrides is not None:
        return f"its weights are the files {', '.join(source.allow_patterns_overrides)}"
    return ""
