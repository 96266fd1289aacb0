"""A cache without an agent: it gives the agent's answers, from the cache directory itself."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from p2pcache.cli.support.background import Watched
from p2pcache.cli.support.client_options import Loaded, cache_dir
from p2pcache.cli.support.connect import find_agent
from p2pcache.cli.support.output import note
from p2pcache.core.format.near_refs import hint
from p2pcache.errors import Conflict, NotAllowed, NotFound, UsageError
from p2pcache.ids import Ref
from p2pcache.io.disk.cache_dir import BLOBS, check_owner
from p2pcache.io.disk.disk import disk_errors, lock, translate
from p2pcache.io.disk.store_info import ModelInfo, cached_part, why_no_bytes, why_no_pull
from p2pcache.io.http.client import AgentClient, Events, Json

if TYPE_CHECKING:
    from p2pcache.core.format.manifest import Manifest
    from p2pcache.io.models.model_chunks import ModelStore
    from p2pcache.io.models.model_users import Users
    from p2pcache.io.models.store import Store
    from p2pcache.io.origins.repo import OriginRepo

LOCK_FILE = "command.lock"
_REFUSED = (errno.EACCES, errno.EPERM)
_NO_DIRECTORY = (
    errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR,
)  # fmt: skip


@contextmanager
def cache_or_agent(loaded: Loaded) -> Iterator["AgentClient | LocalCache"]:
    """Yield the agent, or the cache directory where there is none: both answer for a cache.

    Raises:
        P2PCacheError: as in `find_agent` and `open_cache`.
    """
    client = find_agent(loaded)
    if client is not None:
        yield client
        return
    with open_cache(cache_dir(loaded.settings), loaded.settings.origin) as cache:
        yield cache


@contextmanager
def cache_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a cache: commands without a daemon use it one after the other.

    A command that must wait says so.

    Raises:
        NotAllowed: the directory can't be made or written, or the cache in it belongs to another user.
        UsageError: its path can't be one of a directory.
        NoSpace: its disk is full.
    """
    check_owner(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        said = f"can't use cache directory {path}"
        if error.errno not in (*_REFUSED, *_NO_DIRECTORY):
            raise translate(error, said, path) from None
        kind = NotAllowed if error.errno in _REFUSED else UsageError
        raise kind(f"{said}: {error.strerror}; choose another with --cache-dir") from None
    try:
        try:
            lock(descriptor, f"cache dir {path}", wait=False)
        except BlockingIOError:
            note(f"note: another command works in {path}; waiting for it to end")
            lock(descriptor, f"cache dir {path}", wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def open_cache(path: Path, origin: str) -> Iterator["LocalCache"]:
    """Yield the cache in a directory, under its lock. A directory without a cache counts as an empty one.

    Only a pull makes a cache: `ls --cache-dir ./llama` must not write into `./llama`.

    Args:
        path: the directory.
        origin: URL of the storage; "" if none is set.

    Raises:
        UsageError: not a directory.
        NotAllowed: it can't be read.
    """
    with disk_errors(str(path)):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is not a directory; choose another --cache-dir")
        there = (path / BLOBS).is_dir()
    if not there:
        yield LocalCache(path, None, origin)
        return
    from p2pcache.io.models.store import Store

    with cache_lock(path):
        store = Store.open(path)
        try:
            yield LocalCache(path, store, origin)
        finally:
            store.close()


class LocalCache:
    """The cache of commands without a daemon. It answers like `AgentClient`, whose docs are docs/api.md."""

    def __init__(self, path: Path, store: "Store | None", origin: str) -> None:
        """`store` None: there is no cache in `path` yet. `origin` "": no storage is set."""
        self._path = path
        self._store = store
        self._origin = origin

    def models(self) -> list[Json]:
        """List the models of the cache."""
        return [known.as_json() for known in self._store.models()] if self._store else []

    def model(self, ref: str) -> Json:
        """Describe one model with its files: from the cache, else from the origin if one is set."""
        from p2pcache.core.format.manifest import decode

        wanted = Ref.parse(ref)
        try:
            known = self._known(wanted)
            assert self._store is not None
            encoded = self._store.manifest(known.digest)
            if encoded is None:
                raise NotFound(why_no_bytes(wanted, known))
        except NotFound:
            if not self._origin:
                raise
            return self._at_origin(wanted)
        row = known.as_json() | {"generation": self._store.generation_seen(wanted), "local": True}
        return row | {"manifest": _files(decode(encoded, known.digest))}

    def signatures(self, ref: str) -> Json:
        """Read the model's digest and its signatures from the origin."""
        from p2pcache.io.signatures.in_origin import read_signatures

        wanted, repo = Ref.parse(ref), self._repo()
        digest = wanted.digest or repo.get_tag(wanted).digest
        return {"digest": digest, "signatures": read_signatures(repo, wanted.namespace, digest)}

    def store_signature(self, ref: str, digest: str, bundle: str) -> None:
        """Store a signature at the origin."""
        from p2pcache.io.signatures.in_origin import add_signature

        add_signature(self._repo(), Ref.parse(ref).namespace, digest, bundle)

    def remove(self, ref: str) -> Json:
        """Remove a tag, and the model with its last tag."""
        wanted = Ref.parse(ref)
        known = self._known(wanted)
        assert self._store is not None
        freed, unsure = 0, ""
        if wanted.digest or len(known.names) == 1:
            users = _users(self._store, [known.digest])
            if known.digest in users.held:
                raise Conflict(f"{wanted} stays: {users.held[known.digest]}; end that first")
            unsure = users.unsure
            freed = self._store.remove_model(known.digest)
        else:
            self._store.remove_tag(wanted)
        return {
            "removed": str(wanted), "digest": known.digest, "bytes_freed": freed, "unsure": unsure,
        }  # fmt: skip

    def prune(self, *, dry_run: bool, everything: bool) -> Json:
        """Free the space of models without a name, and of interrupted imports; with `everything`, of all models."""
        from p2pcache.io.imports.import_folder import FOLDER, remove_parts

        parts = remove_parts(self._path / FOLDER, dry_run=dry_run)
        if not self._store:
            return {**parts._asdict(), "dry_run": dry_run}
        due = [known.digest for known in self._store.models() if everything or not known.tags]
        users = _users(self._store, due)
        pruned = self._store.prune(dry_run=dry_run, all_unused=everything, users=users)
        return {**pruned.plus(parts)._asdict(), "dry_run": dry_run}

    def evict(self, ref: str = "", *, to_bytes: int | None = None, dry_run: bool = False) -> Json:
        """Evict one model, or the least valuable ones until the cache has at most `to_bytes`."""
        from p2pcache.io.models import room

        if not ref and to_bytes is None:
            raise UsageError(
                "without an agent there is no quota: name a model, or say how much may stay (p2pcache prune --to SIZE)"
            )
        store = self._store
        if store is None:
            if ref:
                self._known(Ref.parse(ref))
            return {"evicted": [], "kept": [], "unsure": "", "bytes_freed": 0, "dry_run": dry_run}
        if ref:
            known = self._known(Ref.parse(ref))
            if known.remote:
                raise NotFound(f"{ref} was evicted already; `p2pcache pull {ref}` brings it back")
            choice = room.only(store, known.digest, room.Wanted(0), time.time())
            if why := choice.kept.get(known.digest):
                raise Conflict(f"{ref} stays: {why}")
        else:
            over = store.usage().filled_bytes - (to_bytes or 0)
            wanted = room.Wanted(0, max(0, over), rehearsal=dry_run)
            choice = room.choose(store, wanted, time.time())
        infos = {info.digest: info for info in store.models()}
        body, freed = room.told(choice, infos, {}, time.time()), choice.plan.bytes_freed
        if not dry_run:
            freed = sum(store.evict_model(v.digest, v.value) for v in choice.plan.victims)
        return {**body, "bytes_freed": freed, "dry_run": dry_run}

    def history(self, limit: int) -> list[Json]:
        """List what ended in this cache, the newest first; at most `limit` rows."""
        return [row.as_json() for row in self._store.history(limit)] if self._store else []

    def explain(self, ref: str) -> Json:
        """Report where the time of the last pull went; without an agent none runs now."""
        from p2pcache.io.disk.agent_db import HISTORY_ROWS, last_pull  # brings SQLite

        wanted = Ref.parse(ref)
        models = self._store.models() if self._store else []
        if self._store:
            tag = None if wanted.digest else self._store.tag_of(wanted)
            digest = wanted.digest or (tag.digest if tag else "")
            last = last_pull(self._store.history(HISTORY_ROWS), wanted, digest)
            if last:
                kept = cached_part(str(last["digest"]), models)
                return {"ref": str(wanted), "state": "idle", "now": None, **last, "here": kept}
        raise NotFound(why_no_pull(wanted, models))

    def verify(self, ref: str) -> Events:
        """Prove every chunk again; yield events of progress, and `done` last."""
        _, model = self._open(Ref.parse(ref))
        began = time.monotonic()
        model.copy_local()  # chunks of files that somebody changed are proved again
        watched = Watched(model.verify)
        for done, total in watched.progress():
            yield {"event": "progress", "bytes_done": done, "bytes_total": total}
        layout, bad = model.layout, len(watched.result())
        missing = sum(not model.has_chunk(chunk) for chunk in range(layout.chunk_count)) - bad
        yield {
            "event": "done", "ref": ref, "digest": layout.digest, "bytes": layout.total_bytes,
            "chunks": layout.chunk_count, "chunks_bad": bad, "chunks_missing": missing,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    def _known(self, ref: Ref) -> "ModelInfo":
        if self._store:
            digest = self._store.named(ref)
            for known in self._store.models():
                if known.digest == digest:
                    return known
        near = hint(ref, self._store.refs()) if self._store else ""
        raise NotFound(f"model {ref} is not in this cache; 'p2pcache ls' shows what is{near}")

    def _open(self, ref: Ref) -> "tuple[ModelInfo, ModelStore]":
        known = self._known(ref)
        assert self._store is not None
        model = self._store.get(known.digest)
        if model is None:
            raise NotFound(why_no_bytes(ref, known))
        return known, model

    def _repo(self) -> "OriginRepo":
        from p2pcache.io.origins import open_origin
        from p2pcache.io.origins.repo import OriginRepo

        if not self._origin:
            raise UsageError(
                "no agent here, and no storage is set: set P2PCACHE_ORIGIN (or --origin)"
            )
        return OriginRepo(open_origin(self._origin))

    def _at_origin(self, ref: Ref) -> Json:
        from p2pcache.core.format import manifest as manifests

        repo = self._repo()
        tag = None if ref.digest else repo.get_tag(ref)
        digest = ref.digest or (tag.digest if tag else "")
        manifest = manifests.decode(repo.get_manifest(digest), digest)
        return {
            "ref": str(ref), "namespace": ref.namespace, "name": ref.name, "tags": [ref.tag] if tag else [],
            "digest": digest, "bytes": manifest.size_bytes, "files": len(manifest.files),
            "bytes_done": 0, "complete": False, "remote": False, "last_used": 0,
            "generation": tag.generation if tag else 0, "local": False, "manifest": _files(manifest),
        }  # fmt: skip


def _users(store: "Store", digests: list[str]) -> "Users":
    """Who uses or claims models, as `users_of`."""
    from p2pcache.io.models.room import users_and_claims

    return users_and_claims(store, digests, time.time())


def _files(manifest: "Manifest") -> Json:
    return {
        "files": [
            {
                "path": f.path,
                "size": f.size,
                "chunks": len(f.lengths),
                **({"sha256": f"sha256:{f.sha256.hex()}"} if f.sha256 else {}),
            }
            for f in manifest.files
        ]
    }  # fmt: skip
