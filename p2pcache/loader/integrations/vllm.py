"""vLLM's plugin for `--load-format p2pcache`: entry point group `vllm.general_plugins`.

The loader is vLLM's `DefaultModelLoader` with another iterator over weights that still arrive; a complete
model goes vLLM's own way. Expert filter, prefixes, unused and missing weights and quantization stay
vLLM's. The iterator's method isn't public, so a vLLM without it gets a loader on the public base class,
without these features.
"""

import dataclasses
import functools
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from p2pcache.errors import NotFound, UsageError
from p2pcache.loader.api import safe_open
from p2pcache.loader.integrations.adapters import register_resolver
from p2pcache.loader.integrations.gather import Groups
from p2pcache.loader.integrations.weights import (
    HOST,
    EngineSettings,
    borrow_handlers,
    find_weights,
    place_for,
    stream_weights,
)

log = logging.getLogger(__name__)

LOAD_FORMAT = "p2pcache"
_EXTRA = "--model-loader-extra-config"
# Of DefaultModelLoader's extra config, valid here, too.
_VLLM_KEYS = ("enable_weights_track", "enable_multithread_load", "num_threads")
_FORMAT = "load_format"  # with which vLLM reads a complete model: "auto", "fastsafetensors", ...
_OURS = ("auto", "safetensors")  # of vLLM's formats, those that read what we read
_INDEX = "model.safetensors.index.json"


@functools.cache
def register() -> None:
    """Register the load format; vLLM calls this in each process, perhaps often.

    Never raises, since it runs in each vLLM beside which p2pcache is installed.
    """
    try:
        from vllm.model_executor.model_loader import register_model_loader

        register_model_loader(LOAD_FORMAT)(make_loader())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        log.warning("no load format %r: this vLLM can't take it (%s)", LOAD_FORMAT, error)
        return
    try:
        register_resolver()
    except (ImportError, AttributeError, TypeError) as error:
        log.warning(
            "no adapters by p2pcache: this vLLM has no resolvers as we know them (%s)", error
        )
    borrow_handlers("vllm")


def make_loader() -> type[Any]:
    """The loader class that fits the installed vLLM."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    try:
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    except ImportError:
        return plain_loader(BaseModelLoader)
    if is_known_loader(DefaultModelLoader):
        return full_loader(DefaultModelLoader)
    log.warning("vLLM's DefaultModelLoader has changed; no expert filter, all weights are read")
    return plain_loader(BaseModelLoader)


def is_known_loader(default_loader: type[Any]) -> bool:
    """Whether the method to replace has the known signature."""
    method = getattr(default_loader, "_get_weights_iterator", None)
    source = getattr(default_loader, "Source", None)
    fields = set(getattr(source, "__dataclass_fields__", ()))
    return (
        method is not None
        and list(inspect.signature(method).parameters) == ["self", "source"]
        and {"model_or_path", "subfolder", "prefix", "allow_patterns_overrides"} <= fields
    )


def split_extra_config(extra: object) -> tuple[EngineSettings, dict[str, Any]]:
    """Split the extra config into our settings and vLLM's keys.

    Raises:
        UsageError: it is no object, or has an unknown key.
    """
    if not isinstance(extra, dict):
        raise UsageError(f'{_EXTRA}: expected a JSON object such as {{"ref": "team/llama:v3"}}')
    theirs = {key: extra[key] for key in (*_VLLM_KEYS, _FORMAT) if key in extra}
    if not isinstance(theirs.get(_FORMAT, ""), str) or theirs.get(_FORMAT) == LOAD_FORMAT:
        raise UsageError(f'{_EXTRA}: {_FORMAT} must be a format of vLLM\'s own, such as "auto"')
    ours = {key: value for key, value in extra.items() if key not in theirs}
    return EngineSettings.parse(ours, _EXTRA), theirs


def full_loader(base: type[Any]) -> type[Any]:
    """Derive a loader from vLLM's `DefaultModelLoader`, with another iterator over weights."""

    class P2PCacheModelLoader(base):  # type: ignore[misc]  # a class of the engine
        """Streams weights that still arrive, and leaves all others to vLLM."""

        counter_before_loading_weights: float  # seconds; vLLM logs the time since

        def __init__(self, load_config: Any) -> None:
            self._p2pcache, theirs = split_extra_config(load_config.model_loader_extra_config)
            own_format = theirs.pop(_FORMAT, "auto")
            super().__init__(
                dataclasses.replace(
                    load_config, load_format=own_format, model_loader_extra_config=theirs
                )
            )

        def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
            """See `DefaultModelLoader.load_model`. Looks first whether the ref's weights have an lm_head."""
            where = find_weights(model_config.model, self._p2pcache)
            if where not in (None, Path(model_config.model)):
                untie_embeddings(model_config, where, self._p2pcache)
            return super().load_model(
                vllm_config=vllm_config, model_config=model_config, prefix=prefix
            )

        def download_model(self, model_config: Any) -> None:
            """See `DefaultModelLoader.download_model`. Does nothing for weights that come by p2pcache."""
            where = find_weights(model_config.model, self._p2pcache)
            if where in (None, Path(model_config.model)):
                super().download_model(model_config)

        def _get_weights_iterator(self, source: Any) -> Iterable[tuple[str, Any]]:
            where, place = find_weights(source.model_or_path, self._p2pcache), HOST
            reason = _unsupported(source, self.load_config)
            if where is not None and not reason and self.load_config.load_format in _OURS:
                # Each worker has experts of its own, which no other should get.
                groups = None if getattr(self, "local_expert_ids", None) else _tensor_parallel
                place = place_for(where, self._p2pcache, groups)
            if where is None or (not isinstance(where, str) and place == HOST):
                if where is not None:
                    log.info("%s is complete: vLLM reads it itself", where)
                    source = dataclasses.replace(source, model_or_path=str(where))
                found: Iterable[tuple[str, Any]] = super()._get_weights_iterator(source)
                return found
            if reason:
                raise UsageError(
                    f"{where}: can't be streamed ({reason}); pull the whole model and serve its directory"
                )
            if self.counter_before_loading_weights == 0.0:
                self.counter_before_loading_weights = time.perf_counter()
            return stream_weights(
                where, self._p2pcache, skip=_skip(self, source), prefix=source.prefix, place=place
            )

    return P2PCacheModelLoader


