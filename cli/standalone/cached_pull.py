"""The second pull without a daemon: what is whole in the cache needs no agent.

Starting one would cost more than everything else that the command does.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from p2pcache.errors import OriginUnavailable
from p2pcache.ids import Ref
from p2pcache.io.http.client import Events
from p2pcache.io.models.store import Store
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo


class Meaning(NamedTuple):
    """What a ref means now. `generation` None: the ref has a digest, no tag was asked."""

    digest: str
    generation: int | None
    stale: bool = False


def from_cache(
    cache: Path, origin: str, ref: Ref, *, force_generation: bool, opened: Callable[[OriginRepo], None]
) -> Events | None:  # fmt: skip
    """The events of a pull of a model that is whole in the cache; None: it takes an agent.

    `opened` is told the storage before it is asked for anything.

    Raises:
        NotFound: no such tag, or no such storage.
        OriginUnavailable: the storage doesn't answer, and the tag was never seen here.
    """
    began = time.monotonic()
    repo = OriginRepo(open_origin(origin)) if origin else None
    if repo is not None:
        opened(repo)
    if not (cache / "agent.db").exists():
        return None
    store = Store.open(cache)
    try:
        meaning = _resolve(repo, store, ref)
        if meaning is None or (_went_back(store, ref, meaning) and not force_generation):
            return None  # the agent says what is wrong with it
        model = store.get(meaning.digest)
        if model is None or not model.complete:
            return None
        path = model.publish(ref, meaning.generation)
        manifest = model.layout.manifest
    finally:
        store.close()
    named = {"ref": str(ref), "digest": meaning.digest, "bytes": manifest.size_bytes}

    def events() -> Events:
        yield {"event": "resolved", **named, "files": len(manifest.files), "stale": meaning.stale}
        yield {
            "event": "done", **named, "path": path, "models_dir": str(cache / "models"), "bytes_origin": 0,
            "bytes_peers": 0, "bytes_local": manifest.size_bytes,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    return events()


def _resolve(repo: OriginRepo | None, store: Store, ref: Ref) -> Meaning | None:
    """Asked of the storage; when it can't say, what this cache last knew. None: nobody to ask."""
    if ref.digest:
        return Meaning(ref.digest, None)
    if repo is None:
        return None
    try:
        record = repo.get_tag(ref)
    except OriginUnavailable:
        known = store.tag_of(ref)
        if known is None:
            raise
        return Meaning(known.digest, known.generation, stale=True)
    return Meaning(record.digest, record.generation)


def _went_back(store: Store, ref: Ref, meaning: Meaning) -> bool:
    return meaning.generation is not None and meaning.generation < store.generation_seen(ref)
