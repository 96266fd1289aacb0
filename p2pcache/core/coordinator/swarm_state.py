"""One swarm as the tracker sees it: its members, its leases, and what follows from each message."""

from collections.abc import Collection, Iterable
from math import inf

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import OriginDoubts
from p2pcache.core.coordinator.settings import (
    MAX_AWAITED,
    MAX_BYTES,
    MAX_LABEL,
    MAX_LISTED_LEASES,
)
from p2pcache.core.coordinator.stuck_runs import StuckRuns
from p2pcache.core.format.manifest import MAX_CHUNKS
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import LostRuns
from p2pcache.core.leases.startup_barrier import StartupBarrier
from p2pcache.core.membership.dialback import DialBacks
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.outputs import Event, Notice, Output, PullEnded, Send
from p2pcache.core.membership.reachability import Reachability, by_id, witnesses_but
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.settings import WITNESSES
from p2pcache.core.membership.usage_ledger import PullEnd, RunningPull, UsageLedger
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import bearer_of
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.core.swarm.commands import ALL
from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import NodeId, RunIndex, RunSet, is_digest


class SwarmTracker:
    """What the tracker does for one model. Outputs are appended to the list that is handed in."""

    def __init__(
        self, digest: str, run_count: int, *, epoch: int, members: MemberSettings, leases: LeaseSettings,
        nodes: Collection[NodeId], dials: DialBacks, now: float, remembered: Iterable[NodeId] = (),
    ) -> None:  # fmt: skip
        """A swarm's first member came.

        Args:
            digest: of the manifest.
            run_count: runs of the model.
            epoch: of the tracker.
            members: knobs of membership.
            leases: knobs of the lease book.
            nodes: the cluster's members, kept up to date.
            dials: what is known of the reach of all nodes.
            now: seconds.
            remembered: the swarm's members before the tracker restarted.
        """
        seed = int(digest[:16], 16) ^ epoch
        self._bearer = bearer_of if members.certified else by_id
        self.digest = digest
        self.roster = Roster(digest, run_count, seed)
        self.book = LeaseBook(self.roster, leases, seed, self._bearer)
        self.reach = Reachability(self.roster.members, dials, self._bearer)
        self.lost_runs = LostRuns(self.roster, self.book)
        self.ledger = UsageLedger()
        self.pulls = 0  # that run, as members tell; for people
        self.blames = 0  # wrong bytes from a peer, as told by members; for metrics
        self.barrier = StartupBarrier(leases.ttl_s, now, remembered, most=MAX_AWAITED)
        self.scheduled: float | None = None  # the wakeup that its owner has noted
        self.stuck_runs = StuckRuns(self.roster, self.book, self.reach)
        self.doubts = OriginDoubts(self.roster, self.book, self._bearer)
        self._nodes = nodes
        self._grants = True  # whether the last step could grant leases
        self._epoch = epoch
        self._neighbours = members.neighbours

    # -- what members say --------------------------------------------------------------------------

    def on_announced(
        self, member: m.Member, said: m.SwarmState, now: float, out: list[Output]
    ) -> None:
        """A member connected: what it lists is all there is."""
        node = member.node
        record = self.roster.members.get(node)
        if record is not None:
            record.blamed_by, record.introduced, record.read_again_at = frozenset(), 0, -inf
            self.doubts.on_pull_over(node)
            if record.banned:
                self.roster.readmit(record)
            self.reach.acquit(record)
            self.reach.review(record)
        reading = self._runs(said.leases[:MAX_LISTED_LEASES])
        self._take_in(member, said, now, out)
        if self.book.keep_only(node, reading, now):
            self.lost_runs.suspect(now)
        if not said.complete:
            self._welcome(node, said, out)

    def on_entered(
        self, member: m.Member, said: m.SwarmState, now: float, out: list[Output]
    ) -> None:
        """A member takes part from now on, or wants fresh neighbours."""
        self._take_in(member, said, now, out)
        if not said.complete:
            self._welcome(member.node, said, out)
        else:  # it dials no one: the list would be out of date before it is of use
            out.append(Send(member.node, m.Swarm(self.digest, self.roster.version, full=True)))

    def on_heartbeat(
        self, member: m.Member, said: m.SwarmState, now: float, out: list[Output]
    ) -> None:
        """A heartbeat told of this swarm."""
        node = member.node
        listed = node in self.roster and node not in self.roster.complete
        self._take_in(member, said, now, out)
        if not listed and not said.complete:  # it lost runs: from now on it needs the list
            self._welcome(node, said, out)

    def on_report(self, node: NodeId, said: m.LeaseReport, now: float, out: list[Output]) -> None:
        """What became of leases."""
        record = self.roster.members.get(node)
        if record is None:
            return
        book = self.book
        done, failed = self._runs(said.done), self._runs(said.failed)
        returned, mismatched = self._runs(said.returned), self._runs(said.mismatched)
        urgent = self._runs(said.demanded[: m.MAX_DEMANDED])
        wanted = self._wanted(said.wanted)
        self._update_have(node, record.have | done, now, out, said.flow_s)
        if said.epoch == self._epoch:
            book.on_failed(node, failed, now)
            if book.on_returned(node, returned, now):
                self.lost_runs.suspect(now)
        if mismatched:
            self.doubts.on_wrong_reads(node, mismatched, now, out)
        if said.credit >= 0:
            self._set_credit(node, said.credit, wanted, now, out)
        book.on_urgent(urgent)

    def on_blame(self, accuser: NodeId, node: NodeId, now: float, out: list[Output]) -> None:
        """A member got bytes from another one that don't match."""
        record = self.roster.members.get(node)
        bearer = self._bearer(accuser)
        if accuser not in self.roster or record is None or bearer == self._bearer(node):
            return
        self.blames += 1
        record.blamed_by |= {bearer}
        # Of two members only one can accuse.
        enough = witnesses_but(node, self.roster, self._bearer, WITNESSES)
        if len(record.blamed_by) >= enough and not record.banned:
            self.book.drop_reader(node, now)
            self.roster.ban(record)
            self.reach.review(record)
            self.lost_runs.suspect(now)
            out.append(Notice(Event.SHUNNED, node, self.digest))

    def on_left(self, node: NodeId, end: PullEnd | None, now: float, out: list[Output]) -> None:
        """A member has nothing of this model any more, or is gone.

        Args:
            node: its id.
            end: how its pull has ended, if there was one; None: it tells that itself.
            now: seconds.
            out: outputs are appended.
        """
        record = self.roster.members.get(node)
        if record is not None and record.pull is not None and end is not None:
            taken = record.pull.brought(self.ledger.of(node))
            out.append(PullEnded(
                node, self.digest, self.ledger.label, end, 0, self.share_of(record),
                now - record.pull.since, self.ledger.total_bytes, taken,
            ))  # fmt: skip
        if record is not None:
            self._set_pull(record, None)
            self.reach.drop(record)
        self.book.drop_reader(node, now)
        self.doubts.on_pull_over(node)
        self.lost_runs.on_answer(node)
        self.lost_runs.suspect(now)
        self.roster.remove(node)

    def share_of(self, record: MemberRecord) -> float:
        """How much of the model a member has that isn't banned, 0 to 1."""
        runs = self.roster.run_count
        return record.have.bit_count() / runs if runs else 1.0

    # -- what follows ------------------------------------------------------------------------------

    def step(self, now: float, out: list[Output], *, grants: bool = True) -> None:
        """Do all that is due: expiry, polls, the members' list, and with `grants` new leases."""
        if self.book.expire(now):
            self.lost_runs.suspect(now)
        if self.reach.verdicts:
            self.reach.end_verdicts(now)
        if self.reach.changed:
            self._on_reach_changed(now, out)
        if self.lost_runs.due <= now:
            poll = m.Poll(self.digest)
            out.extend(Send(node, poll) for node in self.lost_runs.step(now))
        self._grants = grants and not (self.barrier.awaited and self.barrier.holds(now))
        if self._grants:
            if self.doubts.odd:
                self.doubts.tell_hopeless(out)
            for node, runs in self.book.grant(now).items():
                out.append(Send(node, m.Grant(self.digest, self._epoch, tuple(runs))))
        delta = self.roster.flush_list(now)
        if delta is not None:
            out.extend(Send(node, delta) for node in self.roster.needy())

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next."""
        times = [self.book.next_wakeup(grants=self._grants), self.roster.flush_at()]
        if self.lost_runs.due < inf:
            times.append(self.lost_runs.due)
        if self.reach.verdicts:
            times.append(self.reach.next_wakeup())
        if self.barrier.awaited and self.book.free and len(self.book.readers):
            times.append(self.barrier.until)
        return min((t for t in times if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.roster.check()
        self.book.check()
        self.lost_runs.check()
        self.reach.check()
        assert not self.reach.changed
        assert self.pulls == sum(one.pull is not None for one in self.roster.members.values())
        covered = self.lost_runs.covered
        assert not covered & self.book.free or self.book.regranted, "a held run is free"
        assert not self.book.done & ~covered or self.lost_runs.due < inf, "a lost run isn't free"

    # -- inside ------------------------------------------------------------------------------------

    def _take_in(self, member: m.Member, said: m.SwarmState, now: float, out: list[Output]) -> None:
        node = member.node
        fresh = node not in self.roster
        if fresh:
            self.barrier.on_arrival(node, now)
        have = bitset.full(self.roster.run_count)
        if not said.complete:
            have = bitset.from_bytes(said.have, self.roster.run_count) if said.have else 0
            if said.known:
                self.barrier.expect(said.known, self._nodes, now)
        reading = self._runs(said.leases[:MAX_LISTED_LEASES])
        record = self.roster.enter(member)
        if fresh:
            self.reach.review(record)
        figures = (said.label, said.total_bytes, said.taken)
        if figures != record.figures:
            known, record.figures = bool(record.figures[2]), figures
            self.ledger.on_figures(node, said, known=known)
        record.pulls_all = said.pulled
        if record.have & ~have:
            self.lost_runs.suspect(now)
        self._update_have(node, have, now, out)
        if not said.pulled or said.complete:
            self._set_pull(record, None)
        elif record.pull is None:
            self._set_pull(record, RunningPull(now, self.ledger.of(node)))
        self.book.renew(node, reading, now)
        credit = 0 if said.complete else said.credit
        self._set_credit(node, credit, self._wanted(said.wanted), now, out)
        if self.lost_runs.due < inf:
            self.lost_runs.on_answer(node)

    def _set_pull(self, record: MemberRecord, pull: RunningPull | None) -> None:
        self.pulls += (pull is not None) - (record.pull is not None)
        record.pull = pull

    def _update_have(
        self, node: NodeId, have: RunSet, now: float, out: list[Output], flow_s: float = 0.0
    ) -> None:
        fresh = self.roster.set_have(node, have)
        if self.roster.members[node].banned:
            self.book.on_banned_have(node, have, now)
        if fresh:
            if self.doubts.runs:
                self.doubts.on_right_reads(node, fresh, now, out)
            if node in self.reach.lost:
                self.lost_runs.suspect(now)
            self._count(node, fresh, now, out, flow_s)

    def _count(
        self, node: NodeId, runs: RunSet, now: float, out: list[Output], flow_s: float = 0.0
    ) -> None:
        """A member has runs that count from now on."""
        for reader, revoked in self.book.on_have(node, runs, now, flow_s).items():
            out.append(Send(reader, m.Revoke(self.digest, tuple(revoked))))

    def _on_reach_changed(self, now: float, out: list[Output]) -> None:
        """Others get at some members, or don't any more."""
        changed, self.reach.changed = self.reach.changed, {}
        for node, record in changed.items():
            self.book.readers.review(record)
            if record.counts:
                self._count(node, record.have, now, out)
        if self.reach.lost:
            self.lost_runs.suspect(now)

    def _set_credit(
        self, node: NodeId, credit: int, wanted: RunSet, now: float, out: list[Output]
    ) -> None:
        stopped = credit > 0 and self.book.stopped is not None
        if stopped and not self.doubts.resume(now):
            out.append(Send(node, self.doubts.stop_message()))
            return
        if self.doubts.odd or self.roster.members[node].storage_doubted:
            credit = self.doubts.credit(node, credit, wanted)
        readers = self.book.readers
        had_readers = readers.fit > 0
        self.book.set_credit(node, credit, wanted)
        if self.reach.lost and readers.fit and not had_readers:
            self.lost_runs.suspect(now)  # it wants what they have

    def _runs(self, numbers: Collection[RunIndex]) -> RunSet:
        return m.run_bits(numbers, self.roster.run_count)

    def _wanted(self, wanted: bytes) -> RunSet:
        return bitset.from_bytes(wanted, self.roster.run_count) if wanted else ALL

    def _welcome(self, node: NodeId, said: m.SwarmState, out: list[Output]) -> None:
        """The list as of its version, then neighbours to dial (members that joined since come with the next delta)."""
        out.append(Send(node, self.roster.full_list()))
        # One that only serves says that it wants all, and fetches nothing. A loader names its runs one by one, later.
        seeks = ALL if said.pulled or (said.wanted and not any(said.wanted)) else 0
        if said.wanted and not seeks:
            seeks = self._wanted(said.wanted)
        neighbours = self.roster.hand_out(node, self._neighbours, seeks)
        if neighbours is not None:
            out.append(Send(node, neighbours))


