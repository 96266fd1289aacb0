"""Shared by all engines: where a model's weights are, and an iterator over those that still arrive.

A complete model is the engine's own to read: nothing is quicker than its mapping.

An engine reads configuration and tokenizer from a directory before it asks for weights. So it gets
a directory: of the whole model, or of all but the weights (`p2pcache pull REF --exclude
'*.safetensors'`) together with the ref from which the weights are streamed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from p2pcache.core.units import parse_size
from p2pcache.errors import IntegrityError, UsageError
from p2pcache.ids import SCHEME, Ref
from p2pcache.io.models.published_tree import ref_of_tree
from p2pcache.loader.api import iter_tensors
from p2pcache.loader.format.dtypes import import_torch
from p2pcache.loader.integrations.gather import Groups, gathered, share
from p2pcache.loader.memory.backend import cuda_device
from p2pcache.loader.resolve import open_source
from p2pcache.loader.session import open_session
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.catalog import fetch
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource

log = logging.getLogger(__name__)

# Only a directory with this file is a model's: engines ask for the weights of adapters in the same way.
_CONFIG = "config.json"
# Files that must be equal to the ref's: the tag may have moved since the directory was pulled.
_SAME_VERSION = (_CONFIG, "model.safetensors.index.json")
_MISTRALS = (
    "consolidated*.safetensors"  # engines prefer them to the same weights in the usual files
)
# Patterns of files that hold weights, as publishers name them.
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """An operator's settings of a load; the words are those of `iter_tensors`."""

    ref: str = ""  # has the weights for model directories without any; "": none
    agent: str | None = None
    memory_limit: int | str | None = (
        None  # bytes, or text such as "2GiB"; None: the loader's default
    )
    timeout_s: float | None = None  # of a load; None: no limit
    device: str = "cpu"  # "cuda": weights go straight to the worker's GPU, through pinned memory

    @classmethod
    def parse(cls, given: Mapping[str, Any], where: str) -> "EngineSettings":
        """Check settings from outside.

        Args:
            given: key to value, as parsed from JSON.
            where: they come from, for messages.

        Raises:
            UsageError: an unknown key or a wrong value.
        """
        known = cls.__dataclass_fields__.keys()
        unknown = sorted(map(str, given.keys() - known))
        if unknown:
            raise UsageError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
        for key in ("ref", "agent"):
            if not isinstance(given.get(key, ""), str):
                raise UsageError(f"{where}: {key} must be text")
        if given.get("device", "cpu") not in ("cpu", "cuda"):
            raise UsageError(f'{where}: device must be "cpu" or "cuda"')
        limit, timeout_s = given.get("memory_limit"), given.get("timeout_s")
        if isinstance(limit, bool) or not isinstance(limit, int | str | None):
            raise UsageError(f'{where}: memory_limit must be bytes or text such as "2GiB"')
        if isinstance(limit, str):
            parse_size(limit)
        if timeout_s is not None and (
            isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0
        ):
            raise UsageError(f"{where}: timeout_s must be a number of seconds above 0")
        if given.get("ref"):
            Ref.parse(given["ref"])
        return cls(**given)


def find_weights(model: str, settings: EngineSettings) -> str | Path | None:
    """Where to load the weights of an engine's model from.

    A directory that the agent made of some of a model's files, as `p2pcache pull --exclude` does, is known to
    belong to that model. So a draft model beside another one needs no setting.

    Args:
        model: the engine's model: a directory, a ref (see `named_ref`), or a name in a hub.
        settings: the operator's.

    Returns:
        The directory itself if it has safetensors. For a ref, and for a model's directory without weights:
        the ref with its digest, or its directory if it is complete here. None: the engine must find the
        weights itself.

    Raises:
        IntegrityError: the directory is from another version than the settings' ref.
        P2PCacheError: the ref can't be opened.
    """
    folder = Path(model)
    if not folder.is_dir():
        named = named_ref(model)
        return None if named is None else _pin(named, settings)
    if next(folder.glob("*.safetensors"), None) is not None:
        return folder
    if not (folder / _CONFIG).is_file():
        return None
    if any(next(folder.glob(pattern), None) is not None for pattern in WEIGHTS):
        return None
    own = ref_of_tree(folder)
    if settings.ref:
        wanted = Ref.parse(settings.ref)
        try:
            return _pin(wanted, settings, folder)
        except IntegrityError:
            if own is None or own.full_name == wanted.full_name:
                raise
    return None if own is None else _pin(own, settings)


def named_ref(model: str) -> Ref | None:
    """The ref that an engine was told in a model's place, such as the path of a reload; None: it is no ref.

    It has a tag or a digest, since a bare `org/model` is a name in a hub, or begins with "p2pcache://".

    Raises:
        UsageError: "p2pcache://" and no ref.
    """
    if model.startswith(SCHEME):
        return Ref.parse(model.removeprefix(SCHEME).rstrip("/"))
    try:
        return Ref.parse(model) if ":" in model else None
    except UsageError:  # s3://..., a path that isn't there
        return None


