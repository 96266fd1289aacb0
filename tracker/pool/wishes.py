"""What operators asked for, as the origin has it, with what each name means now."""

import logging
import time
from array import array
from collections.abc import Callable
from typing import TypeVar

import msgspec

from p2pcache.core.format import manifest as manifests
from p2pcache.core.format.keep_record import DrainRecord, KeepRecord, Repair
from p2pcache.core.format.layout import Layout
from p2pcache.core.pool.intent import Wish
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.repairs import merged
from p2pcache.core.pool.selector import Selector
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.ids import NodeId, Ref
from p2pcache.io import pools
from p2pcache.io.intents.in_origin import Intents, drain_key, keep_key
from p2pcache.tracker.catalog import Catalog

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TOLD = 5  # names in one line of the log
ORIGIN_S = 30.0  # for all intents to be read, or one to be written


class Wishes:
    """The intents of the cluster.

    An intent ends by its record, which says so, never by the record's absence: a share that isn't mounted looks empty.

    Invariant: after the first read `keeps` and `drains` are what the origin had at the last good one, and what was
    written since.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Nothing is read yet."""
        self.keeps: dict[Ref, KeepRecord] = {}
        self.drains: dict[NodeId, DrainRecord] = {}
        self.digests: dict[Ref, str] = {}  # what the names mean, as far as that is known
        self.sizes: dict[str, int] = {}  # bytes of models, by manifest digest
        self.troubles: dict[Ref, str] = {}  # why a name's meaning isn't known, or is old
        self.was_read = False
        self.any_record = False  # the origin has at least one: it is the one that we mean
        self._catalog = catalog
        self._asked = 0
        self._told_lost = False
        self._older: dict[Ref, str] = {}  # those of the first read, with their first digest or ""

    async def read_intents(self) -> None:
        """Read all intents.

        Raises:
            P2PCacheError: they can't be read; then those that were read last hold.
        """
        found = await self._ask("intents", Intents.read_all)
        for why in found.bad.values():
            _log.warning("an intent can't be read, and is left as it was: %s", why)
        lasting = {r: k for r, k in self.keeps.items() if keep_key(r) not in found.over}
        lost = [r.short for r in lasting if r not in found.keeps and keep_key(r) not in found.bad]
        if lost and not self._told_lost:
            _log.warning(
                "storage has no record any more of what is kept, which goes on: %s (`p2pcache keep REF --off` ends it)",
                ", ".join(lost[:MAX_TOLD]),
            )  # fmt: skip
        self._told_lost = bool(lost)
        self.keeps = {**lasting, **found.keeps}
        drained = {n: d for n, d in self.drains.items() if drain_key(n) not in found.over}
        self.drains = {**drained, **found.drains}
        self.any_record = self.any_record or bool(found.keeps or found.bad or found.over)
        if not self.was_read:
            self._older = dict.fromkeys(self.keeps, "")
            self.was_read = True

    async def tell_keeper(self, keeper: Keeper) -> bool:
        """Tell the keeper what is wished of which model; returns whether anything is news.

        A name whose meaning can't be found out keeps the one before.
        """
        known = {Ref(*key) for key in keeper.intents}
        news = [keeper.on_wish(ref.tag_key, None) for ref in known - self.keeps.keys()]
        for ref, record in sorted(self.keeps.items()):
            try:
                digest = await self._meaning(ref)
                news.append(await self._wish(ref, record, digest, keeper))
                self.digests[ref] = digest
            except P2PCacheError as error:
                self.troubles[ref] = str(error)
        for gone in self.digests.keys() - self.keeps.keys():
            del self.digests[gone]
        self._older = {ref: digest for ref, digest in self._older.items() if ref in self.keeps}
        used = set(self.digests.values())
        self.sizes = {digest: size for digest, size in self.sizes.items() if digest in used}
        self.troubles = {ref: why for ref, why in self.troubles.items() if ref in self.keeps}
        return any(news)

    async def _meaning(self, ref: Ref) -> str:
        """The digest that a name means now, or meant before if that can't be found out."""
        try:
            digest = (await self._catalog.tag(ref)).digest
        except P2PCacheError as error:
            if ref not in self.digests:
                raise
            self.troubles[ref] = str(error)
            return self.digests[ref]
        self.troubles.pop(ref, None)
        return digest

    async def meant_by(self, ref: Ref) -> tuple[str, int]:
        """The model that a name means now: its manifest's digest, and its bytes, each distinct one once."""
        digest = (await self._catalog.tag(ref)).digest
        if digest not in self.sizes:
            encoded = await self._catalog.manifest(digest)
            return digest, sum(await pools.WORK.run(_run_bytes, encoded, digest))
        return digest, self.sizes[digest]

    async def change_keep(self, ref: Ref, change: Callable[[KeepRecord], KeepRecord]) -> None:
        """Write how a model is to be kept; `change` makes it of what is there, all but generation and time."""

        def stamped(before: KeepRecord) -> KeepRecord:
            wanted = change(before)
            if wanted == before:
                return before
            return msgspec.structs.replace(wanted, generation=before.generation + 1, since=_now())

        record = await self._ask("keep", lambda intents: intents.change_keep(ref, stamped))
        self.any_record = True
        self.keeps.pop(ref, None)
        if record.lasts:
            self.keeps[ref] = record

    async def write_repairs(self, ref: Ref, ended: tuple[Repair, ...]) -> None:
        """Write the repairs that have ended beside the wish: they outlast this tracker."""

        def noted(before: KeepRecord) -> KeepRecord:
            known = merged(before.repairs, ended)
            if not before.lasts or known == before.repairs:
                return before
            generation = before.generation + 1
            return msgspec.structs.replace(before, generation=generation, repairs=known)

        record = await self._ask("repairs", lambda intents: intents.change_keep(ref, noted))
        if record.lasts:
            self.keeps[ref] = record

    async def change_drain(self, node: NodeId, name: str, *, draining: bool) -> None:
        """Write whether a node is to be emptied."""

        def stamped(before: DrainRecord) -> DrainRecord:
            if before.draining == draining:
                return before
            return DrainRecord(before.generation + 1, draining, name, _now())

        record = await self._ask("drain", lambda intents: intents.change_drain(node, stamped))
        self.drains.pop(node, None)
        if record.lasts:
            self.drains[node] = record

    async def _ask(self, what: str, work: Callable[[Intents], T]) -> T:
        """Do something with the origin's intents. If that fails, models are read all the same."""
        self._asked += 1  # each call is its own
        return await self._catalog.ask_origin(
            (what, str(self._asked)), lambda repo: work(Intents(repo.origin)), ORIGIN_S, telling=False
        )  # fmt: skip

    async def _wish(self, ref: Ref, record: KeepRecord, digest: str, keeper: Keeper) -> bool:
        first = self._older.get(ref)
        if first == "":
            first = self._older[ref] = digest
        try:
            selector = Selector.parse(record.nodes)
        except UsageError as error:
            raise UsageError(f"its record: {error}") from None
        wish = Wish(
            digest, 0 if record.everywhere else record.copies, record.whole or record.everywhere,
            selector, older=first == digest,
        )  # fmt: skip
        known = keeper.intents.get(ref.tag_key)
        run_bytes: array[int] = array("I")
        if known is None or not known.wish.is_cut_as(wish):
            encoded = await self._catalog.manifest(digest)
            run_bytes = await pools.WORK.run(_run_bytes, encoded, digest)
            self.sizes[digest] = sum(run_bytes)
        return keeper.on_wish(ref.tag_key, wish, run_bytes)


def _run_bytes(encoded: bytes, digest: str) -> "array[int]":
    return Layout(manifests.decode(encoded, digest), digest).run_bytes


def _now() -> float:
    return round(time.time(), 3)
