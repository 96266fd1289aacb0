"""Runs that members wait for in vain, and the members that have them but that others can't get them from.

A member that is stuck is introduced to holders. A holder that didn't help two members, or one member and the tracker's
own dial (`membership.dialback`), is out of the others' reach: it gets no lease while they work on some, and the runs
that it alone has are read again.

A holder that is connected and delivers nothing (a hung disk, every answer BUSY, bytes that drip) is named by the
members that asked it. If two of them name it, or the only one that wants something, what it has counts for nothing, as
if it had left: until it delivers to one of those that named it, connects anew, or `HIDDEN_S` has passed.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf

from p2pcache.core import bitset
from p2pcache.core.coordinator.settings import (
    ACCUSERS_TO_HIDE,
    AGAIN_AFTER_S,
    AGAIN_TIMES,
    CUT_OFF_S,
    INTRODUCED,
    MAX_INTRODUCTIONS,
    MAX_NAMED,
    MAX_STUCK_RUNS,
    MOST_AGAIN,
    REGRANT_AFTER_S,
    SCARCE,
    SEARCH_S,
)
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import LostRuns
from p2pcache.core.leases.origin_integrity import by_id, witnesses_but
from p2pcache.core.leases.settings import HIDDEN_S
from p2pcache.core.membership.dialback import DialBacks
from p2pcache.core.membership.member_record import MemberRecord, Standing
from p2pcache.core.membership.outputs import Output, Send, Silent, Unreached
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId, RunIndex, RunSet


class StuckRuns:
    """Stuck runs of one swarm.

    Invariant: `_accused` holds exactly the members that are said to deliver nothing, to at least one other.
    """

    def __init__(
        self,
        roster: Roster,
        book: LeaseBook,
        lost_runs: LostRuns,
        dials: DialBacks,
        bearer: Callable[[NodeId], NodeId] = by_id,
    ) -> None:
        """No member is stuck yet.

        Args:
            roster: the swarm's members.
            book: its leases.
            lost_runs: its search for runs without a holder.
            dials: which nodes the tracker can't dial.
            bearer: maps a node id to what it stands for as a witness.
        """
        # Unreached nodes that have new runs, or of whose reach something else is thought: their owner adds them.
        self.perhaps_lost: set[NodeId] = set()
        self._roster = roster
        self._book = book
        self._lost_runs = lost_runs
        self._unreached = dials.unreached
        self._bearer = bearer
        # (member, run) -> when it was introduced, and to which holders
        self._introduced: dict[tuple[NodeId, RunIndex], tuple[float, tuple[NodeId, ...]]] = {}
        self._accused: dict[NodeId, MemberRecord] = {}
        self._search_at = -inf  # when runs of `perhaps_lost` are searched for again

    def on_announced(self, record: MemberRecord, now: float, out: list[Output]) -> None:
        """A member connected: perhaps somebody has mended it."""
        record.introduced_in_vain = -inf
        if record.complaints is not None:
            record.complaints.unreached_by.clear()
            self._trust(record, now, out)

    def on_left(self, node: NodeId) -> None:
        """A node is no member any more."""
        self._accused.pop(node, None)
        for record in list(self._accused.values()):
            self._withdraw(record, node)

    def on_first_reader(self) -> None:
        """A reader came to a swarm whose other members may be out of its reach: it wants what they have."""
        self.perhaps_lost.update(one for one in self._unreached if one in self._roster)

    def step(self, now: float, out: list[Output]) -> None:
        """Have runs read again that only unreached members have, before any member waits for them."""
        for record in [one for one in self._roster.silent.values() if one.silent_until <= now]:
            self._trust(record, now, out)
        if not self.perhaps_lost or not self._book.readers.fit or now < self._search_at:
            return
        self._search_at = now + SEARCH_S
        left = self._book.readers.most_at_once - self._book.regranted_early
        if left <= 0:
            self.perhaps_lost.clear()
            return
        alone = self._roster.alone(self.perhaps_lost & self._unreached)
        self.perhaps_lost.clear()
        # No more than were granted before the verdict: perhaps only the tracker can't dial them.
        again = bitset.lowest(alone & ~self._book.leased & ~self._book.free, left)
        self._book.regranted_early += again.bit_count()
        self._book.regrant(again, now)

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next."""
        ends = [record.silent_until for record in self._roster.silent.values()]
        if self.perhaps_lost and self._book.readers.fit:
            ends.append(self._search_at)
        return min(ends, default=None)

    def on_stuck(self, record: MemberRecord, said: m.Stuck, now: float, out: list[Output]) -> None:
        """None of a member's neighbours has these runs: introduce holders, or free the runs."""
        members, count = self._roster.members, self._roster.run_count
        lacks = bitset.from_bytes(said.lacks, count) if said.lacks else 0
        for holder in said.gives[:MAX_NAMED]:
            if holder in members:
                self._withdraw(members[holder], record.node)
                self._trust(members[holder], now, out)
        wanted = m.run_bits(said.runs[:MAX_STUCK_RUNS], count)
        vain = {one for one in said.vain[:MAX_NAMED] if one in members and one != record.node}
        for holder in sorted(vain):
            self._accuse(members[holder], record.node, now, out)
        # With the origin idle, a member that waits matters more than a second read: holders that nobody can dial (a
        # firewall, a partition that we don't see) would hold up the whole swarm for ever.
        idle = self._book.idle
        if vain and self._lost_runs.busy:
            return  # what they have counts no more, and is free as soon as the polled members have answered
        for run in bitset.members(wanted):
            self._complain(record.node, run, now, out)
        if idle and vain:
            wanted &= ~self._regrant_held_by(vain, record, wanted | lacks, now)
        if idle:
            wanted &= ~self._regrant_for_cut_off(record, wanted | lacks, now)
        holders: dict[NodeId, None] = {}
        for run in bitset.members(wanted & ~self._book.free):
            if run in self._book.leases:
                self._hurry(record, run, now, out)
            else:
                holders |= dict.fromkeys(self._help(record, run, now, idle=idle))
        if holders:
            out.append(Send(record.node, self._roster.introduction(holders)))

    def check(self) -> None:
        """Assert the invariant."""
        members = self._roster.members.values()
        accused = {one.node for one in members if one.complaints and one.complaints.unserved}
        assert self._accused.keys() == accused

    # -- holders that deliver nothing --------------------------------------------------------------

    def _accuse(self, holder: MemberRecord, node: NodeId, now: float, out: list[Output]) -> None:
        """A member asked a holder in vain. If enough members did, what the holder has counts for nothing."""
        accusers = holder.complain().unserved
        accusers.add(node)
        self._accused[holder.node] = holder
        others = sum(1 for _ in islice(self._could_accuse(holder), ACCUSERS_TO_HIDE))
        if len(accusers) < others or holder.standing is Standing.BANNED:
            return
        if holder.standing is not Standing.DELIVERS_NOTHING:
            out.append(Silent(holder.node, self._roster.digest))
            self._roster.discount(holder)
            self._lost_runs.suspect(now)  # other members that have its runs by now say so first
        holder.silent_until = now + HIDDEN_S
        self._book.readers.hide(holder, now)

    def _could_accuse(self, holder: MemberRecord) -> Iterator[NodeId]:
        """Members that lack runs and could say that this one gives them none."""
        return (node for node in self._book.readers if node != holder.node)

    def _withdraw(self, holder: MemberRecord, node: NodeId) -> None:
        """A member gets runs from a holder that it accused, or has left."""
        if holder.complaints is not None:
            holder.complaints.unserved.discard(node)
            if not holder.complaints.unserved:
                self._accused.pop(holder.node, None)

    def _trust(self, holder: MemberRecord, now: float, out: list[Output]) -> None:
        """A silent holder delivers, or may have been mended: what it has counts again."""
        if holder.standing is not Standing.DELIVERS_NOTHING:
            return
        holder.complain().unserved.clear()
        self._accused.pop(holder.node, None)
        self._book.readers.show(holder)
        runs = self._roster.count_again(holder)
        for reader, revoked in self._book.on_have(holder.node, runs, now).items():
            out.append(Send(reader, m.Revoke(self._roster.digest, tuple(revoked))))

    # -- runs that are read again ------------------------------------------------------------------

    def _regrant_held_by(
        self, vain: set[NodeId], record: MemberRecord, lacks: RunSet, now: float
    ) -> RunSet:
        """Have runs read again that only these holders have, which give the member nothing; returns the runs.

        The member may be cut off from them itself, so the other members go on asking them.
        """
        again = bitset.lowest(self._others(record, lacks) & self._roster.only(vain), MOST_AGAIN)
        self._regrant(record, again, now)
        return again

    def _regrant_for_cut_off(self, record: MemberRecord, lacks: RunSet, now: float) -> RunSet:
        """Have runs read again for a part of the swarm that is cut off from the rest; returns the runs.

        It learns of the others' runs in vain, window after window: more runs are read at once each time.
        """
        if not AGAIN_AFTER_S <= now - record.introduced_in_vain < CUT_OFF_S:
            return 0
        count = min(AGAIN_TIMES * record.read_again, MOST_AGAIN)
        again = bitset.lowest(self._others(record, lacks), count)
        if again:
            record.introduced_in_vain, record.read_again = now, count
        self._regrant(record, again, now)
        return again

    def _others(self, record: MemberRecord, lacks: RunSet) -> RunSet:
        """Those of the runs that a member lacks which others have, as they say."""
        return lacks & ~self._book.leased & ~self._book.free & ~record.have

    def _regrant(self, record: MemberRecord, runs: RunSet, now: float) -> None:
        if runs and record.node in self._unreached:
            self._book.readers.excuse(record, now)  # cut off both ways: no other reads for it
        self._book.regrant(runs, now)

    def _hurry(self, record: MemberRecord, run: RunIndex, now: float, out: list[Output]) -> None:
        """A member waits for a run that is being read: not by a node that is far too slow."""
        if self._book.leases[run].node == record.node or self._book.can_wait(record, run, now):
            return
        slow = self._book.take_over(run, now)
        if slow is not None:
            out.append(Send(slow, m.Revoke(self._roster.digest, (run,))))

    def _help(self, record: MemberRecord, run: RunIndex, now: float, *, idle: bool) -> list[NodeId]:
        """Holders of a run to introduce to a member. The run is granted again if that was in vain before."""
        found = self._roster.holders(run, without=record.node, limit=INTRODUCED)
        if not found:
            if not record.have >> run & 1:
                self._roster.discount_run(run)
                self._book.set_free(1 << run, now)
            return []
        key = (record.node, run)
        before = self._introduced.get(key)
        if before is None:
            if len(self._introduced) >= MAX_INTRODUCTIONS:
                self._introduced.clear()
            self._introduced[key] = now, tuple(found)
        elif (idle or len(found) <= SCARCE) and now - before[0] >= REGRANT_AFTER_S:
            del self._introduced[key]
            if idle or all(self._book.readers.is_hidden(one) for one in found):
                self._regrant(record, 1 << run, now)
            if idle:
                record.introduced_in_vain, record.read_again = now, MAX_STUCK_RUNS
        return found

    # -- holders that nobody reaches ---------------------------------------------------------------

    def _complain(self, node: NodeId, run: RunIndex, now: float, out: list[Output]) -> None:
        """The holders that a member was sent to for this run didn't help: perhaps nobody reaches them.

        A node behind a firewall would hold up all members, window after window, with the runs that it had read until
        this was noticed.
        """
        since, holders = self._introduced.get((node, run), (now, ()))
        if now - since < REGRANT_AFTER_S or len(holders) > SCARCE:
            return
        for holder in holders:
            record = self._roster.members.get(holder)
            if record is None or self._book.readers.is_hidden(holder):
                continue
            accusers = record.complain().unreached_by
            accusers.add(self._bearer(node))
            needed = ACCUSERS_TO_HIDE - (holder in self._unreached)
            witnesses = witnesses_but(holder, self._roster, self._bearer, needed)
            if len(accusers) >= max(1, witnesses):
                accusers.clear()
                out.append(Unreached(holder, self._roster.digest))
                self._book.on_unreached(holder, self._roster.alone({holder}), now)
