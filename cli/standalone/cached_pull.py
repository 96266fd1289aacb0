"""The pull of a model that is complete in the cache, without a daemon.

It starts no agent inside the command: that would take longer than all the rest.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.errors import NotAllowed, NotFound, OriginUnavailable
from p2pcache.ids import Ref
from p2pcache.io.deadline_thread import DeadlineThread
from p2pcache.io.disk.cache_dir import RECORDS
from p2pcache.io.http.client import Events
from p2pcache.io.models.store import Store
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.base import NoContainer
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.tag_patience import FIRST_S, TagPatience

LOOK_S = 0.05  # between two looks whether storage is away


class ResolvedRef(NamedTuple):
    """The digest that a ref means now. `generation` None: the ref has a digest, no tag was read."""

    digest: str
    generation: int | None
    stale: bool = False  # storage didn't answer: the last tag that this cache has seen
    trouble: str = ""  # why it is stale


def from_cache(
    cache: Path, origin: str, ref: Ref, *, force_generation: bool, opened: Callable[[OriginRepo], None]
) -> Events | None:  # fmt: skip
    """Return the events of a pull of a model that is complete in the cache; None: it takes an agent.

    Args:
        cache: the cache directory, under its lock.
        origin: URL of the storage; "" if none is set.
        ref: the model.
        force_generation: accept a tag that went back.
        opened: called with the storage before it is asked for anything.

    Raises:
        OriginUnavailable: the storage doesn't answer, and the tag was never seen here.
    """
    began = time.monotonic()
    if not (cache / RECORDS).exists():
        return None
    repo = OriginRepo(open_origin(origin)) if origin else None
    if repo is not None:
        opened(repo)
    store = Store.open(cache)
    try:
        try:
            resolved = _resolve(repo, store, ref)
        except NotFound:
            return None  # the agent says what may have been meant, and writes the failure down
        if resolved is None or (_went_back(store, ref, resolved) and not force_generation):
            return None  # the agent raises the error
        model = store.get(resolved.digest)
        if model is None or not model.complete:
            return None
        path = model.publish(ref, resolved.generation)
        manifest = model.layout.manifest
    finally:
        store.close()
    named = {"ref": str(ref), "digest": resolved.digest, "bytes": manifest.size_bytes}

    def events() -> Events:
        known = {"trouble": resolved.trouble} if resolved.trouble else {}
        yield {
            "event": "resolved", **named, "files": len(manifest.files), "stale": resolved.stale,
            **known,
        }  # fmt: skip
        yield {
            "event": "done", **named, "path": path, "models_dir": str(cache / "models"), "bytes_origin": 0,
            "bytes_peers": 0, "bytes_local": manifest.size_bytes,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    return events()


def _resolve(repo: OriginRepo | None, store: Store, ref: Ref) -> ResolvedRef | None:
    """Read the tag in storage; when that fails, in this cache. None: there is no storage to ask."""
    if ref.digest:
        return ResolvedRef(ref.digest, None)
    if repo is None:
        return None
    known = store.tag_of(ref)
    model = store.get(known.digest) if known else None
    if known is None or model is None or not model.complete:
        try:
            record = repo.get_tag(ref)
        except OriginUnavailable as error:
            if known is None:
                raise
            return ResolvedRef(known.digest, known.generation, stale=True, trouble=str(error))
    else:
        try:
            record = _ask_briefly(repo, ref)
        except (OriginUnavailable, NotAllowed, NoContainer) as error:
            return ResolvedRef(known.digest, known.generation, stale=True, trouble=str(error))
    return ResolvedRef(record.digest, record.generation)


def _ask_briefly(repo: OriginRepo, ref: Ref) -> TagRecord:
    """Read the tag in storage, if that takes no longer than it takes a healthy storage.

    Raises:
        OriginUnavailable: no answer by then.
        P2PCacheError: the storage's own error.
    """
    patience, began = TagPatience(), time.monotonic()
    asking = DeadlineThread(lambda: repo.get_tag(ref), limit_s=FIRST_S, what="tag")
    while not asking.wait(LOOK_S):
        waited, trouble = time.monotonic() - began, repo.trouble
        if waited >= patience.limit_s(trouble=trouble is not None):
            why = f": {trouble}" if trouble is not None else ""
            raise OriginUnavailable(f"storage {repo.url} didn't answer in {waited:.1f} s{why}")
    return asking.result()


def _went_back(store: Store, ref: Ref, resolved: ResolvedRef) -> bool:
    """Tell whether the tag's generation is lower than one that this cache has seen."""
    return resolved.generation is not None and resolved.generation < store.generation_seen(ref)
