"""One cache dir: its models, tags, trees and blobs. One process at a time.

CACHE/lock, node-id, agent.db     who holds it, who it is, its own records
CACHE/node-home                   where that id was drawn: a copy of the cache draws another
CACHE/spare                       disk space kept back, so that a full disk can be emptied
CACHE/manifests/<hex>             manifests of the models known here
CACHE/partial/<hex>[.have]        blobs on their way, and what is proved of them
CACHE/blobs/<hex>                 whole blobs, read-only
CACHE/models/<ns>/<name>/@<hex>/  trees of hard links; <tag> beside them is a link
CACHE/models/.arriving/<hex>/     what loaders read of models that still arrive; emptied at start
CACHE/tmp/                        what isn't there yet or not any more; emptied at start
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, File, decode, digest_of
from p2pcache.errors import Conflict, InvalidManifest, NoSpace, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io.blobs import reservation
from p2pcache.io.blobs.blob_pool import Blobs
from p2pcache.io.blobs.chunk_writer import Writers
from p2pcache.io.disk import cache_dir as cachedir
from p2pcache.io.disk.agent_db import HistoryRow, ModelRow, Records
from p2pcache.io.disk.cache_dir import Folders, cache_errors
from p2pcache.io.disk.disk import Disk, disk_errors, free_bytes, read_small
from p2pcache.io.disk.reserve_file import Spare
from p2pcache.io.disk.store_info import ModelInfo, Pruned, TagState, Usage
from p2pcache.io.models import recover
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.publish_files import label, show_files, tree_files
from p2pcache.io.models.published_tree import Tree, Trees
from p2pcache.io.models.removal import Removal

MIN_FREE_BYTES = 1 << 30  # a full disk breaks the node's other tenants first


class Store:
    """A cache dir. Thread-safe; every call may block for disk."""

    def __init__(self, root: Path, folders: Folders, disk: Disk, lock_fd: int,
                 min_free_bytes: int) -> None:  # fmt: skip
        """Use `Store.open`."""
        self.root = root
        self.min_free_bytes = min_free_bytes
        self._folders = folders
        self._disk = disk
        self._lock_fd = lock_fd
        self._spare = Spare(disk, folders.root)
        self._records = Records(root / "agent.db", self._spare)
        self._trees = Trees(disk, folders)
        recover.recover(disk, folders, self._records, self._trees)
        self._blobs = Blobs(root, folders, disk, self._records)
        self._blobs.before_demote = self._hide
        self._removal = Removal(self._blobs, self._records, self._spare)
        self._writers = Writers(self._blobs)
        self._models: dict[str, ModelStore] = {}
        self._closed = False
        self.node_id = cachedir.node_id(disk, folders.root)

    @classmethod
    def open(
        cls, cache_dir: Path, *, min_free_bytes: int = MIN_FREE_BYTES, disk: Disk | None = None
    ) -> Self:
        """Open or create a cache dir and put it in order after whatever happened to it.

        Args:
            cache_dir: the directory.
            min_free_bytes: free space of the disk that reservations leave alone.
            disk: how to touch the disk (tests).

        Raises:
            UsageError: another process uses it, or a newer release wrote it.
            NotAllowed, P2PCacheError: it can't be read or written.
        """
        disk = disk or Disk()
        root = cache_dir.absolute()
        with disk_errors(f"cache dir {root}"):
            root.mkdir(parents=True, exist_ok=True)
            lock_fd = cachedir.take_lock(root)
            try:
                folders = cachedir.open_folders(disk, root)
                try:
                    return cls(root, folders, disk, lock_fd, min_free_bytes)
                except BaseException:
                    cachedir.close_all(folders)
                    raise
            except BaseException:
                os.close(lock_fd)
                raise

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
                self._spare.keep()
                cachedir.close_all(self._folders)
                os.close(self._lock_fd)

    # Models

    def add_model(
        self, layout: Layout, manifest_bytes: bytes, *, reserve: bool = True
    ) -> ModelStore:
        """Make a model known and open it; again is no error.

        Args:
            layout: the manifest's index tables.
            manifest_bytes: the canonical manifest.
            reserve: first make sure that all of it will fit, and take the space.

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
                    reservation.reserve(self._blobs, model.files, self.min_free_bytes)
                if known is None:
                    self._remember(layout, manifest_bytes)
            except BaseException:
                if known is None:
                    model.close()
                raise
            self._models[layout.digest] = model
            return model

    def _remember(self, layout: Layout, manifest_bytes: bytes) -> None:
        self._disk.replace_file(self._folders.manifests, layout.digest, manifest_bytes)
        manifest = layout.manifest
        row = ModelRow(layout.digest, manifest.size_bytes, len(manifest.files), time.time())
        self._records.add_model(row, [(b.id, b.size) for b in layout.blobs])

    def get(self, digest: str) -> ModelStore | None:
        """An open model, or one opened from its stored manifest; None if it isn't known here."""
        if (model := self._models.get(digest)) is not None:
            return model  # without waiting for a flush that may be running
        with self._blobs.maintenance:
            model = self._models.get(digest)
            if model is None:
                data = self.manifest(digest)
                if data is None:
                    return None
                layout = Layout(decode(data), digest)
                model = self._models[digest] = ModelStore(self, self._blobs, self._writers, layout)
            return model

    def manifest(self, digest: str) -> bytes | None:
        """The stored manifest's bytes; None if it isn't here (or was damaged)."""
        data = read_small(self._folders.manifests, digest, MAX_MANIFEST_BYTES)
        return data if data is not None and digest_of(data) == digest else None

    def models(self) -> list[ModelInfo]:
        """Every model known here, most recently used first."""
        tags = dict(self._records.tags())
        asked = self._asked(tags)
        return [
            self._info(row, _names_of(row.digest, tags), _names_of(row.digest, asked))
            for row in self._records.models()
        ]

    def _info(self, row: ModelRow, tags: list[Ref], asked: list[Ref]) -> ModelInfo:
        blobs = self._records.blobs_of(row.digest)
        done = sum(self._blobs.done_bytes(blob, size) for blob, size in blobs)
        total = sum(size for _, size in blobs)
        return ModelInfo(row.digest, row.size_bytes, row.files, done, total, done == total,
                         tags, asked, row.last_used)  # fmt: skip

    def touch(self, digest: str) -> None:
        """Note that a model was used now."""
        self._records.touch(digest, time.time())

    def add_history(self, row: HistoryRow) -> None:
        """Remember something that ended on this node."""
        self._records.add_history(row)

    def history(self, limit: int) -> list[HistoryRow]:
        """What ended on this node, the newest first."""
        return self._records.history(limit)

    def other_files(self, digest: str) -> Iterator[File]:
        """The files of every other model known here, most recently used first."""
        for row in self._records.models():
            data = None if row.digest == digest else self.manifest(row.digest)
            if data is not None:
                yield from decode(data).files

    def usage(self) -> Usage:
        """Bytes of models on this disk, and bytes free. Unreachable: the directory is gone."""
        with cache_errors(self._blobs, f"cache dir {self.root}"):
            cachedir.check_present(self.root, self._folders.root)
            return Usage(self._blobs.cached_bytes(), free_bytes(self.root))

    def keep_spare(self) -> None:
        """Keep a little disk space back again, if a removal on a full disk took it."""
        with cache_errors(self._blobs, f"cache dir {self.root}"):
            self._removal.keep_spare()

    # Tags and trees

    def publish(self, model: ModelStore, ref: Ref | None, generation: int | None) -> str:
        """See `ModelStore.publish`."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            model.flush()
            absent = [b.id for b in model.files if not b.published]
            if absent:
                raise P2PCacheError(
                    f"model {model.digest} isn't complete: {len(absent)} files lack chunks; pull it again"
                )
            if ref is None:
                return ""
            tree = Tree(ref.namespace, ref.name, model.digest)
            tagged = [r for r, d in self._records.tags() if d == model.digest]
            for place in {tree, *(Tree(r.namespace, r.name, model.digest) for r in tagged)}:
                self._trees.publish(place, tree_files(model.layout))
            # A tag is last: it never speaks of a tree that isn't durable. One that says this already
            # is left alone: a complete model must be had from a full disk, too.
            if generation is not None and not self._says(ref, model.digest, generation):
                self._records.set_tag(ref.tag_key, model.digest, generation)
                self._trees.set_link(ref, model.digest)
            with contextlib.suppress(NoSpace):
                self.touch(model.digest)
            return tree.path

    def publish_files(self, model: ModelStore, ref: Ref, paths: Collection[str]) -> str:
        """See `showing.show_files`."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            model.flush()
            path = show_files(self._blobs, self._trees, model, ref, paths)
            with contextlib.suppress(NoSpace):
                self.touch(model.digest)
            return path

    def _says(self, ref: Ref, digest: str, generation: int) -> bool:
        """Whether record and link of a tag are these."""
        known = self._records.tag(ref.tag_key) == (digest, generation)
        return known and self._trees.link(ref) == digest

    def published_path(self, ref: Ref, digest: str) -> str | None:
        """Path of a model's tree relative to the models directory, if it's there."""
        tree = Tree(ref.namespace, ref.name, digest)
        with cache_errors(self._blobs, f"models in {self.root}"):
            return tree.path if self._trees.exists(tree) else None

    def set_tag(self, ref: Ref, digest: str, generation: int) -> None:
        """Point a tag at a model of this cache."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"models in {self.root}"):
            self._records.set_tag(ref.tag_key, digest, generation)
            if self._trees.exists(Tree(ref.namespace, ref.name, digest)):
                self._trees.set_link(ref, digest)

    def remove_tag(self, ref: Ref) -> None:
        """Forget a tag; a tree that no tag of this name needs any more goes with it."""
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
        """What a tag points at here."""
        found = self._records.tag(ref.tag_key)
        return TagState(*found) if found else None

    def tags_of(self, digest: str) -> list[Ref]:
        """The tags that point at a model."""
        return [ref for ref, d in self._records.tags() if d == digest]

    def ask(self, ref: Ref, digest: str) -> None:
        """Remember by which tag a model is pulled: an interrupted pull has a name, too."""
        known = self._records.tag(ref.tag_key)
        if (known is None or known[0] != digest) and (ref, digest) not in self._records.asked():
            with contextlib.suppress(NoSpace):
                self._records.set_asked(ref.tag_key, digest)

    def _asked(self, tags: Collection[Ref]) -> dict[Ref, str]:
        """Without those that are tags of something else, which people mean by them until they move."""
        return {ref: digest for ref, digest in self._records.asked() if ref not in tags}

    def names_of(self, digest: str) -> list[Ref]:
        """What people call a model: its tags, and what pulls that haven't ended well called it."""
        tags = dict(self._records.tags())
        return [*_names_of(digest, tags), *_names_of(digest, self._asked(tags))]

    def named(self, ref: Ref) -> str | None:
        """The digest that a ref means here, complete or not."""
        if ref.digest is not None:
            return ref.digest
        tag = self._records.tag(ref.tag_key)
        return tag[0] if tag is not None else self._asked(()).get(ref)

    def generation_seen(self, ref: Ref) -> int:
        """The generation last set for a tag, also after the tag was removed; 0 if none."""
        return self._records.generation(ref.tag_key)

    def _hide(self, blob_id: str) -> None:
        """A blob turned out bad: no tree may show it."""
        for digest in self._records.models_with(blob_id):
            for tree in self._trees.trees(digest):
                self._trees.remove(tree)

    # Removing

    def remove_model(self, digest: str) -> int:
        """Remove a model, its tags and trees, and the blobs that no other model needs.

        Returns:
            Bytes of disk freed.

        Raises:
            Conflict: it's in use.
        """
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            model = self._models.get(digest)
            if model is not None and model.pins:
                raise Conflict(f"model {digest[:12]} is in use; try again when that has ended")
            for ref in self.tags_of(digest):
                self._trees.remove_link(ref)
            for tree in self._trees.trees(digest):
                self._trees.remove(tree)
            if model is not None:
                model.hide_arriving()
                model.close()
                del self._models[digest]
            self._disk.unlink(self._folders.manifests, digest)
            return self._removal.model(digest)

    def prune(
        self, *, dry_run: bool = False, all_unused: bool = False, in_use: Collection[str] = ()
    ) -> Pruned:
        """Remove models that no tag names, and blobs that no model names.

        Args:
            dry_run: only tell.
            all_unused: every model that isn't in use, tagged or not.
            in_use: digests to leave alone, besides pinned ones.
        """
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self.root}"):
            victims = [m for m in self.models() if self._prunable(m, all_unused, in_use)]
            removed = [label(m) for m in victims]
            kept: set[str] = set()
            for row in self._records.models():
                if row.digest not in {m.digest for m in victims}:
                    kept.update(b for b, _ in self._records.blobs_of(row.digest))
            named = self._records.named_blobs()
            orphans = [b for b, _ in self._blobs.names() if b not in named]
            removed += [f"unnamed blob {b}" for b in orphans]
            if dry_run:
                freed = sum(
                    self._blobs.held_bytes(b) for b, _ in self._blobs.names() if b not in kept
                )
                return Pruned(removed, freed)
            freed = sum(self.remove_model(m.digest) for m in victims)
            return Pruned(removed, freed + self._removal.blobs(orphans))

    def _prunable(self, info: ModelInfo, all_unused: bool, in_use: Collection[str]) -> bool:  # noqa: FBT001
        model = self._models.get(info.digest)
        if info.digest in in_use or (model is not None and model.pins):
            return False
        return all_unused or not info.tags


def _names_of(digest: str, names: dict[Ref, str]) -> list[Ref]:
    return [ref for ref, meant in names.items() if meant == digest]
