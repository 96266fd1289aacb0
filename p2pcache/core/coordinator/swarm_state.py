"""One swarm as the tracker sees it: its members, its leases, and what follows from each message."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import OriginDoubts
from p2pcache.core.coordinator.stuck_runs import StuckRuns
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import LostRuns
from p2pcache.core.leases.startup_barrier import StartupBarrier
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.outputs import Event, Notice, Output, PullEnded, Send
from p2pcache.core.membership.reachability import DialBacks, Reachability, are_all, by_id
from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.settings import MOST_NODES, WITNESSES
from p2pcache.core.membership.usage_ledger import PullEnd, UsageLedger
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import bearer_of
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet


@dataclass(frozen=True, slots=True)
class TrackerContext:
    """What all swarms of a tracker share."""

    epoch: int
    members: MemberSettings
    leases: LeaseSettings
    nodes: Mapping[NodeId, Node]  # the cluster's members
    dials: DialBacks
    out: list[Output]  # what is to be done; all parts append to it


class SwarmTracker:
    """What the tracker does for one model."""

    def __init__(
        self, digest: str, run_count: int, context: TrackerContext, now: float, remembered: Iterable[NodeId] = ()
    ) -> None:  # fmt: skip
        """A swarm's first member came; `remembered`: its members before the tracker restarted."""
        members, leases, out = context.members, context.leases, context.out
        seed = int(digest[:16], 16) ^ context.epoch
        self._bearer = bearer_of if members.certified else by_id
        self.digest = digest
        self.roster = Roster(digest, run_count, seed)
        self.book = LeaseBook(self.roster, leases, seed)
        self.lost_runs = LostRuns(
            self.roster, self.book, members.heartbeat_s, members.reconnect_grace_s
        )
        self.reach = Reachability(self.roster.members, context.dials, self._on_reach, self._bearer)
        self.ledger = UsageLedger(digest)
        self.blames = 0  # wrong bytes from a peer, as told by members; for metrics
        self.barrier = StartupBarrier(leases.ttl_s, now, remembered)
        self.scheduled = inf  # the wakeup that its owner has noted
        self.stuck_runs = StuckRuns(self.roster, self.book, self.reach, self.lost_runs, out)
        self.doubts = OriginDoubts(self.roster, self.book, self._bearer, out)
        self._context = context
        self._grants = True  # whether the last step could grant leases

    @property
    def banned(self) -> set[NodeId]:
        """Members that sent wrong bytes: some of the few that nobody is sent to."""
        return {node for node in self.reach.lost if self.roster.members[node].banned}

    # -- what members say --------------------------------------------------------------------------

    def on_state(
        self, member: m.Member, said: m.SwarmState, now: float,
        *, announced: bool = False, entered: bool = False,
    ) -> None:  # fmt: skip
        """A member said how it stands with this model; `check_state` found no fault in that.

        `announced`: it has just connected, so what it lists is all there is. `entered`: it takes part from now on, or
        wants fresh neighbours.
        """
        node, roster = member.node, self.roster
        if announced and node in roster.members:
            self._begin_anew(roster.members[node], now)
        has_list = node in roster.members and node not in roster.complete
        reading = self._runs(said.leases[: self._context.leases.most_in_flight])
        self._take_in(member, said, reading, now)
        if announced:
            # Only now: before, the runs of its last word would have counted again.
            self.reach.acquit(roster.members[node], now)
            if self.book.keep_only(node, reading):
                self.lost_runs.suspect(now)
        if entered or (not said.complete and (announced or not has_list)):
            self._welcome(node, said)

    def on_message(self, node: NodeId, said: m.LeaseReport | m.Stuck | m.Blame, now: float) -> None:
        """A node said something of this model; it counts for nothing if it isn't a member."""
        match said:
            case m.LeaseReport():
                self._on_report(node, said, now)
            case m.Stuck():
                self.stuck_runs.on_stuck(node, said, now)
            case m.Blame():
                self._on_blame(node, said.node, now)

    def _on_report(self, node: NodeId, said: m.LeaseReport, now: float) -> None:
        record = self.roster.members.get(node)
        if record is None:
            return
        # All of it is read before any of it is believed.
        lists = (said.done, said.failed, said.returned, said.mismatched, said.demanded)
        done, failed, returned, mismatched, urgent = (
            self._runs(runs[: m.MAX_REPORTED]) for runs in lists
        )
        wanted = self._wanted(said.wanted)
        self._update_have(record, record.have | done, now, said.flow_s)
        if said.epoch == self._context.epoch:
            self.book.on_failed(node, failed, now)
            if self.book.on_returned(node, returned):
                self.lost_runs.suspect(now)
        if mismatched:
            self.doubts.on_wrong_reads(node, mismatched, now)
        if said.credit >= 0:
            self._set_credit(record, said.credit, wanted, now)
        self.book.on_urgent(urgent)

    def _on_blame(self, accuser: NodeId, node: NodeId, now: float) -> None:
        """A member got bytes from another one that don't match."""
        record = self.roster.members.get(node)
        bearer = self._bearer(accuser)
        if accuser not in self.roster.members or record is None or bearer == self._bearer(node):
            return
        self.blames += 1
        record.blamed_by |= {bearer}
        # Of two members only one can accuse.
        believed = len(record.blamed_by) >= WITNESSES or are_all(
            record.blamed_by | {self._bearer(node)}, self.roster.members, self._bearer
        )
        if believed and not record.banned:
            self.book.drop_reader(node)
            self.roster.ban(record)
            self.reach.review(record, now)
            self.lost_runs.suspect(now)
            self._context.out.append(Notice(Event.SHUNNED, node, self.digest))

    def on_left(self, node: NodeId, end: PullEnd | None, now: float) -> None:
        """A member has nothing of this model any more, or is gone; `end`: of its pull, if it can't tell that itself."""
        ended = self.ledger.on_left(node, now)
        if ended is not None and end is not None:
            self._context.out.append(PullEnded(node, ended, end, self.share_of(node)))
        record = self.roster.members[node]
        if end is PullEnd.LEFT and record.counts:
            self.lost_runs.on_goodbye(node, record.have, now)
        self.reach.lost.discard(node)
        self.book.drop_reader(node)
        self.doubts.on_pull_over(node)
        self.lost_runs.on_answer(node)
        self.lost_runs.suspect(now)
        self.roster.remove(node)

    # -- for people --------------------------------------------------------------------------------

    def share_of(self, node: NodeId) -> float:
        """How much of the model a node has, 0 to 1."""
        record, runs = self.roster.members.get(node), self.roster.run_count
        return 0.0 if record is None else record.have.bit_count() / runs if runs else 1.0

    def counts(self) -> Counter[str]:
        """What was done so far."""
        moved = self.ledger.moved
        return Counter(
            granted=self.book.granted, rescues=self.book.regranted, polls=self.lost_runs.polls,
            blames=self.blames, moved_peers=moved.peers, moved_origin=moved.origin,
        )  # fmt: skip

    # -- what follows ------------------------------------------------------------------------------

    def step(self, now: float, *, grants: bool) -> None:
        """Do all that is due: expiry, polls, the members' list, and with `grants` new leases."""
        if self.book.expire(now):
            self.lost_runs.suspect(now)
        if self.reach.look_at <= now:
            self.reach.end_verdicts(now)
        if self.lost_runs.due <= now:
            self._send_all(self.lost_runs.step(now), m.Poll(self.digest))
        waits = bool(self.barrier.awaited) and self.barrier.holds(now)
        self._grants = grants and not waits and self.doubts.stop is None
        if self._grants:
            if self.doubts.odd:
                self.doubts.tell_hopeless()
            given = self.book.grant(now)
            in_flight = len(self.book.leases)
            for node, runs in given.items():
                self._send(node, m.Grant(self.digest, self._context.epoch, tuple(runs), in_flight))
        if delta := self.roster.flush_list(now):
            self._send_all(self.roster.needy(), delta)
            for node, rest in self.roster.hand_out_rest(self._context.members.neighbours):
                self._send(node, rest)

    def next_wakeup(self) -> float:
        """When `step` has something to do next."""
        book_at = self.book.next_wakeup(grants=self._grants)
        times = [self.roster.flush_at(), self.lost_runs.due, self.reach.look_at]
        times.append(inf if book_at is None else book_at)
        if self.barrier.awaited and self.book.free and self.book.readers.working:
            times.append(self.barrier.until)
        return min(times)

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.roster.check()
        self.book.check()
        self.reach.check()
        covered = self.lost_runs.covered
        assert not covered & self.book.free or self.book.regranted, "a held run is free"
        assert not self.book.done & ~covered or self.lost_runs.due < inf, "a lost run isn't free"

    # -- inside ------------------------------------------------------------------------------------

    def _send(self, node: NodeId, message: m.ToAgent) -> None:
        self._context.out.append(Send(node, message))

    def _send_all(self, nodes: Iterable[NodeId], message: m.ToAgent) -> None:
        self._context.out.extend(Send(node, message) for node in nodes)

    def _begin_anew(self, record: MemberRecord, now: float) -> None:
        """A member connected again, perhaps as another process: what it was blamed for and told is void."""
        if record.banned:  # it proved its bytes again: it is like a new one
            self.on_left(record.node, None, now)
            return
        record.blamed_by, record.told = frozenset(), frozenset()
        record.introduced, record.read_again = 0, 0
        self.book.readers.judge_anew(record)
        self.doubts.on_pull_over(record.node)

    def _take_in(self, member: m.Member, said: m.SwarmState, reading: RunSet, now: float) -> None:
        node, count = member.node, self.roster.run_count
        fresh = node not in self.roster.members
        record = self.roster.enter(member)
        if fresh:
            self.barrier.on_arrival(node, now)
            self.lost_runs.on_arrival(node, now)
            self.reach.review(record, now)
        if said.complete:
            have = bitset.full(count)
        else:
            have = bitset.from_bytes(said.have, count) if said.have else 0
            if said.known:
                self.barrier.expect(said.known[:MOST_NODES], self._context.nodes, now)
        self.ledger.on_state(node, said, now)
        record.pulls_all = said.pulled
        if record.have & ~have:
            self.lost_runs.suspect(now)
        self._update_have(record, have, now)
        self.book.renew(node, reading, now)
        credit = 0 if said.complete else said.credit
        self._set_credit(record, credit, self._wanted(said.wanted), now)
        self.book.on_progress(node)
        if self.lost_runs.due < inf:
            self.lost_runs.on_answer(node)

    def _update_have(
        self, record: MemberRecord, have: RunSet, now: float, flow_s: float = 0.0
    ) -> None:
        node, fresh = record.node, self.roster.set_have(record, have)
        if record.banned:
            self.book.on_banned_have(node, have)
        if fresh:
            if self.doubts.runs:
                self.doubts.on_right_reads(node, fresh, now)
            if node in self.reach.lost:
                self.lost_runs.suspect(now)
            self.book.on_have(node, fresh, now, flow_s)

    def _on_reach(self, record: MemberRecord, now: float) -> None:
        """Others get at a member, or don't any more."""
        self.book.readers.review(record)
        if record.counts:
            # Reads under way go on: a verdict that ends is no sign that the member delivers.
            self.book.set_held(record.have)
        if self.reach.lost:
            self.lost_runs.suspect(now)

    def _set_credit(self, record: MemberRecord, credit: int, wanted: RunSet, now: float) -> None:
        if self.doubts.odd or self.doubts.stop is not None:
            credit = self.doubts.credit(record.node, credit, wanted, now)
        if self.reach.lost and credit > 0 and not record.credit:
            self.lost_runs.suspect(now)  # it may want what nobody else can give
        self.book.set_credit(record.node, credit, wanted)

    def _runs(self, numbers: Collection[RunIndex]) -> RunSet:
        return m.run_bits(numbers, self.roster.run_count)

    def _wanted(self, wanted: bytes) -> RunSet:
        return bitset.from_bytes(wanted, self.roster.run_count) if wanted else ALL

    def _welcome(self, node: NodeId, said: m.SwarmState) -> None:
        """The list as of its version, then neighbours to dial (members that joined since come with the next delta)."""
        if said.complete:  # it dials no one: the list would be out of date before it is of use
            self._send(node, m.Swarm(self.digest, self.roster.version, full=True))
            return
        self._send(node, self.roster.full_list())
        # A member that only serves says that it wants all, and fetches nothing. A loader names its runs one by one.
        seeks = ALL if said.pulled else 0
        if said.wanted and not said.pulled:
            seeks = self._wanted(said.wanted) or ALL
        if neighbours := self.roster.hand_out(node, self._context.members.neighbours, seeks):
            self._send(node, neighbours)


def check_state(said: m.SwarmState, most_leases: int) -> None:
    """Refuse what `SwarmTracker` would stumble over half way. It reads no more than `most_leases` leases.

    Raises:
        RemoteProtocolError: no honest member says this.
    """
    m.run_bits(said.leases[:most_leases], said.run_count)
    for bitmap in (b"" if said.complete else said.have, said.wanted):
        if bitmap:
            bitset.from_bytes(bitmap, said.run_count)