def _pin(ref: Ref, settings: EngineSettings, folder: Path | None = None) -> str | Path:
    """The ref with its digest; of a model that is complete here, its directory.

    Args:
        ref: of the weights.
        settings: the operator's.
        folder: must be from the same model and version; None: the ref alone counts.

    Raises:
        IntegrityError: it is from another model or version.
        P2PCacheError: the ref can't be opened.
    """
    source = open_source(str(ref), agent=settings.agent, fetch="all")
    try:
        if folder is not None:
            _compare(source, folder, ref, settings.timeout_s)
        if isinstance(source, DirectorySource):
            return source.path
        digest = source.stats().digest
    finally:
        source.close()
    return str(ref._replace(digest=digest or ref.digest))


def _compare(source: Source, folder: Path, ref: Ref, timeout_s: float | None) -> None:
    files = dict(source.files())
    names = [name for name in _SAME_VERSION if name in files and (folder / name).is_file()]
    ranges = [Range(name, 0, files[name]) for name in names]
    theirs = fetch(source, ranges, Deadline(timeout_s, source.name))
    found = dict(zip(names, theirs, strict=True)) | ({} if _CONFIG in names else {_CONFIG: b""})
    for name, data in found.items():
        if (folder / name).read_bytes() != data:
            raise IntegrityError(
                f"{folder}/{name} isn't that of {ref}: the tag moved, or it is another model; "
                "pull the directory again, or name the ref with its digest"
            )


class Place(NamedTuple):
    """Where a worker's weights go, and with whom it shares the reading."""

    device: str = "cpu"
    groups: Groups | None = (
        None  # of all workers that go through the load together; None: this one alone
    )


HOST = Place()


def stream_weights(
    where: str | Path,
    settings: EngineSettings,
    *,
    skip: Callable[[str], bool] | None = None,
    prefix: str = "",
    place: Place = HOST,
) -> Iterator[tuple[str, Any]]:
    """Iterate over (name, tensor) in the order in which bytes arrive.

    Tensors stay valid. They are on the host, since each tensor-parallel rank cuts its part out before
    it copies that to its GPU, unless `place` says otherwise. A complete directory is mapped, as the engines
    themselves do it.

    Args:
        where: from `find_weights`.
        settings: the operator's.
        skip: true for names that aren't read; None: all are.
        prefix: goes before each name.
        place: from `place_for`.

    Raises:
        P2PCacheError: as `iter_tensors`.
    """
    groups = place.groups
    keep = None if skip is None else lambda name: not skip(name)
    if groups is not None:
        keep = _share(where, settings, groups)
    with iter_tensors(
        where,
        device=place.device,
        filter=keep,
        memory="mapped",
        memory_limit=settings.memory_limit,
        agent=settings.agent,
        timeout_s=settings.timeout_s,
        progress=False,
    ) as stream:
        found = stream if groups is None else gathered(stream, groups, place.device)
        for name, tensor in found:
            if groups is None or skip is None or not skip(name):
                yield prefix + name, tensor


def _share(where: str | Path, settings: EngineSettings, groups: Groups) -> Callable[[str], bool]:
    """Which names this worker reads for all."""
    dist = import_torch().distributed
    session = open_session(where, settings.agent, "all", settings.timeout_s)
    session.source.close()
    rank, size = dist.get_rank(groups.device), dist.get_world_size(groups.device)
    return {info.name for info in share(session.catalog.tensors.values(), rank, size)}.__contains__


def place_for(
    where: str | Path, settings: EngineSettings, find_groups: Callable[[], Groups] | None = None
) -> Place:
    """Where this worker's weights go: to its current GPU, if the operator wishes so and that can be.

    Args:
        where: from `find_weights`. Of a directory with Mistral's own files the engine chooses some.
        settings: the operator's.
        find_groups: the engine's tensor-parallel group; None: its workers don't load together.
    """
    if settings.device == "cpu":
        return HOST
    can = _can_go_straight(where, settings)
    dist = import_torch().distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Place(settings.device) if can else HOST
    groups = None if find_groups is None else find_groups()
    # A stage of a pipeline needs few of the tensors, and its engine touches no others.
    if groups is None or dist.get_world_size(groups.device) == 1:
        log.info("this worker needs a part of the model, so weights go through host memory")
        return HOST
    told: list[Any] = [None] * dist.get_world_size(groups.device)
    dist.all_gather_object(told, can, group=groups.host)  # one that stays away would be waited for
    return Place(settings.device, groups) if all(told) else HOST


def _can_go_straight(where: str | Path, settings: EngineSettings) -> bool:
    if isinstance(where, Path) and next(where.glob(_MISTRALS), None) is not None:
        return False
    try:
        cuda_device(settings.device)
    except UsageError as error:
        log.warning("weights go through host memory: %s", error)
        return False
    return True


def borrow_handlers(engine: str) -> None:
    """Send our log lines to the engine's handlers: vLLM gives handlers to its own logger alone."""
    ours, theirs = logging.getLogger("p2pcache"), logging.getLogger(engine)
    if ours.handlers or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.level or logging.INFO)
    ours.propagate = False  # a root handler would repeat each line
