"""Runs that members wait for in vain.

A member that is stuck is introduced to holders. If it comes back and they were two at most, it complains of them; it
also complains of neighbours that deliver nothing (`membership.reachability`). While storage is idle a member that waits
in vain matters more than a second read: runs are read again for it. If it was sent to their holders these are more each
time: the member, or its part of the swarm, may be cut off, and then it lacks one window of runs after the other.
"""

from collections.abc import Callable
from functools import cache

from p2pcache.core import bitset
from p2pcache.core.coordinator import settings
from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.lost_runs import LostRuns
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.outputs import Event, Notice, Output, Send
from p2pcache.core.membership.reachability import Reachability
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId, RunSet


class StuckRuns:
    """Stuck runs of one swarm; what it knows of a member is in the member's record."""

    def __init__(
        self, roster: Roster, book: LeaseBook, reach: Reachability, lost_runs: LostRuns, out: list[Output]
    ) -> None:  # fmt: skip
        """The swarm's members, its leases, who gets at whom, and what is lost; outputs are appended to `out`."""
        self._roster, self._book, self._reach, self._out = roster, book, reach, out
        self._lost_runs = lost_runs

    def on_stuck(self, node: NodeId, said: m.Stuck, now: float) -> None:
        """None of a node's neighbours has these runs: introduce holders, or have the runs read again."""
        members, count = self._roster.members, self._roster.run_count
        record = members.get(node)
        if record is None:
            return
        wanted = m.run_bits(said.runs[: m.MAX_STUCK], count)
        lacks = wanted | (bitset.from_bytes(said.lacks, count) if said.lacks else 0)
        for holder in said.gives[: m.MAX_NAMED]:
            if holder in members and node in members[holder].complained_by:
                self._reach.acquit(members[holder], now)
        told = record.told
        in_vain = self._in_vain(record, now) & wanted
        vain = {one for one in said.vain[: m.MAX_NAMED] if one in members}
        for run in bitset.members(in_vain):
            holders = self._roster.holders(run, without=node, limit=settings.SCARCE + 1)
            vain.update(told.intersection(holders) if len(holders) <= settings.SCARCE else ())
        if self._complain(record, vain, now):
            return  # what they have is free as soon as polled members have said what they have
        covered = cache(lambda: self._lost_runs.covered)  # looks at all members: at most once
        if self._book.idle and (in_vain or vain or record.read_again):
            # What nobody gives is awaited, or searched for.
            had = self._book.done & ~record.have & covered()
            again = self._more_each_time(record, in_vain & had, lacks & had)
            if vain:  # nobody else gives it what only these have, as it says
                others = self._roster.had_by(lambda one: one.node not in vain and not one.void)
                again |= lacks & had & ~others
            if again := bitset.lowest(again, settings.MOST_AGAIN):
                self._book.regrant(again)
        self._help(record, wanted, covered, now)

    def _in_vain(self, record: MemberRecord, now: float) -> RunSet:
        """Runs whose holders a member was told some time ago."""
        waited_s, told = now - record.introduced_at, record.introduced
        if waited_s < settings.IN_VAIN_S:
            return 0
        record.introduced, record.told, record.introduced_at = 0, frozenset(), now
        if waited_s >= VERDICT_S:
            record.read_again = 0  # somebody may have mended it
        return told

    def _complain(self, record: MemberRecord, vain: set[NodeId], now: float) -> bool:
        """A member asked these holders in vain; returns whether it is believed of any."""
        some = [self._roster.members[one] for one in sorted(vain - {record.node})]
        waiting = self._reach.witnesses(self._book.readers.working if some else ())
        complain = self._reach.on_complaint
        believed = [
            one.node for one in some if not one.void and complain(one, record.node, waiting, now)
        ]
        self._out += [Notice(Event.UNREACHED, one, self._roster.digest) for one in believed]
        return bool(believed)

    def _more_each_time(self, record: MemberRecord, in_vain: RunSet, lacks: RunSet) -> RunSet:
        """Runs to be read again for a member that was sent to their holders in vain: more of them each time.

        A neighbour that hangs says nothing of the others: runs that only it has don't make them more.
        """
        runs, count = in_vain, settings.MOST_AGAIN
        if record.read_again:
            runs, count = lacks, min(settings.AGAIN_TIMES * record.read_again, count)
        again = bitset.lowest(runs, count)
        if again:
            record.read_again = max(m.MAX_STUCK, again.bit_count())
        return again

    def _help(
        self, record: MemberRecord, wanted: RunSet, covered: Callable[[], RunSet], now: float
    ) -> None:
        """Introduce holders. Runs of those that deliver nothing, and of far too slow readers, are read again."""
        book, found = self._book, dict[NodeId, None]()
        given = bitset.full(self._roster.run_count)  # by anybody, perhaps
        for run in bitset.members(wanted & ~book.free):
            if run in book.leases:
                slow = book.take_over(run, record, now)
                if slow is not None:
                    self._out.append(Send(slow, m.Revoke(self._roster.digest, (run,))))
                continue
            holders = given >> run & 1 and self._roster.holders(
                run, without=record.node, limit=settings.INTRODUCED
            )
            if holders:
                record.introduced |= 1 << run
                found |= dict.fromkeys(holders)
                continue
            if given >> run & 1:
                # All members were looked at: they aren't again for each of the runs that nobody gives.
                given = self._roster.had_by(lambda one: one is not record and not one.void)
            # What isn't covered is searched for: all members that had it are gone.
            if not record.have >> run & 1 and covered() >> run & 1:
                book.regrant(1 << run)
        if found:
            if record.introduced_at == now:  # those named later have less time to help
                record.told |= frozenset(found)
            self._out.append(Send(record.node, self._roster.introduction(found)))