def plain_loader(base: type[Any]) -> type[Any]:
    """Derive a loader from vLLM's public base class."""

    class P2PCacheModelLoader(base):  # type: ignore[misc]
        """Loads safetensors by p2pcache."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            self._p2pcache, _ = split_extra_config(load_config.model_loader_extra_config)

        def download_model(self, model_config: Any) -> None:
            """See `BaseModelLoader.download_model`. Does nothing."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Load all weights into the model.

            Raises:
                NotFound: the directory has no weights, and there is no ref.
                P2PCacheError: as `iter_tensors`.
            """
            where = find_weights(model_config.model, self._p2pcache)
            if where is None:
                raise NotFound(
                    f'{model_config.model}: no safetensors there, and no "ref" in {_EXTRA}'
                )
            model.load_weights(stream_weights(where, self._p2pcache))

    return P2PCacheModelLoader


def untie_embeddings(model_config: Any, ref: str | Path, settings: EngineSettings) -> None:
    """Switch `tie_word_embeddings` off where the weights have an lm_head of their own.

    vLLM does so by itself, but from headers in the directory, and here there are none. After the load
    it compares the two and ties them again if they are equal.

    Args:
        model_config: vLLM's; it is changed.
        ref: of the weights, or their directory.
        settings: the operator's.

    Raises:
        P2PCacheError: the ref can't be opened.
    """
    config = model_config.hf_config
    if not getattr(config, "tie_word_embeddings", False) or not hasattr(
        model_config, "word_embeddings_untied_by_checkpoint"
    ):
        return
    with safe_open(
        ref, framework="raw", agent=settings.agent, timeout_s=settings.timeout_s
    ) as found:
        if not any(name.endswith("lm_head.weight") for name in found.keys()):  # noqa: SIM118
            return
    config.tie_word_embeddings = False
    config.get_text_config().tie_word_embeddings = False
    model_config.word_embeddings_untied_by_checkpoint = True


def _tensor_parallel() -> Groups:
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    return Groups(group.device_group, group.cpu_group)


def _unsupported(source: Any, load_config: Any) -> str:
    """Why vLLM itself must choose or read the files of this source; "": it need not."""
    if source.subfolder is not None:
        return f"its weights are those of the folder {source.subfolder}"
    if source.allow_patterns_overrides is not None:
        return f"its weights are the files {', '.join(source.allow_patterns_overrides)}"
    if load_config.safetensors_load_strategy == "torchao":
        return "torchao puts its tensors together from several"
    return ""


def _skip(loader: Any, source: Any) -> Callable[[str], bool] | None:
    """Which weights vLLM's own filters leave out; None: none."""
    filters: list[Callable[[str], bool]] = []
    unused = getattr(source, "is_unused_weight", None)
    if callable(unused):
        filters.append(unused)
    experts = getattr(loader, "local_expert_ids", None)
    if experts is not None:
        from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

        filters.append(lambda name: bool(should_skip_weight(name, experts)))
    if getattr(loader, "_encoder_only_lm_prefixes", None) is not None:
        filters.append(_language_weights(loader, Path(source.model_or_path)).__contains__)
    return (lambda name: any(each(name) for each in filters)) if filters else None


def _language_weights(loader: Any, folder: Path) -> set[str]:
    """Weights in shards that vLLM drops under --mm-encoder-only, by its own choice from the index.

    Raises:
        UsageError: it drops all.
    """
    from vllm.model_executor.model_loader import weight_utils

    if not (folder / _INDEX).is_file():
        return set()
    weight_map = json.loads((folder / _INDEX).read_text())["weight_map"]
    files = sorted({str(folder / name) for name in weight_map.values()})
    kept = set(
        weight_utils.filter_mm_encoder_only_safetensors_files(
            files, str(folder), _INDEX, loader._encoder_only_lm_prefixes,  # noqa: SLF001
            weights_mapper=loader._encoder_only_weights_mapper,  # noqa: SLF001
        )
    )  # fmt: skip
    if not kept:
        raise UsageError(f"{folder}: --mm-encoder-only leaves no shard of it")
    return {name for name, file in weight_map.items() if str(folder / file) not in kept}
