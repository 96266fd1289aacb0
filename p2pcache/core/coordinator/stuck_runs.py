"""Runs that members wait for in vain.

A member that is stuck is introduced to holders. If it comes back and they were two at most, it complains of them; it
also complains of neighbours that deliver nothing (`membership.reachability`). While storage is idle a member that waits
in vain matters more than a second read: runs are read again for it, more of them each time. It may be cut off itself,
or in a part of the swarm that is, and learns of the others' runs window after window.
"""

from p2pcache.core import bitset
from p2pcache.core.coordinator.settings import (
    AGAIN_TIMES,
    IN_VAIN_S,
    INTRODUCED,
    MAX_NAMED,
    MOST_AGAIN,
    SCARCE,
)
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.outputs import Event, Notice, Output, Send
from p2pcache.core.membership.reachability import Reachability
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId, RunIndex, RunSet


class StuckRuns:
    """Stuck runs of one swarm; what it knows of a member is in the member's record."""

    def __init__(
        self, roster: Roster, book: LeaseBook, reach: Reachability, out: list[Output]
    ) -> None:
        """The swarm's members, its leases, and who gets at whom; outputs are appended to `out`."""
        self._roster = roster
        self._book = book
        self._reach = reach
        self._out = out

    def on_stuck(self, node: NodeId, said: m.Stuck, now: float) -> None:
        """None of a node's neighbours has these runs: introduce holders, or have the runs read again."""
        members, count = self._roster.members, self._roster.run_count
        record = members.get(node)
        if record is None:
            return
        lacks = bitset.from_bytes(said.lacks, count) if said.lacks else 0
        wanted = m.run_bits(said.runs[: m.MAX_STUCK], count)
        for holder in said.gives[:MAX_NAMED]:
            if holder in members and node in members[holder].complained_by:
                self._reach.acquit(members[holder])
        in_vain = self._in_vain(record, now) & wanted
        vain = {one for one in said.vain[:MAX_NAMED] if one in members}
        for run in bitset.members(in_vain):
            holders = self._roster.holders(run, without=node, limit=SCARCE + 1)
            vain.update(holders if len(holders) <= SCARCE else ())
        if self._complain(record, vain, now):
            return  # what they have is free as soon as polled members have said what they have
        if self._book.idle:
            lacks |= wanted
            if vain:  # nobody else gives it what only these have, as it says
                others = self._roster.had_by(lambda one: one.node not in vain and not one.void)
                in_vain |= lacks & ~others
            wanted &= ~self._read_again(record, in_vain, lacks, now)
        holders_of: dict[NodeId, None] = {}
        for run in bitset.members(wanted & ~self._book.free):
            if run in self._book.leases:
                self._hurry(record, run, now)
            else:
                holders_of |= dict.fromkeys(self._introduce(record, run, now))
        if holders_of:
            self._out.append(Send(node, self._roster.introduction(holders_of)))

    def _in_vain(self, record: MemberRecord, now: float) -> RunSet:
        """Runs whose holders a member was told some time ago."""
        waited_s, told = now - record.introduced_at, record.introduced
        if waited_s < IN_VAIN_S:
            return 0
        record.introduced, record.introduced_at = 0, now
        if waited_s >= VERDICT_S:
            record.read_again = 0  # somebody may have mended it
        return told

    def _complain(self, record: MemberRecord, vain: set[NodeId], now: float) -> bool:
        """A member asked these holders in vain; returns whether it is believed of any."""
        believed = False
        for one in sorted(vain - {record.node}):
            holder = self._roster.members[one]
            if not holder.void and self._reach.on_complaint(
                holder, record.node, self._book.readers, now
            ):
                self._out.append(Notice(Event.UNREACHED, one, self._roster.digest))
                believed = True
        return believed

    def _read_again(
        self, record: MemberRecord, in_vain: RunSet, lacks: RunSet, now: float
    ) -> RunSet:
        """Have runs read again though others have them, as they say; returns the runs."""
        count = MOST_AGAIN
        if record.read_again:
            in_vain, count = lacks, min(AGAIN_TIMES * record.read_again, MOST_AGAIN)
        again = bitset.lowest(in_vain & self._book.done & ~record.have, count)
        if again:
            record.read_again = max(m.MAX_STUCK, again.bit_count())
            self._book.regrant(again, now)
        return again

    def _hurry(self, record: MemberRecord, run: RunIndex, now: float) -> None:
        """A member waits for a run that is being read: not by a node that is far too slow."""
        if self._book.leases[run].node == record.node or self._book.can_wait(record, run, now):
            return
        slow = self._book.take_over(run, now)
        if slow is not None:
            self._out.append(Send(slow, m.Revoke(self._roster.digest, (run,))))

    def _introduce(self, record: MemberRecord, run: RunIndex, now: float) -> list[NodeId]:
        """Holders of a run to introduce to a member; without any the run is read again."""
        found = self._roster.holders(run, without=record.node, limit=INTRODUCED)
        if found:
            record.introduced |= 1 << run
        elif not record.have >> run & 1:
            self._book.regrant(1 << run, now)
        return found
