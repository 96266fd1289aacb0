"""Removing and evicting models, in an order that works on a full disk, too.

Bytes go before records: on a full disk a record can only be deleted in the space that the bytes leave. An eviction
begins with the one step that can't be half done (`ManifestFolder.evict`). A crash after it is made good when the cache
is opened.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from math import inf

from p2pcache.core.pool.eviction import Candidate
from p2pcache.core.pool.settings import COST_STORAGE
from p2pcache.errors import Busy, Conflict, NoSpace, NotFound, P2PCacheError
from p2pcache.ids import Ref, RunSet
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import Writers
from p2pcache.io.blobs.disk_sums import DiskSums
from p2pcache.io.blobs.flush import flush_blobs
from p2pcache.io.blobs.letting_go import (
    believe_no_longer,
    free_holes,
    has_holes_to_free,
)
from p2pcache.io.disk.agent_db import Records
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.disk.manifest_folder import ManifestFolder
from p2pcache.io.disk.reserve_file import Spare
from p2pcache.io.disk.store_info import ModelInfo, Pruned
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.model_users import ModelUsers, Users
from p2pcache.io.models.published_tree import Trees

LOOK_LASTS_S = 1.0  # a look at all processes of a busy machine takes a good part of it

_NOTHING = frozenset[str]()
_log = logging.getLogger(__name__)


class Removal:
    """Removes and evicts models of one cache dir. Callers hold the pool's `maintenance`."""

    def __init__(
        self,
        blobs: BlobPool,
        records: Records,
        manifests: ManifestFolder,
        trees: Trees,
        spare: Spare,
        writers: Writers,
        opened: MutableMapping[str, ModelStore],
    ) -> None:
        """Nothing is removed yet.

        Args:
            blobs: all blobs of the cache dir.
            records: its database.
            manifests: its manifests.
            trees: its published trees.
            spare: disk space that is kept back for removals.
            writers: of chunks, which must not lose what they write.
            opened: the open models by digest; removed ones are taken out.
        """
        self._blobs = blobs
        self._records = records
        self._manifests = manifests
        self._trees = trees
        self._spare = spare
        self._writers = writers
        self._opened = opened
        # Models that are evicted, but not so in the records or not in all their bytes; with their values.
        self._unfinished: dict[str, float] = {}
        # Their bytes in each blob, of the ordered runs that are here, as of the last look.
        self._ordered: dict[str, tuple[RunSet, Mapping[str, int]]] = {}
        self._holed: dict[str, ModelStore] = {}  # parts of them went, and not all of their space
        self._sums = DiskSums(blobs)
        self._unused: dict[str, float] = {}  # when nobody was seen to use them, monotonic
        self.keep_spare()

    def remove_model(self, digest: str) -> int:
        """Remove a model, its tags and trees, and the blobs that no other model needs.

        Returns:
            Bytes of disk freed.

        Raises:
            Conflict: it's in use.
            NoSpace: not even the spare space was enough to delete its records; the bytes are gone.
        """
        self._refuse_pinned(digest)
        self._hide(digest)
        self._manifests.forget_manifests([digest])
        own = self._records.own_blobs(digest)
        freed = sum(self._blobs.delete_files(blob) for blob in own)
        self._records.remove_model(digest)
        self._unfinished.pop(digest, None)
        self._forget(own)
        return freed

    def evict_model(self, digest: str, value: float) -> int:
        """Remove a model's bytes that no other model needs; it stays known by its names, as `remote`.

        Args:
            digest: of the model.
            value: its value now, which raises the cache's level.

        Returns:
            Bytes of disk freed.

        Raises:
            NotFound: it isn't here.
            Conflict: it's in use.
            OSError: the disk refused the first step; nothing has changed.
        """
        if digest not in self._manifests.local:
            raise NotFound(f"model {digest[:12]} has nothing here that could go")
        self._refuse_pinned(digest)
        try:
            self._manifests.evict(digest)
        except OSError:  # a full disk may lack the block for one more name
            if not self._spare.give_up():
                raise
            self._manifests.evict(digest)
        self._unfinished[digest] = value
        return self._finish(digest)

    def is_asked(self, ref: Ref, digest: str) -> bool:
        """Whether a model was asked for by a tag that isn't set."""
        return ref in self._records.asked_of(digest)

    def forget_asked(self, ref: Ref, digest: str) -> None:
        """Forget that a model was asked for by a tag: it means that model no more. Callers needn't hold anything."""
        self._records.forget_asked(ref.tag_key, digest)

    def drop_unfinished(self, digest: str) -> None:
        """A model is here again: an eviction that couldn't be written down must not go on with its new bytes."""
        self._unfinished.pop(digest, None)

    def let_go(self, model: ModelStore, runs: RunSet) -> int:
        """Give back the disk space of some runs of a model; it isn't shown any more, and the rest is served.

        Blobs that other models need stay whole. A published file stays as it is for whoever has it mapped, or open, or
        mounted: what stays of it is copied.

        Args:
            model: whose.
            runs: that go.

        Returns:
            Bytes of disk freed by now; where a peer is still being sent some of them, the rest follows.

        Raises:
            Conflict: it's in use, perhaps by a process that has a file of it open.
            NoSpace: there is no room for a copy of what stays.
            P2PCacheError: the disk refused; what wasn't let go is still here.
        """
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self._blobs.root}"):
            self._refuse_pinned(model.digest)
            if model.arriving is not None:
                raise Conflict(f"a loader has read model {model.digest[:12]} a moment ago")
            own = set(self._records.own_blobs(model.digest))
            # Before it is hidden: a model that stays is shown as before.
            self.refuse_used(model.digest, anew=True)
            self._unpublish(model.digest)
            before = self._blobs.disk_sum(model.files)
            model.flush()
            going = model.blobs_with(runs & model.have_runs())
            # Those first of which least stays: they make room for copies.
            for number in sorted(going, key=lambda one: model.bytes_beside(one, going[one])):
                if model.files[number].id in own:
                    believe_no_longer(self._blobs, model.files[number], going[number])
            self._holed[model.digest] = model
            self._free_holes()
            return max(0, before - self._blobs.disk_sum(model.files))

    def candidates(
        self, costs: Mapping[str, float], ordered: Callable[[str], RunSet]
    ) -> list[Candidate]:
        """The models with bytes here, as the decider of evictions wants them. Callers needn't hold anything.

        Args:
            costs: of a byte of a model that is fetched again, by digest; others cost what storage does.
            ordered: gives the runs of a model that are ordered to be here.
        """
        blobs, shared = self._records.all_blobs(), self._records.shared_blobs()
        self._sums.keep_only(blobs.keys())
        found = []
        for row in self._records.model_rows():
            if (digest := row.digest) in self._manifests.local:
                needs, others = blobs.get(digest, {}), shared.get(digest, _NOTHING)
                kept = self.ordered_bytes(digest, ordered(digest))
                here = self._sums.bytes_of(digest, needs, others, kept)
                cost = costs.get(digest, COST_STORAGE)
                found.append(
                    Candidate(digest, here, row.as_uses, cost, ordered_bytes=sum(kept.values()))
                )
        return found

    def shows(self, digest: str) -> bool:
        """Whether people see a model, or some of its files, in a tree."""
        return any(self._trees.exists(tree) for tree in self._trees.trees(digest))

    def ordered_bytes(self, digest: str, ordered: RunSet) -> Mapping[str, int]:
        """Bytes of each blob of a model that are here, and ordered to be; none of a model that isn't open.

        Args:
            digest: of the model.
            ordered: runs of it.
        """
        model = self._opened.get(digest) if ordered else None
        if model is None:
            return {}
        runs = ordered & model.have_runs()
        known = self._ordered.get(digest)
        if known is None or known[0] != runs:
            found = {
                model.files[number].id: sum(map(model.files[number].lengths.__getitem__, positions))
                for number, positions in model.blobs_with(runs).items()
            }
            known = self._ordered[digest] = runs, found
        return known[1]

    def free_holes(self, model: ModelStore) -> None:
        """Give back the disk space of all that isn't proved of a model: a crash may have left some of it."""
        with self._blobs.maintenance, cache_errors(self._blobs, f"cache dir {self._blobs.root}"):
            if not model.pins and any(has_holes_to_free(blob) for blob in model.files):
                self._holed[model.digest] = model
                self._free_holes()

    def _free_holes(self) -> None:
        for digest, model in list(self._holed.items()):
            if model.pins:  # somebody fetches it again
                continue
            own = set(self._records.own_blobs(digest)) if not model.closed else set[str]()
            blobs = [blob for blob in model.files if blob.id in own]
            flush_blobs(self._blobs, blobs)
            if all([free_holes(self._blobs, self._writers, blob) for blob in blobs]):  # noqa: C419  of each blob what can go now
                del self._holed[digest]

    def _finish(self, digest: str) -> int:
        self._hide(digest)
        own = self._records.own_blobs(digest)
        freed = sum(self._blobs.delete_files(blob) for blob in own)
        try:
            self._records.evict_model(digest, self._unfinished[digest], time.time())
            self._forget(own)
        except (NoSpace, Busy) as error:  # the bytes are gone; `keep_spare` tries again
            _log.warning(
                "model %s is evicted, which can't be written down yet: %s", digest[:12], error
            )
        else:
            del self._unfinished[digest]
        return freed

    def users_of(self, digests: Collection[str]) -> Users:
        """See `ModelUsers.of`. What it says holds for a moment, in which several models may go."""
        users, now = ModelUsers(self._blobs, self._records).of(digests), time.monotonic()
        fresh = {digest: at for digest, at in self._unused.items() if now - at < LOOK_LASTS_S}
        self._unused = fresh | dict.fromkeys(set(digests) - users.held.keys(), now)
        return users

    def refuse_used(self, digest: str, *, anew: bool = False) -> None:
        """Check that no other process of this machine is seen to have a file of a model open or mapped. It blocks.

        Args:
            digest: of the model.
            anew: look now, even if `users_of` did so a moment ago.

        Raises:
            Conflict: a process has.
        """
        if not anew and time.monotonic() - self._unused.get(digest, -inf) < LOOK_LASTS_S:
            return  # who opens a file now keeps it, though it goes
        if who := ModelUsers(self._blobs, self._records).of([digest]).held.get(digest):
            raise Conflict(f"model {digest[:12]} may be in use: {who}")

    def _refuse_pinned(self, digest: str) -> None:
        if self._is_pinned(digest):
            raise Conflict(f"model {digest[:12]} is in use; try again when that has ended")

    def _hide(self, digest: str) -> None:
        """Take a model from people's sight, and close it."""
        self._unpublish(digest)
        model = self._opened.pop(digest, None)
        if model is not None:
            model.hide_arriving()
            model.close()

    def _unpublish(self, digest: str) -> None:
        for ref in self._records.tags_of(digest):
            self._trees.remove_link(ref)
        for tree in self._trees.trees(digest):
            self._trees.remove(tree)

    def prune(
        self,
        models: Collection[ModelInfo],
        *,
        dry_run: bool,
        all_unused: bool,
        among: Collection[str] | None,
        users: Users,
    ) -> Pruned:
        """Remove models that no tag names, and blobs that no model needs.

        Args:
            models: all that are known here.
            dry_run: only plan.
            all_unused: remove every model that isn't in use, tagged or not.
            among: only these digests; None: all. Pinned ones stay.
            users: other processes' use of models, which are left alone, too.
        """
        due = [
            model for model in models
            if (among is None or model.digest in among)
            and not self._is_pinned(model.digest)
            and (all_unused or not model.tags)
        ]  # fmt: skip
        victims = [model for model in due if model.digest not in users.held]
        kept = [f"{m.called}: {users.held[m.digest]}" for m in due if m.digest in users.held]
        needed = self._records.named_blobs()
        orphans = [blob for blob, _ in self._blobs.names() if blob not in needed]
        removed = [model.called for model in victims] + [f"unnamed blob {b}" for b in orphans]
        if dry_run:
            planned = self._bytes_without({model.digest for model in victims})
            return Pruned(removed, planned, kept, users.unsure)
        freed = sum(self.remove_model(model.digest) for model in victims)
        freed += sum(self._blobs.delete_files(blob) for blob in orphans)
        self._forget(orphans)
        return Pruned(removed, freed, kept, users.unsure)

    def keep_spare(self) -> None:
        """Keep a little disk space back again, if there is any; finish what a full disk left half done."""
        with self._blobs.lock:
            self._spare.keep()
        for digest in list(self._unfinished):
            try:
                self._finish(digest)
            except P2PCacheError as error:
                _log.warning("the eviction of model %s isn't finished: %s", digest[:12], error)
        self._free_holes()

    def _is_pinned(self, digest: str) -> bool:
        model = self._opened.get(digest)
        return model is not None and model.pins > 0

    def _bytes_without(self, victims: Collection[str]) -> int:
        """Bytes of disk that would be free without these models and without unneeded blobs."""
        kept: set[str] = set()
        for digest, blobs in self._records.all_blobs().items():
            if digest not in victims:
                kept.update(blobs)
        return sum(self._blobs.held_bytes(b) for b, _ in self._blobs.names() if b not in kept)

    def _forget(self, blobs: Collection[str]) -> None:
        self._records.remove_proofs(blobs)
        with self._blobs.lock:
            self._spare.keep()
