"""One cache dir: its models, tags, trees and blobs. One process at a time.

CACHE/lock, node-id, agent.db     pid of the process that holds it; the node id; records
CACHE/node-home                   where the node id was drawn: a copy of the cache draws another
CACHE/spare                       disk space kept back, so that a full disk can be emptied
CACHE/manifests/<hex>[.remote]    manifests of the models known here; of evicted ones
CACHE/partial/<hex>[.have]        partial blobs, and which of their chunks are proved
CACHE/blobs/<hex>                 whole blobs, read-only
CACHE/models/<ns>/<name>/@<hex>/  trees of hard links; <tag> beside them is a link
CACHE/models/.arriving/<hex>/     arriving directories of partial models; emptied at start
CACHE/models/.hf/                 the hub view (io.hub_cache.view)
CACHE/tmp/                        files before they appear and after they were removed; emptied at start
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File, decode, digest_of, files_with
from p2pcache.core.pool.eviction import Candidate, Limits
from p2pcache.errors import Busy, InvalidManifest, NoSpace, NotAllowed, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.blobs import reservation
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import Writers
from p2pcache.io.disk import cache_dir
from p2pcache.io.disk.agent_db import HistoryRow, ModelRow, Records
from p2pcache.io.disk.cache_dir import Folders, cache_errors
from p2pcache.io.disk.claims import ClaimRecords
from p2pcache.io.disk.disk import Disk, disk_errors
from p2pcache.io.disk.manifest_folder import ManifestFolder
from p2pcache.io.disk.reserve_file import Spare
from p2pcache.io.disk.store_info import ModelInfo, Pruned, TagState, Usage, by_digest
from p2pcache.io.models import recover
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.model_users import NOBODY, Users
from p2pcache.io.models.publication import Publisher
from p2pcache.io.models.published_tree import Tree, Trees
from p2pcache.io.models.removal import Removal
from p2pcache.io.notes import kept_orders, written_names
from p2pcache.io.notes.written_names import WrittenNames

# A disk that is full or read-only, or somebody has the records locked.
_NOT_NOW = (NoSpace, NotAllowed, Busy)
MIN_FREE_BYTES = 1 << 30  # a full disk breaks the node's other tenants first


class Store:
    """A cache dir. Thread-safe; every call may block for disk."""

    def __init__(self, root: Path, folders: Folders, disk: Disk, lock_fd: int,
                 min_free_bytes: int) -> None:  # fmt: skip
        """Use `Store.open`."""
        self.root = root
        self.min_free_bytes = min_free_bytes
        self.limits = Limits()
        self._folders = folders
        self._disk = disk
        self._lock_fd = lock_fd
        self._spare = Spare(disk, folders.root)
        self._records = Records(root / "agent.db", self._spare)
        self.claims: ClaimRecords = self._records
        self._trees = Trees(disk, folders, WrittenNames(root / written_names.FILE))
        self.written = self._trees.written
        self._manifests = ManifestFolder(disk, folders.manifests)
        recover.recover(disk, folders, self._records, self._manifests, self._trees)
        self._blobs = BlobPool(root, folders, disk, self._records)
        self._blobs.before_demote = self._unpublish
        self._writers = Writers(self._blobs)
        self._models: dict[str, ModelStore] = {}
        self._publisher = Publisher(self._blobs, self._trees, self._records)
        self.removal = Removal(
            self._blobs, self._records, self._manifests, self._trees, self._spare, self._writers, self._models
        )  # fmt: skip
        self._closed = False
        self.orders = kept_orders.KeptOrders(root / kept_orders.FILE)
        self.node_id = cache_dir.node_id(disk, folders.root)

    @classmethod
    def open(
        cls, path: Path, *, min_free_bytes: int = MIN_FREE_BYTES, disk: Disk | None = None
    ) -> Self:
        """Open or create a cache dir, and finish or undo what a crash left half done.

        Args:
            path: of the directory.
            min_free_bytes: disk space that reservations leave free.
            disk: how to touch the disk (tests).

        Raises:
            UsageError: another process uses it, a newer release wrote it, its file system has no locks or no
                hard links, or it holds files of others that would be removed.
            NotAllowed: it is another user's.
            P2PCacheError: it can't be read or written.
        """
        disk = disk or Disk()
        root = path.absolute()
        with disk_errors(f"cache dir {root}", path):
            cache_dir.check_owner(root)
            root.mkdir(parents=True, exist_ok=True)
            cache_dir.check_ours(root)
            with contextlib.ExitStack() as undo:
                lock_fd = cache_dir.take_lock(root)
                undo.callback(os.close, lock_fd)
                folders = cache_dir.open_folders(disk, root)
                undo.callback(cache_dir.close_all, folders)
                cache_dir.check_links(disk, folders, root)
                store = cls(root, folders, disk, lock_fd, min_free_bytes)
                undo.pop_all()
                return store

    def close(self) -> None:
        """Make all progress durable and release the lock; again is no error."""
        with self._blobs.maintenance:
            if self._closed:
                return
            self._closed = True
            try:
                for model in self._models.values():
                    model.flush()
            finally:
                for model in list(self._models.values()):
                    model.close()
                self._models.clear()
                self._blobs.files.clear()
                self._records.close()
                self._trees.close()
                self._spare.keep()
                cache_dir.close_all(self._folders)
                os.close(self._lock_fd)

    # -- models ----------------------------------------------------------------------------------

    def add_model(self, layout: Layout, manifest_bytes: bytes, *, reserve: bool = True) -> ModelStore:  # fmt: skip
        """Make a model known and open it; again is no error.

        Args:
            layout: the manifest's index tables.
            manifest_bytes: the canonical manifest.
            reserve: first reserve disk space for all of it.

        Raises:
            NoSpace: it doesn't fit; nothing is left behind.
            InvalidManifest: the bytes aren't this layout's manifest.
        """
        if digest_of(manifest_bytes) != layout.digest:
            raise InvalidManifest(f"manifest bytes don't match blake3:{layout.digest}")
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            known = self._models.get(layout.digest)
            model = known or ModelStore(self, self._blobs, self._writers, layout)
            try:
                if reserve:
                    quota = self.limits.quota_bytes
                    reservation.reserve(self._blobs, model.files, self.min_free_bytes, quota)
                if known is None:
                    self._remember(layout, manifest_bytes)
            except BaseException:
                if known is None:
                    model.close()
                raise
            self._models[layout.digest] = model
            return model

    def _remember(self, layout: Layout, manifest_bytes: bytes) -> None:
        self._manifests.put(layout.digest, manifest_bytes)
        manifest = layout.manifest
        row = ModelRow(layout.digest, manifest.size_bytes, len(manifest.files), time.time())
        self._records.add_model(row, [(b.id, b.size) for b in layout.blobs])
        self._manifests.on_back(layout.digest)
        self.removal.drop_unfinished(layout.digest)

    def get(self, digest: str) -> ModelStore | None:
        """An open model, or one opened from its stored manifest; None if it isn't here, or was evicted."""
        if (model := self._models.get(digest)) is not None:
            return model  # doesn't wait for a running flush
        with self._blobs.maintenance:
            if (model := self._models.get(digest)) is None:
                data = self.manifest(digest) if digest in self._manifests.local else None
                if data is None:
                    return None
                layout = Layout(decode(data), digest)
                model = self._models[digest] = ModelStore(self, self._blobs, self._writers, layout)
            return model

    def manifest(self, digest: str) -> bytes | None:
        """The stored manifest's bytes, of an evicted model, too; None if it isn't here (or was damaged)."""
        return self._manifests.stored(digest)

    def models(self) -> list[ModelInfo]:
        """Every model known here, most recently used first."""
        tags = dict(self._records.tags())
        named, asked = by_digest(tags), by_digest(self._asked(tags))
        blobs = self._records.all_blobs()
        return [
            self._info(row, blobs.get(row.digest, {}), named.get(row.digest, []), asked.get(row.digest, []))
            for row in self._records.model_rows()
        ]  # fmt: skip

    def model_info(self, digest: str) -> ModelInfo | None:
        """One model; None if it isn't known here. Strangers may ask, so the others aren't looked at."""
        if (row := self._records.model_row(digest)) is None:
            return None
        blobs = dict(self._records.blobs_of(digest))
        return self._info(row, blobs, self._records.tags_of(digest), self._records.asked_of(digest))

    def _info(self, row: ModelRow, blobs: dict[str, int], tags: list[Ref],
              asked: list[Ref]) -> ModelInfo:  # fmt: skip
        remote = row.digest in self._manifests.remote
        total = row.size_bytes if remote else sum(blobs.values())
        whole = (opened := self._models.get(row.digest)) is not None and opened.complete
        done = 0 if remote else total if whole else self._blobs.done_bytes(blobs)
        found = ModelInfo(row.digest, row.size_bytes, row.files, done, total, done == total and not remote,
                          tags, asked, row.last_used, row.uses, remote, *self.orders.shown(row.digest))  # fmt: skip
        placed = None if found.names else self._trees.pulled_as(row.digest)
        spelled = self._trees.spellings([*found.names, *filter(None, [placed])])
        return found._replace(placed=placed, spellings=spelled)

    def labels(self) -> dict[str, str]:
        """A name of each model that isn't evicted ("": it has none), by digest, most recently used first."""
        tags = dict(self._records.tags())
        named = by_digest({**tags, **self._asked(tags)})
        here = (r.digest for r in self._records.model_rows() if r.digest in self._manifests.local)
        names = {d: [*named.get(d, ()), *filter(None, self.orders.shown(d)[1:])] for d in here}
        return {digest: self.written(known[0]) if known else "" for digest, known in names.items()}

    def touch(self, digest: str) -> None:
        """Note that a model was used now."""
        self._records.touch(digest, time.time())

    def used_since(self, unix_s: float) -> list[str]:
        """Digests of the models that were used since then."""
        return [row.digest for row in self._records.model_rows() if row.last_used >= unix_s]

    def add_history(self, row: HistoryRow) -> None:
        """Add an action that has ended to the history."""
        self._records.add_history(row)

    def history(self, limit: int) -> list[HistoryRow]:
        """Actions that ended on this node, the newest first."""
        return self._records.history(limit)

    def other_files(self, digest: str, chunks: set[str]) -> Iterator[File]:
        """The files of other models here that have one of these chunks (hex), most recently used models first."""
        for row in self._records.model_rows():
            other = row.digest != digest and row.digest in self._manifests.local
            if other and (data := self.manifest(row.digest)) is not None:
                yield from files_with(data, chunks)

    def usage(self) -> Usage:
        """Bytes of models on this disk, and bytes free.

        Raises:
            Unreachable: the cache dir was deleted, emptied or replaced.
        """
        with cache_errors(self._blobs, f"cache dir {self.root}"):
            cache_dir.check_present(self.root, self._folders)
            return reservation.usage(self._blobs)

    @property
    def trouble(self) -> P2PCacheError | None:
        """Why the last call that the disk refused failed; None: none did."""
        return self._blobs.trouble

    def keep_spare(self) -> None:
        """Keep a little disk space back again, if a removal on a full disk took it."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            self.removal.keep_spare()

    # -- tags and trees --------------------------------------------------------------------------

    def publish(
        self, model: ModelStore, ref: Ref | None, generation: int | None, *, back: bool
    ) -> str:
        """See `ModelStore.publish`. An evicted model that had the tag and has no other name is forgotten."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            before = None if ref is None else self.tag_of(ref)
            path = self._publisher.publish(model, ref, generation, back=back)
            with contextlib.suppress(*_NOT_NOW):
                if ref is not None:
                    self.touch(model.digest)
                old = self.model_info(before.digest) if before is not None else None
                if old is not None and old.remote and not (old.names or old.kept):
                    self.removal.remove_model(old.digest)
            return path

    def publish_files(self, model: ModelStore, ref: Ref, paths: Collection[str]) -> str:
        """See `Publisher.publish_files`."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            path = self._publisher.publish_files(model, ref, paths)
            with contextlib.suppress(*_NOT_NOW):
                self.touch(model.digest)
            return path

    def published_path(self, ref: Ref, digest: str) -> str | None:
        """Path of a model's tree relative to the models directory, if it's there."""
        tree = Tree(ref.namespace, ref.name, digest)
        with cache_errors(self._blobs, f"models in {self.root}"):
            return tree.path if self._trees.exists(tree) else None

    def spell(self, ref: Ref, spelling: str) -> None:
        """See `Trees.spell`."""
        with self._blobs.maintenance:
            self._trees.spell(ref, spelling)

    def remove_tag(self, ref: Ref) -> None:
        """Remove a tag, and its tree if no other tag of this name needs it."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            state = self.tag_of(ref)
            self._trees.remove_link(ref)
            self._records.remove_tag(ref.tag_key)
            if state is not None and not any(
                r.namespace == ref.namespace and r.name == ref.name
                for r in self.tags_of(state.digest)
            ):
                self._trees.remove(Tree(ref.namespace, ref.name, state.digest))

    def tag_of(self, ref: Ref) -> TagState | None:
        """The model and generation that a tag points at here; None: no such tag."""
        return TagState(*found) if (found := self._records.tag(ref.tag_key)) else None

    def tags_of(self, digest: str) -> list[Ref]:
        """The tags that point at a model."""
        return self._records.tags_of(digest)

    def ask(self, ref: Ref, digest: str) -> None:
        """Remember by which tag a model is pulled, so that an interrupted pull has a name."""
        known = self._records.tag(ref.tag_key)
        if (known is None or known[0] != digest) and (ref, digest) not in self._records.asked():
            with contextlib.suppress(*_NOT_NOW):
                self._records.set_asked(ref.tag_key, digest)

    def _asked(self, tags: Collection[Ref]) -> dict[Ref, str]:
        """Refs of interrupted pulls by digest, without those that are tags of another model by now."""
        return {ref: digest for ref, digest in self._records.asked() if ref not in tags}

    def names_of(self, digest: str) -> list[Ref]:
        """All refs of a model: its tags, and those of its interrupted pulls."""
        return [*self._records.tags_of(digest), *self._records.asked_of(digest)]

    def refs(self) -> list[Ref]:
        """All refs that name a model here."""
        tags = dict(self._records.tags())
        return [*tags, *self._asked(tags)]

    def named(self, ref: Ref) -> str | None:
        """The digest that a ref means here, complete or not."""
        if ref.digest is not None:
            return ref.digest
        tag = self._records.tag(ref.tag_key)
        return tag[0] if tag is not None else self._asked(()).get(ref) or self.orders.named(ref)

    def generation_seen(self, ref: Ref) -> int:
        """The generation last set for a tag, also after the tag was removed; 0 if none."""
        return self._records.generation(ref.tag_key)

    def _unpublish(self, blob_id: str) -> None:
        """Remove all trees that show a blob, whose bytes turned out wrong."""
        for digest in self._records.models_with(blob_id):
            for tree in self._trees.trees(digest):
                self._trees.remove(tree)

    def users_of(self, digests: Collection[str]) -> Users:
        """See `Removal.users_of`."""
        with cache_errors(self._blobs, f"cache dir {self.root}"):
            return self.removal.users_of(digests)

    def remove_model(self, digest: str) -> int:
        """See `Removal.remove_model`."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            return self.removal.remove_model(digest)

    def evict_model(self, digest: str, value: float = 0.0) -> int:
        """See `Removal.evict_model`; a nameless model is removed. What is ordered, or open in a process, stays."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            if (ordered := self.orders.runs(digest)) and (model := self.get(digest)):
                return self.removal.let_go(model, model.have_runs() & ~ordered)
            self.removal.refuse_used(digest)
            if not self.names_of(digest):
                return self.removal.remove_model(digest)
            return self.removal.evict_model(digest, value)

    def candidates(self, costs: Mapping[str, float]) -> list[Candidate]:
        """The models with bytes here, as the decider of evictions wants them.

        `costs`: of a byte of a model that is fetched again, by digest; others cost what storage does.
        """
        return self.removal.candidates(costs, self.orders.runs)

    def prune(self, *, dry_run: bool = False, all_unused: bool = False,
              among: Collection[str] | None = None, users: Users = NOBODY) -> Pruned:  # fmt: skip
        """See `Removal.prune`."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            return self.removal.prune(
                self.models(), dry_run=dry_run, all_unused=all_unused, among=among, users=users
            )
