"""All that a tracker knows and decides: members, swarms, leases. Messages go in, a list of outputs comes out.

The daemon feeds it messages from WebSockets, the simulator from virtual ones. Its state is soft: a new tracker learns
it all from the members' announcements. It doesn't answer questions (`Ask`): they need the origin.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping
from math import inf

from p2pcache.core.coordinator.cluster_list import ClusterList
from p2pcache.core.coordinator.ended_pulls import ended_pulls
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.settings import (
    HOLD_S,
    MAX_AWAITED,
    MAX_MEMBER_BYTES,
    NAMED_BYTES,
    RUN_SETS,
    SWARM_BYTES,
    SWARMS_AT_ONCE,
)
from p2pcache.core.coordinator.swarm_state import SwarmTracker, check_state
from p2pcache.core.coordinator.totals import Totals
from p2pcache.core.coordinator.waiting_states import WaitingStates
from p2pcache.core.membership.dialback import Dial, DialBacks
from p2pcache.core.membership.outputs import (
    Close,
    Event,
    Notice,
    Output,
    ReadRun,
    Send,
)
from p2pcache.core.membership.registry import Node, Registry
from p2pcache.core.membership.replica_placement import ReplicaPlacement
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.silence import doubt_s
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import NodeId, RunIndex


class TrackerState:
    """All that a tracker knows and decides.

    Invariants: a swarm exists if and only if it has members; a node's `digests` are exactly the
    swarms whose rosters list it; each swarm's next wakeup, or an earlier time or the last, is in `_due`.
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

        Args:
            epoch: random 63 bits, new at each start, or our tenure's generation; also the seed of all dice.
            members: knobs of membership.
            leases: knobs of the lease book.
            origin: URL told to agents that have none configured.
            remembered: members of each swarm before a restart (node ids by manifest digest).
        """
        self.epoch = epoch
        self.may_grant: Callable[[], bool] | None = None  # our tenure's word; None: there is none
        self._listens_until = -inf  # it grants nothing before
        self.registry = Registry(members)
        self.dials = DialBacks()
        self._cluster = ClusterList()
        self.swarms: dict[str, SwarmTracker] = {}
        self._members = members
        self._leases = leases
        self._origin = origin
        self._remembered = {digest: set(nodes) for digest, nodes in (remembered or {}).items()}
        self._due: list[tuple[float, str]] = []
        self._settled_at = -inf  # when swarms were last settled
        self.waiting = WaitingStates()  # told, and not taken in yet
        self._past = Totals()

    # -- what happens ----------------------------------------------------------------------------------

    def handle(self, node: NodeId, message: m.ToTracker, now: float) -> list[Output]:
        """Take in one member's message.

        Raises:
            RemoteProtocolError: the message breaks a rule. Drop the sender's connection.
        """
        out: list[Output] = []
        if isinstance(message, m.Announce):
            self._announce(node, message, now, out)
            self._dial(now, out)
            return out
        record = self.registry.on_sign_of_life(node, now)
        if record is None:
            return [Close(node, "announce yourself first")]
        match message:
            case m.Heartbeat():
                self.registry.on_heartbeat(node, message)
                self._hear(record, message.swarms, now, out, announced=False)
                if message.ended:
                    out += ended_pulls(node, message.ended, self.swarms)
            case m.Enter(said):
                waited = self.waiting.pick(node, said.digest)
                swarm = self._join(record, said, now, out)
                take_in = swarm.on_announced if waited and waited.announced else swarm.on_entered
                take_in(record.member, said, now, out)
                self._settle(swarm, now, out)
            case m.Exit(digest):
                self.waiting.pick(node, digest)
                self._leave(node, record, digest, now, out)
                self._settle_due(now, out)
            case m.Leaving():
                self._forget(node, now, out, lost=False)
            case m.LeaseReport() | m.Stuck() | m.Blame():
                self._on_swarm(node, message, now, out)
        return out

    def on_disconnected(self, node: NodeId, now: float) -> list[Output]:
        """A member's connection broke; it may come back within the grace period."""
        out: list[Output] = []
        self.registry.on_disconnected(node, now)
        record = self.registry.nodes.get(node)
        for digest in sorted(record.digests) if record is not None else ():
            self.swarms[digest].book.set_credit(node, 0)  # what it reads goes on
            self._settle_soon(self.swarms[digest], now)
        self._settle_due(now, out)
        return out

    def on_stood_still(self, now: float) -> None:
        """This process did nothing for a while: it grants nothing yet, for what waits in its sockets is old."""
        self._listens_until = now + HOLD_S

    def on_dial_ended(self, dial: Dial, now: float, *, reached: bool) -> list[Output]:
        """A `Dial` has ended."""
        out: list[Output] = []
        self.dials.on_ended(dial, reached=reached, now=now)
        self._dial(now, out)
        return out

    def on_witness_report(self, asked: ReadRun, report: WitnessReport, now: float) -> list[Output]:
        """A `ReadRun` has ended."""
        out: list[Output] = []
        swarm = self.swarms.get(asked.digest)
        if swarm is not None:
            swarm.doubts.on_witness_report(asked.node, asked.run, report, now, out)
            self._settle(swarm, now, out)
        return out

    def tick(self, now: float) -> list[Output]:
        """Do what is due: expiry, batches, polls, dials. If it is much, the next wakeup is now."""
        out: list[Output] = []
        for node in self.registry.expired(now):
            self._forget(node, now, out, lost=True)
            out.append(Close(node, "no sign of life for too long"))
        self._hear_waiting(now, out)
        self._settle_due(now, out)
        self.dials.doubt_late(now)
        self._dial(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When `tick` wants to be called next (may be in the past: then at once)."""
        if self.waiting.lists:
            return -inf
        swarms_at = self._due[0][0] if self._due else None
        times = [self.registry.look_at, self.dials.next_wakeup(), swarms_at]
        return min((t for t in times if t is not None), default=None)

    # -- for people and records --------------------------------------------------------------------

    def totals(self) -> Totals:
        """Counts over all swarms, past ones included: they never shrink."""
        total = dataclasses.replace(self._past, lease_ends=self._past.lease_ends.copy())
        for swarm in self.swarms.values():
            total.include(swarm)
        return total

    def remembered_members(self) -> dict[str, list[NodeId]]:
        """Members of each swarm that still wants something: what a restarted tracker waits for."""
        return {d: sorted(swarm.roster) for d, swarm in self.swarms.items() if swarm.book.free}

    def unreached(self) -> set[NodeId]:
        """Members that others can't dial, or couldn't lately."""
        lost = (swarm.reach.lost - swarm.roster.banned for swarm in self.swarms.values())
        return self.dials.unreachable.union(*lost)

    def story(self, digest: str, run: RunIndex) -> list[str]:
        """What happened to a run's leases, oldest first."""
        return self.swarms[digest].book.story_of(run) if digest in self.swarms else []

    def check(self) -> None:
        """Assert the invariants, here and in all parts. O(everything)."""
        self.registry.check()
        self.dials.check()
        listed: dict[NodeId, set[str]] = {}
        for digest, swarm in self.swarms.items():
            swarm.check()
            assert len(swarm.roster)
            for node in swarm.roster:
                listed.setdefault(node, set()).add(digest)
            wakeup = swarm.next_wakeup()
            wakeup = None if wakeup is None else max(wakeup, self._settled_at)
            assert wakeup is None or (swarm.scheduled is not None and swarm.scheduled <= wakeup)
            assert swarm.scheduled is None or (swarm.scheduled, digest) in self._due
        nodes = self.registry.nodes
        assert listed == {n: {*r.digests} for n, r in nodes.items() if r.digests}
        for record in nodes.values():
            assert record.cost_bytes == sum(record.digests.values())
        self.waiting.check()

    def replica_placement(self, digest: str) -> ReplicaPlacement:
        """Which members have a model or are getting it, and which could be told to."""
        roster = self.swarms[digest].roster if digest in self.swarms else None
        complete = frozenset(roster.complete) if roster is not None else frozenset()
        pulling = roster.pulling if roster is not None else set()
        return ReplicaPlacement.among(complete, pulling, self.registry.nodes)

    def on_warming(self, node: NodeId, digest: str) -> None:
        """A member began to fetch a model that it was told to; its next heartbeat says so, too."""
        if digest in self.swarms:
            self.swarms[digest].roster.set_pulls_all(node, pulls_all=True)

    # -- inside ------------------------------------------------------------------------------------

    def _announce(self, node: NodeId, said: m.Announce, now: float, out: list[Output]) -> None:
        if why := m.unfit_announcement(said):
            raise RemoteProtocolError(f"an announcement {why}")
        if node not in self.registry.nodes:
            out.append(Notice(Event.JOINED, node))
        record = self.registry.on_announced(node, said, now)
        beat_s, ttl_s, fenced = self._members.heartbeat_s, self._leases.ttl_s, bool(self.may_grant)
        doubt = doubt_s(len(self.registry.nodes)) if fenced else 0.0
        out.append(Send(node, m.Settled(self.epoch, self._origin, beat_s, ttl_s, fenced, doubt)))
        if fenced:
            self._cluster.tell_all(node, self.registry.nodes, out)
        for digest in sorted(record.digests.keys() - {state.digest for state in said.swarms}):
            self._leave(node, record, digest, now, out)
        self.waiting.forget(node)
        self._hear(record, said.swarms, now, out, announced=True)
        for swarm in self.swarms.values():
            if swarm.barrier.awaited:
                swarm.barrier.on_arrival(node, now)
                self._settle_soon(swarm, now)
        self._settle_due(now, out)
        self.dials.on_announced(record.member, now)

    def _hear(
        self, record: Node, states: tuple[m.SwarmState, ...], now: float, out: list[Output], *, announced: bool,
    ) -> None:  # fmt: skip
        """Take in what a member tells of some swarms; of many, the first ones, and the rest when others had a turn."""
        node = record.member.node
        first, rest = states[:SWARMS_AT_ONCE], states[SWARMS_AT_ONCE : m.MAX_TOLD]
        for said in first:
            waited = self.waiting.pick(node, said.digest) if self.waiting.lists else None
            fresh = announced or (waited is not None and waited.announced)
            self._take_in(record, said, now, out, announced=fresh)
        if rest:
            self.waiting.add(node, rest, announced=announced)

    def _hear_waiting(self, now: float, out: list[Output]) -> None:
        for node, told in self.waiting.pick_in_turn(SWARMS_AT_ONCE):
            record = self.registry.nodes.get(node)
            if record is None or not record.connected:
                continue
            try:
                self._take_in(record, told.said, now, out, announced=told.announced)
            except RemoteProtocolError as error:
                self.waiting.forget(node)
                out.append(Close(node, str(error)))

    def _take_in(
        self, record: Node, said: m.SwarmState, now: float, out: list[Output], *, announced: bool
    ) -> None:
        swarm = self._join(record, said, now, out)
        take_in = swarm.on_announced if announced else swarm.on_heartbeat
        take_in(record.member, said, now, out)
        self._settle(swarm, now, out)

    def _on_swarm(
        self,
        node: NodeId,
        message: m.LeaseReport | m.Stuck | m.Blame,
        now: float,
        out: list[Output],
    ) -> None:
        if waiting := self.waiting.pick(node, message.digest):
            record = self.registry.nodes[node]
            self._take_in(record, waiting.said, now, out, announced=waiting.announced)
        swarm = self.swarms.get(message.digest)
        if swarm is None:
            return
        match message:
            case m.LeaseReport():
                swarm.on_report(node, message, now, out)
            case m.Stuck():
                swarm.stuck_runs.on_stuck(node, message, now, out)
            case m.Blame():
                swarm.on_blame(node, message.node, now, out)
        self._settle(swarm, now, out)

    def _join(
        self, record: Node, said: m.SwarmState, now: float, out: list[Output]
    ) -> SwarmTracker:
        """The swarm that a member speaks of, made if it is the first; checks what identifies it."""
        check_state(said)
        swarm = self.swarms.get(said.digest)
        if swarm is not None and swarm.roster.run_count != said.run_count:
            raise RemoteProtocolError(
                f"{said.run_count} runs for a model that others say has {swarm.roster.run_count}"
            )
        if swarm is None:
            swarm = self.swarms[said.digest] = SwarmTracker(
                said.digest, said.run_count, epoch=self.epoch, members=self._members,
                leases=self._leases, nodes=self.registry.nodes, dials=self.dials, now=now,
                remembered=self._remembered.pop(said.digest, set()) - self.registry.nodes.keys(),
            )  # fmt: skip
        cost = SWARM_BYTES + RUN_SETS * said.run_count // 8
        named = NAMED_BYTES * len(said.known[:MAX_AWAITED])
        for oldest in record.charge(said.digest, cost, named, MAX_MEMBER_BYTES):
            self._leave(record.member.node, record, oldest, now, out)
        return swarm

    def _leave(
        self, node: NodeId, record: Node, digest: str, now: float, out: list[Output]
    ) -> None:
        if digest not in record.digests:
            return
        record.give_back(digest)
        swarm = self.swarms[digest]
        swarm.on_left(node, self.registry.pull_end(node), now, out)
        if len(swarm.roster):
            self._settle_soon(swarm, now)
        else:
            self._past.include(swarm)
            del self.swarms[digest]

    def _forget(self, node: NodeId, now: float, out: list[Output], *, lost: bool) -> None:
        record = self.registry.forget(node, now, lost=lost)
        self.dials.forget(node)
        self.waiting.forget(node)
        if record is not None:
            out.append(Notice(Event.LOST if lost else Event.LEFT, node))
            self._cluster.on_left(node, out)
            for digest in sorted(record.digests):
                self._leave(node, record, digest, now, out)
            self._settle_due(now, out)
            self._dial(now, out)

    def _dial(self, now: float, out: list[Output]) -> None:
        """Dial the nodes that are due, and tell the swarms of which members something else is thought."""
        out += self.dials.step(now)
        touched: dict[str, None] = {}
        changed, failed = sorted(self.dials.changed), sorted(self.dials.failed)
        self.dials.changed, self.dials.failed = set(), set()
        for node in changed:
            record = self.registry.nodes.get(node)
            for digest in sorted(record.digests) if record is not None else ():
                swarm = self.swarms[digest]
                swarm.reach.review(swarm.roster.members[node])
                touched[digest] = None
        for node in failed:
            record = self.registry.nodes.get(node)
            if record is not None and record.connected and self.dials.should_tell(node):
                out.append(Notice(Event.UNREACHED, node))
        for digest in touched:
            self._settle(self.swarms[digest], now, out)

    def _settle(self, swarm: SwarmTracker, now: float, out: list[Output]) -> None:
        """Let a swarm do what is due after something happened, and note its next wakeup."""
        listens = now < self._listens_until
        swarm.step(now, out, grants=not listens and (self.may_grant is None or self.may_grant()))
        wakeup = swarm.next_wakeup()
        if listens:
            self._settle_soon(swarm, self._listens_until)
        if wakeup is not None:
            self._settle_soon(swarm, wakeup)

    def _settle_soon(self, swarm: SwarmTracker, when: float) -> None:
        """Settle a swarm at a time, when those before it have had their turn."""
        if swarm.scheduled is None or when < swarm.scheduled:
            swarm.scheduled = when
            heapq.heappush(self._due, (when, swarm.digest))

    def _settle_due(self, now: float, out: list[Output]) -> None:
        """Settle the swarms whose time has come; of many, the first ones."""
        self._settled_at = now
        for _ in range(SWARMS_AT_ONCE):
            if not self._due or self._due[0][0] > now:
                return
            when, digest = heapq.heappop(self._due)
            swarm = self.swarms.get(digest)
            if swarm is not None and swarm.scheduled == when:
                swarm.scheduled = None
                self._settle(swarm, now, out)
