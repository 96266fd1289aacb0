"""All that a tracker knows and decides: members, swarms, leases. Messages go in, a list of outputs comes out.

The daemon feeds it messages from WebSockets, the simulator from virtual ones. Its state is soft: a new tracker learns
it all from the members' announcements. It doesn't answer questions (`Ask`): they need the origin.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import inf

from p2pcache.core.coordinator import settings
from p2pcache.core.coordinator.cluster_list import ClusterList
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.swarm_state import SwarmTracker, TrackerContext, check_state
from p2pcache.core.membership.member_record import Reach
from p2pcache.core.membership.outputs import Close, Event, Notice, Output, PullEnded, ReadRun, Send
from p2pcache.core.membership.reachability import Dial, DialBacks
from p2pcache.core.membership.registry import Node, Registry
from p2pcache.core.membership.replica_placement import ReplicaPlacement
from p2pcache.core.membership.settings import MOST_NODES
from p2pcache.core.membership.usage_ledger import PullEnd
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.silence import doubt_s
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import Cancelled, RemoteProtocolError
from p2pcache.ids import NodeId


class TrackerState:
    """All that a tracker knows and decides.

    Invariants: a swarm exists if and only if it has members; a node's `digests` are exactly the swarms whose rosters
    list it; a swarm has a turn, or its next wakeup, or an earlier time, is in `_due`; a node of which states wait has a
    turn.
    """

    def __init__(
        self,
        *,
        epoch: int,
        members: MemberSettings,
        leases: LeaseSettings,
        origin: str = "",
        remembered: Mapping[str, Iterable[NodeId]] | None = None,
    ) -> None:
        """A tracker that knows nothing but its notes.

        `epoch`: random 63 bits, new at each start, or our tenure's generation; also the seed of all dice. `origin`: URL
        told to agents that have none configured. `remembered`: members of each swarm before a restart.
        """
        self.epoch = epoch
        self.may_grant: Callable[[], bool] | None = None  # our tenure's word; None: there is none
        self.registry = Registry(members)
        self.dials = DialBacks()
        self.swarms: dict[str, SwarmTracker] = {}
        self._out: list[Output] = []  # since the last call ended
        self._context = TrackerContext(
            epoch, members, leases, self.registry.nodes, self.dials, self._out
        )
        self._cluster = ClusterList(self._out)
        self._listens_until = -inf  # it grants nothing before
        self._origin = origin
        self._remembered = {digest: set(nodes) for digest, nodes in (remembered or {}).items()}
        self._due: list[tuple[float, str]] = []  # when swarms have something to do
        # Swarms to settle, and nodes of which the next state is to be taken in: first come, first served.
        self._turns: OrderedDict[str | NodeId, None] = OrderedDict()
        self._past, self._past_ends = Counter[str](), Counter[str]()  # of swarms that are gone

    # -- what happens ----------------------------------------------------------------------------------

    def handle(self, node: NodeId, message: m.ToTracker, now: float) -> list[Output]:
        """Take in one member's message.

        Raises:
            RemoteProtocolError: the message breaks a rule. Drop the sender's connection.
        """
        if isinstance(message, m.Announce):
            self._announce(node, message, now)
            return self._outputs(now)
        record = self.registry.on_sign_of_life(node, now)
        if record is None:
            return [Close(node, "announce yourself first")]
        match message:
            case m.Heartbeat():
                self.registry.on_heartbeat(node, message)
                self._hear(record, message.swarms, now)
                for ended in message.ended[: m.MAX_ENDED]:
                    self._on_pull_ended(node, ended)
            case m.Enter(said):
                self._take_in_waiting(record, said.digest, now)
                self._take_in(record, said, now, entered=True)
                self._hurry(said.digest)
            case m.Exit(digest):
                record.waiting.pop(digest, None)
                self._leave(record, digest, now)
            case m.Leaving():
                self._forget(node, now, lost=False)
            case m.LeaseReport() | m.Stuck() | m.Blame():
                self._take_in_waiting(record, message.digest, now)
                if swarm := self.swarms.get(message.digest):
                    swarm.on_message(node, message, now)
                    self._hurry(message.digest)
        return self._outputs(now)

    def on_disconnected(self, node: NodeId, now: float) -> list[Output]:
        """A member's connection broke; it may come back within the grace period."""
        if record := self.registry.on_disconnected(node, now):
            for digest in sorted(record.digests):
                self.swarms[digest].book.set_credit(node, 0)  # what it reads goes on
                self._turns[digest] = None
        return self._outputs(now)

    def on_stood_still(self, now: float) -> None:
        """This process did nothing for a while: it grants nothing yet, for what waits in its sockets is old."""
        self._listens_until = now + settings.HOLD_S

    def on_dial_ended(self, dial: Dial, now: float, *, reached: bool) -> list[Output]:
        """A `Dial` has ended."""
        self.dials.on_ended(dial, reached=reached, now=now)
        return self._outputs(now)

    def on_witness_report(self, asked: ReadRun, report: WitnessReport, now: float) -> list[Output]:
        """A `ReadRun` has ended."""
        if swarm := self.swarms.get(asked.digest):
            swarm.doubts.on_witness_report(asked.node, asked.run, report, now)
            self._turns[asked.digest] = None
        return self._outputs(now)

    def tick(self, now: float) -> list[Output]:
        """Do what is due: expiry, batches, polls, dials. If it is much, the next wakeup is now."""
        for node in self.registry.expired(now):
            self._forget(node, now, lost=True)
            self._out.append(Close(node, "no sign of life for too long"))
        self._out += self.dials.step(now)
        return self._outputs(now)

    def next_wakeup(self) -> float:
        """When `tick` wants to be called next (may be in the past: then at once); inf: never, as it stands."""
        if self._turns:
            return -inf
        swarms_at = self._due[0][0] if self._due else inf
        return min(self.registry.look_at, self.dials.next_wakeup(), swarms_at)

    # -- for people and records --------------------------------------------------------------------

    def totals(self) -> Counter[str]:
        """Counts over all swarms, past ones included: they never shrink."""
        return sum((swarm.counts() for swarm in self.swarms.values()), self._past)

    def lease_ends(self) -> Counter[str]:
        """Leases that are over, by why: the same."""
        return sum((swarm.book.ends for swarm in self.swarms.values()), self._past_ends)

    def remembered_members(self) -> dict[str, list[NodeId]]:
        """Members of each swarm that still wants something: what a restarted tracker waits for."""
        return {
            d: sorted(swarm.roster.members) for d, swarm in self.swarms.items() if swarm.book.free
        }

    def unreached(self) -> set[NodeId]:
        """Members that others can't dial, or couldn't lately."""
        found = {node for node, record in self.registry.nodes.items() if record.undialled}
        for swarm in self.swarms.values():
            found |= swarm.reach.lost - swarm.banned
        return found

    def check(self) -> None:
        """Assert the invariants, here and in all parts. O(everything)."""
        self.registry.check()
        self.dials.check()
        listed: dict[NodeId, set[str]] = {}
        for digest, swarm in self.swarms.items():
            swarm.check()
            assert len(swarm.roster.members)
            for node in swarm.roster.members:
                listed.setdefault(node, set()).add(digest)
            assert digest in self._turns or swarm.scheduled <= swarm.next_wakeup()
            assert swarm.scheduled == inf or (swarm.scheduled, digest) in self._due
        nodes = self.registry.nodes
        assert listed == {n: {*r.digests} for n, r in nodes.items() if r.digests}
        assert all(r.cost_bytes == sum(r.digests.values()) for r in nodes.values())
        assert self._turns.keys() >= {n for n, r in nodes.items() if r.waiting}

    def replica_placement(self, digest: str) -> ReplicaPlacement:
        """Which members have a model or are getting it, and which could be told to."""
        roster = self.swarms[digest].roster if digest in self.swarms else None
        return ReplicaPlacement.among(roster, self.registry.nodes)

    def on_warming(self, node: NodeId, digest: str) -> None:
        """A member began to fetch a model that it was told to; its next heartbeat says so, too."""
        if digest in self.swarms and (record := self.swarms[digest].roster.members.get(node)):
            record.pulls_all = True
            self.swarms[digest].roster.set_have(record, record.have)

    # -- inside ------------------------------------------------------------------------------------

    def _outputs(self, now: float) -> list[Output]:
        """Do what is due, of much the first part; returns what is to be done since the last call ended."""
        if self.dials.changed:
            self._on_dials(now)
        while self._due and self._due[0][0] <= now:
            when, digest = heapq.heappop(self._due)
            if digest in self.swarms and self.swarms[digest].scheduled == when:
                self.swarms[digest].scheduled = inf
                self._turns[digest] = None
        # A state is taken in, then its swarm is settled.
        for _ in range(2 * settings.SWARMS_AT_ONCE):
            if self._turns:
                self._take_turn(self._turns.popitem(last=False)[0], now)
        out = self._out.copy()
        self._out.clear()
        return out

    def _on_dials(self, now: float) -> None:
        """Tell swarms of which members something else is thought."""
        changed, self.dials.changed = sorted(self.dials.changed), set()
        for node in changed:
            if (record := self.registry.nodes.get(node)) is None:
                continue
            if self.dials.reach(node) is not Reach.UNREACHABLE:
                record.undialled = False
            elif record.connected and not record.undialled:
                record.undialled = True
                self._out.append(Notice(Event.UNREACHED, node))
            for digest in sorted(record.digests):
                swarm = self.swarms[digest]
                swarm.reach.review(swarm.roster.members[node], now)
                self._turns[digest] = None

    def _announce(self, node: NodeId, said: m.Announce, now: float) -> None:
        if node not in self.registry.nodes:
            self._out.append(Notice(Event.JOINED, node))
        record = self.registry.on_announced(node, said, now)
        fenced = self.may_grant is not None
        settled = m.Settled(
            self.epoch, self._origin, self._context.members.heartbeat_s, self._context.leases.ttl_s,
            fenced, doubt_s(len(self.registry.nodes)) if fenced else 0.0,
        )  # fmt: skip
        self._out.append(Send(node, settled))
        self._cluster.tell_all(node, self.registry.nodes)
        for digest in sorted(record.digests.keys() - {state.digest for state in said.swarms}):
            self._leave(record, digest, now)
        self._hear(record, said.swarms, now, announced=True)
        for swarm in self.swarms.values():
            if swarm.barrier.awaited:
                swarm.barrier.on_arrival(node, now)
                self._turns[swarm.digest] = None
        self.dials.on_announced(record.member, now)

    def _hear(
        self, record: Node, states: tuple[m.SwarmState, ...], now: float, *, announced: bool = False
    ) -> None:
        """A member told of some swarms; of many, the first ones are taken in, and the rest when others had a turn."""
        waiting = record.waiting  # of earlier lists: leases in this one are to be renewed before
        for place, said in enumerate(states[: m.MAX_TOLD]):
            _, before = waiting.get(said.digest, (said, False))
            if place < settings.SWARMS_AT_ONCE:
                waiting.pop(said.digest, None)
                self._take_in(record, said, now, announced=announced or before)
            elif said.digest in waiting or len(waiting) < m.MAX_TOLD:
                waiting[said.digest] = said, announced or before  # it keeps its place
        if waiting:
            self._turns[record.member.node] = None

    def _take_turn(self, what: str | NodeId, now: float) -> None:
        """Settle a swarm, or take in a member's next state: nobody waits for another one's long list."""
        if isinstance(what, str):
            if what in self.swarms:
                self._settle(self.swarms[what], now)
        elif (record := self.registry.nodes.get(what)) and record.waiting:
            try:
                self._take_in_waiting(record, next(iter(record.waiting)), now)
            except RemoteProtocolError as error:
                record.waiting.clear()
                self._out.append(Close(what, str(error)))
            if record.waiting:
                self._turns[what] = None

    def _hurry(self, digest: str) -> None:
        """A swarm's member waits for what follows; others only tell how they stand."""
        self._turns[digest] = None
        self._turns.move_to_end(digest, last=False)

    def _take_in_waiting(self, record: Node, digest: str, now: float) -> None:
        """Take in what a member told of a swarm, if that waits."""
        if digest in record.waiting:
            said, announced = record.waiting.pop(digest)
            self._take_in(record, said, now, announced=announced)

    def _take_in(
        self, record: Node, said: m.SwarmState, now: float,
        *, announced: bool = False, entered: bool = False,
    ) -> None:  # fmt: skip
        swarm = self._join(record, said, now)
        swarm.on_state(record.member, said, now, announced=announced, entered=entered)
        self._turns[said.digest] = None

    def _on_pull_ended(self, node: NodeId, said: m.EndedPull) -> None:
        """A member told how a pull ended. Nothing is decided by it."""
        ends = {0: PullEnd.COMPLETE, Cancelled.exit_code: PullEnd.CANCELLED}
        swarm = self.swarms.get(said.digest)
        share = swarm.share_of(node) if swarm is not None else 0.0
        self._out.append(PullEnded(node, said, ends.get(said.code, PullEnd.FAILED), share))

    def _join(self, record: Node, said: m.SwarmState, now: float) -> SwarmTracker:
        """The swarm that a member speaks of, made if it is the first; checks what identifies it."""
        check_state(said, self._context.leases.most_in_flight)
        swarm = self.swarms.get(said.digest)
        if swarm is not None and swarm.roster.run_count != said.run_count:
            raise RemoteProtocolError(
                f"{said.run_count} runs for a model that others say has {swarm.roster.run_count}"
            )
        if swarm is None:
            remembered = self._remembered.pop(said.digest, set()) - self.registry.nodes.keys()
            swarm = SwarmTracker(said.digest, said.run_count, self._context, now, remembered)
            self.swarms[said.digest] = swarm
        named = (
            settings.NAMED_BYTES * len(said.known[:MOST_NODES]) if now < swarm.barrier.until else 0
        )
        record.charge(said.digest, settings.SWARM_BYTES + said.run_count, named)
        while record.cost_bytes > settings.MAX_MEMBER_BYTES and len(record.digests) > 1:
            self._leave(record, next(iter(record.digests)), now)  # it told of it the longest ago
        return swarm

    def _leave(self, record: Node, digest: str, now: float, end: PullEnd | None = None) -> None:
        """A member takes part in a swarm no longer; `end`: how its pull ended, if it can't tell that itself."""
        if digest not in record.digests:
            return
        record.cost_bytes -= record.digests.pop(digest)
        swarm = self.swarms[digest]
        swarm.on_left(record.member.node, end, now)
        self._turns[digest] = None
        if not len(swarm.roster.members):
            self._past += swarm.counts()
            self._past_ends += swarm.book.ends
            del self.swarms[digest]

    def _forget(self, node: NodeId, now: float, *, lost: bool) -> None:
        record = self.registry.forget(node, now, lost=lost)
        self.dials.forget(node)
        if record is not None:
            self._out.append(Notice(Event.LOST if lost else Event.LEFT, node))
            self._cluster.on_left(node)
            for digest in sorted(record.digests):
                self._leave(record, digest, now, PullEnd.LOST if lost else PullEnd.LEFT)
            record.digests = {}  # an emptied dict keeps its table, and the record is remembered

    def _settle(self, swarm: SwarmTracker, now: float) -> None:
        """Let a swarm do what is due, and note its next wakeup."""
        listens = now < self._listens_until
        swarm.step(now, grants=not listens and (self.may_grant is None or self.may_grant()))
        when = min(swarm.next_wakeup(), self._listens_until if listens else inf)
        if when < swarm.scheduled:
            swarm.scheduled = when
            heapq.heappush(self._due, (when, swarm.digest))