def check_state(said: m.SwarmState) -> None:
    """Refuse what `SwarmTracker` would stumble over half way: bitmaps and numbers out of range.

    Raises:
        RemoteProtocolError: no honest member says this.
    """
    if not is_digest(said.digest) or not 0 <= said.run_count <= MAX_CHUNKS:
        raise RemoteProtocolError("a swarm with a bad digest or run count")
    check_figures(said)
    size = (said.run_count + 7) // 8
    spare = size * 8 - said.run_count
    for bitmap in (b"" if said.complete else said.have, said.wanted):
        if bitmap and (len(bitmap) != size or bitmap[-1] >> (8 - spare)):
            raise RemoteProtocolError(f"a bitmap that isn't one of {said.run_count} runs")
    if any(not 0 <= run < said.run_count for run in said.leases):
        raise RemoteProtocolError("a lease beyond the model")


def check_figures(said: m.SwarmState | m.EndedPull) -> None:
    """Refuse figures for people that no honest member sends.

    Raises:
        RemoteProtocolError: out of range.
    """
    figures = (said.total_bytes, *said.taken)
    if len(said.label) > MAX_LABEL or len(said.taken) not in (0, 3):
        raise RemoteProtocolError("a label or figures that are too long")
    if not said.label.isprintable():  # it is shown in terminals
        raise RemoteProtocolError("a label with characters that can't be printed")
    if any(not 0 <= figure <= MAX_BYTES for figure in figures):
        raise RemoteProtocolError(f"a number of bytes out of range: {max(figures, key=abs)}")
