"""Keeps what operators asked for: reads intents, looks at the nodes, sends each its orders."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from math import inf
from operator import itemgetter

import msgspec

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.format.keep_record import KeepRecord
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.settings import REMEMBERED_S
from p2pcache.core.pool.intent import Key, PoolNode
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.selector import Selector, Traits
from p2pcache.core.pool.settings import GRACE_S
from p2pcache.core.protocol.keep_orders import (
    MAX_DETAIL,
    MAX_KEPT,
    REFUSALS,
    KeptReport,
    split,
)
from p2pcache.core.protocol.messages import MAX_FIGURE, ToAgent, unfit_text
from p2pcache.errors import NotFound, P2PCacheError, Unreachable, UsageError
from p2pcache.ids import NodeId, Ref, format_node, is_digest, parse_node
from p2pcache.io import pools
from p2pcache.io.clock import Clock
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.pool.admission import Admission
from p2pcache.tracker.pool.kept_rows import KeptRows
from p2pcache.tracker.pool.repair_notes import RepairNotes
from p2pcache.tracker.pool.requests import (
    DrainRequest,
    KeepRequest,
    parsed,
    record_of,
    wish_text,
)
from p2pcache.tracker.pool.wishes import Wishes

_log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the nodes
READ_S = 30.0  # between two reads of intents and tags; what goes through us is known at once
READ_AGAIN_S = 5.0  # after a read that failed
# From a connection to its first list. A node lets go of models that its list lacks, so it must have said all before.
HEAR_S = 3.0
CALM_S = 30.0  # between two reviews of what is true already: a node may have lost parts
REST = 4.0  # times as long as the last look took, until the next one: others need the processor
MAX_NAMED = 5  # ids in one line of text
MAX_REPORTS = 10_000  # that wait for the next look; of more the oldest are dropped, and come again


class Keeping:
    """The keeper's driver. Each step runs alone; the steps that count take threads."""

    def __init__(
        self,
        tracking: TrackerState,
        catalog: Catalog,
        clock: Clock,
        *,
        admission: Admission,
        grace_s: float = GRACE_S,
    ) -> None:
        """Nothing is read or sent yet.

        Args:
            tracking: what the members have.
            catalog: the origin.
            clock: of deadlines.
            admission: of copies, under the quotas of their namespaces.
            grace_s: after a node fell silent, until its parts are made again.
        """
        self.send_to: Callable[[int, ToAgent], bool] = lambda _node, _message: False
        """Sends a member a message; False: it isn't connected."""
        self.may_write: Callable[[], bool] = lambda: True  # whether we are the active tracker
        self.trouble: P2PCacheError | None = None  # why intents couldn't be read
        self.wishes = Wishes(catalog)
        self.keeper = Keeper(clock.now(), grace_s=grace_s)
        self._tracking = tracking
        self._catalog = catalog
        self._admission = admission
        self._clock = clock
        self._turn = asyncio.Lock()
        self._reports: deque[tuple[NodeId, KeptReport]] = deque(maxlen=MAX_REPORTS)
        self._dirty: set[NodeId] = set()  # whose list isn't what it was sent
        self._new: dict[NodeId, float] = {}  # until when a new connection is listened to first
        self._moved = False  # places of all that is kept may change
        self._read_at = self._wake_at = self._look_at = -inf
        self._reviewed: dict[Key, float] = {}
        self._repairs = RepairNotes(self.wishes)
        self.told = KeptRows(
            tracking, self.wishes, self.keeper, self._repairs, clock, chosen=self._chosen
        )

    # -- what happens --------------------------------------------------------------------------------

    def on_connected(self, node: NodeId) -> None:
        """A member's connection is new: it gets its list when it has told what it has."""
        self._new[node] = self._clock.now() + HEAR_S

    def on_kept(self, node: NodeId, said: KeptReport) -> None:
        """A member tells how its orders stand."""
        self._reports.append((node, said))

    async def look(self) -> None:
        """Do what is due."""
        if self._clock.now() < self._look_at or not self.may_write():
            return
        async with self._turn:
            began = self._clock.now()
            await self._look(began)
            ended = self._clock.now()
            self._look_at = ended + REST * (ended - began)

    async def keep(self, text: str) -> dict[str, object]:
        """Change how a model is kept; returns how that stands.

        Raises:
            UsageError: the text is no wish.
            NoSpace: all that is kept of the namespace would take more than its quota.
            NotFound, OriginUnavailable, Unreachable: the model can't be looked up, or the intent not written.
        """
        asked = parsed(text, KeepRequest, "keep")
        ref = Ref.parse(asked.ref)
        wanted = record_of(asked, ref)
        self._need_writer()
        if wanted.lasts:
            await self._catalog.tag(ref)
        async with self._turn:
            await self._need_read()
            if not wanted.lasts and ref not in self.wishes.keeps:
                raise NotFound(f"{ref.short} isn't kept; `p2pcache keep --list` shows what is")
            if wanted.lasts and ref.namespace in self._admission.quotas:
                await self._need_quota(ref, wanted)
            await self.wishes.change_keep(
                ref,
                lambda before: msgspec.structs.replace(
                    wanted,
                    generation=before.generation,
                    since=before.since,
                    repairs=before.repairs if wanted.lasts else (),
                ),
            )
            _log.info("keep %s: %s", ref.short, wish_text(wanted) if wanted.lasts else "off")
            await self._resolve()
            now = self._clock.now()
            self._see_nodes(now)
            if wanted.lasts:
                await self._review([ref.tag_key], now)
            self._send(now)
        return {"ref": ref.short, "off": True} if not wanted.lasts else self.told.row(ref)

    async def drain_node(self, text: str) -> dict[str, object]:
        """Begin to empty a node, or end that. Others take over at once from one that is gone: it isn't waited for.

        Raises:
            UsageError: the text is none, or the name is that of several nodes.
            NotFound: there is no such node.
            OriginUnavailable, Unreachable: the intent can't be written.
        """
        asked = parsed(text, DrainRequest, "drain")
        node = self._node_named(asked.node)
        self._need_writer()
        async with self._turn:
            await self._need_read()
            name = self.told.name(node)
            await self.wishes.change_drain(node, name, draining=not asked.undo)
            _log.info("drain %s (%s): %s", format_node(node), name, "off" if asked.undo else "on")
            await self._look(self._clock.now())
        state, kept = self.told.node_state(node)
        return {"node": format_node(node), "name": name, "state": state, "kept_bytes": kept,
                "here": node in self._tracking.registry.nodes}  # fmt: skip

    # -- what is told ----------------------------------------------------------------------------------

    async def rows(self) -> dict[str, object]:
        """Everything that is kept, and how it stands.

        Raises:
            P2PCacheError: the intents can't be read.
        """
        if self._catalog.url and self._unseen():
            async with self._turn:
                await self._need_read()
                if self._unseen():
                    await self._see_wishes()
        return self.told.kept_and_drained()

    # -- inside ------------------------------------------------------------------------------------

    async def _look(self, now: float) -> None:
        self._see_nodes(now)
        if now >= self._read_at and self._catalog.url:
            await self._read(now)
            if self.trouble is None:
                self._moved = await self._resolve() or self._moved
        while self._reports:
            node, said = self._reports.popleft()
            self._moved = self._hear(node, said, now) or self._moved
        nodes = self._tracking.registry.nodes
        late = [n for n, at in self._new.items() if at <= now]
        heard = [n for n in late if n not in nodes or not nodes[n].waiting]
        for node in heard:
            del self._new[node]
        self._dirty.update(heard)
        moved, self._moved = self._moved or bool(heard) or now >= self._wake_at, False
        self._wake_at = self.keeper.next_wakeup(now)
        due = [
            key for key, intent in sorted(self.keeper.intents.items(), key=itemgetter(0))
            if moved or intent.is_restless or now >= self._reviewed.get(key, -inf) + CALM_S
        ]  # fmt: skip
        await self._review(due, now)
        self._send(now)
        await self._repairs.write_one(now)

    def _see_nodes(self, now: float) -> None:
        drained = self.wishes.drains.keys()
        moved = self.keeper.on_nodes(self._pool_nodes(), now, drained=drained)
        self._moved = moved or self._moved

    async def _review(self, keys: list[Key], now: float) -> None:
        for key in keys:
            intent = self.keeper.intents.get(key)
            if intent is None:
                continue  # its meaning couldn't be found out
            self._reviewed[key] = now
            members = self._members(intent.wish.digest)
            haves = {node: record.delivers for node, record in members.items()}
            void = [node for node, record in members.items() if record.void]
            changed = await pools.WORK.run(self.keeper.review, key, haves, now, void)
            self._dirty |= changed
            if intent.progress is not None:
                # Just after a takeover what lacks is at nodes that are about to come.
                missing = intent.progress.missing_bytes if self.keeper.settled(now) else 0
                self._repairs.on_progress(key, missing, round(self._clock.wall(), 1), now)

    async def _read(self, now: float) -> None:
        try:
            await self.wishes.read_intents()
        except P2PCacheError as error:
            if str(error) != str(self.trouble or ""):
                _log.warning("what is to be kept can't be read: %s", error)
            self.trouble, self._read_at = error, now + READ_AGAIN_S
        else:
            self.trouble, self._read_at = None, now + READ_S

    async def _resolve(self) -> bool:
        news = await self.wishes.tell_keeper(self.keeper)
        for gone in self._reviewed.keys() - self.keeper.intents.keys():
            del self._reviewed[gone]
            self._repairs.on_wish_over(gone)
            self._dirty |= self._tracking.registry.nodes.keys()  # those that kept it, among them
        return news

    def _send(self, now: float) -> None:
        # Without any record it may be the wrong storage, and an empty list ends all orders.
        if not (self.wishes.was_read and self.wishes.any_record and self.keeper.settled(now)):
            return
        for node in sorted(self._dirty - self._new.keys()):
            record = self._tracking.registry.nodes.get(node)
            if record is None or not record.connected or not record.said.keeps:
                continue
            for part in split(self.keeper.orders(node)):
                self.send_to(node, part)
        self._dirty &= self._new.keys()

    def _hear(self, node: NodeId, said: KeptReport, now: float) -> bool:
        moved = False
        for kept in said.kept[:MAX_KEPT]:
            fit = kept.refused in REFUSALS or not kept.refused
            shown = len(kept.detail) <= MAX_DETAIL and not unfit_text(kept.detail)
            if is_digest(kept.manifest_digest) and fit and shown:
                moved = self.keeper.on_report(node, kept, now) or moved
                if 0 <= kept.fetched_bytes <= MAX_FIGURE:
                    keys = self._meant_by(kept.manifest_digest)
                    self._repairs.on_kept(node, kept, keys, self._clock.wall(), now)
        return moved

    def _meant_by(self, digest: str) -> list[Key]:
        intents = self.keeper.intents.items()
        return [key for key, intent in intents if intent.wish.digest == digest]

    def _pool_nodes(self) -> dict[NodeId, PoolNode]:
        return {
            node: PoolNode(
                Traits(n.said.name or format_node(node), n.member.site, n.member.rack,
                       n.said.role or "cache", n.said.labels),
                n.room_bytes, n.said.link_bytes_s,
            )
            for node, n in self._tracking.registry.nodes.items() if n.connected and n.said.keeps
        }  # fmt: skip

    def _members(self, digest: str) -> dict[NodeId, MemberRecord]:
        swarm = self._tracking.swarms.get(digest)
        nodes = self._tracking.registry.nodes
        return {} if swarm is None else {
            node: record for node, record in swarm.roster.members.items()
            if nodes[node].connected and nodes[node].said.keeps
        }  # fmt: skip

    def _need_writer(self) -> None:
        if not self.may_write():
            raise Unreachable("this tracker may not be the active one any more; try again")

    async def _need_quota(self, ref: Ref, wanted: KeepRecord) -> None:
        digest, size = await self.wishes.meant_by(ref)
        others = Counter[str]()
        for other, record in self.wishes.keeps.items():
            if other.namespace == ref.namespace and other != ref:
                known = self.wishes.digests.get(other, "")
                others[known] += self._copies(record) * self.wishes.sizes.get(known, 0)
        self._admission.admit_kept(ref.namespace, digest, self._copies(wanted) * size, others)

    def _copies(self, record: KeepRecord) -> int:
        return self._chosen(record) if record.everywhere else record.copies

    def _chosen(self, record: KeepRecord) -> int:
        chosen = Selector.parse(record.nodes)
        return sum(chosen.chooses(node.traits) for node in self._pool_nodes().values())

    def _unseen(self) -> bool:
        """Whether there are wishes that weren't looked at yet: this tracker is new."""
        return not self.wishes.was_read or bool(self.told.unseen())

    async def _see_wishes(self) -> None:
        self._moved = await self._resolve() or self._moved
        now = self._clock.now()
        self._see_nodes(now)
        await self._review(self.told.unseen(), now)

    async def _need_read(self) -> None:
        """Before a change: what was there before us is known, and isn't taken for new."""
        if not self.wishes.was_read:
            await self.wishes.read_intents()

    def _node_named(self, text: str) -> NodeId:
        nodes = self._tracking.registry.nodes
        gone = self._tracking.registry.departed_since(self._clock.now() - REMEMBERED_S)
        named = {node for node, record in nodes.items() if record.said.name == text}
        named |= {node for node, record in self.wishes.drains.items() if record.name == text}
        named = named or {node for node, record in gone.items() if record.said.name == text}
        if not named:
            try:
                node = parse_node(text)
            except UsageError:
                node = 0
            named = {node} & (nodes.keys() | self.wishes.drains.keys() | gone.keys())
        if len(named) > 1:
            ids = ", ".join(sorted(map(format_node, named))[:MAX_NAMED])
            raise UsageError(f"{len(named)} nodes have this name; give the id of one: {ids}")
        if not named:
            raise NotFound(
                "no node has this name or id, nor had it within the last hour; `p2pcache nodes` lists all. Parts "
                "of a node that is gone are made again on others without a drain"
            )
        return named.pop()
