"""Which reader gets the next lease, and when a run waits for a better one."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from math import ceil
from operator import le

from p2pcache.core import bitset
from p2pcache.core.leases.readers import Readers, lacked_by, stands_aside
from p2pcache.core.leases.settings import SAMPLE, WORTH_TWO
from p2pcache.core.membership.member_record import MemberRecord, Place, Reach
from p2pcache.core.membership.roster import Roster
from p2pcache.core.racks.settings import BRIDGE_SLOTS
from p2pcache.ids import NodeId, RunIndex, RunSet

Tier = tuple[int, bool]
"""Faults of a reader, the worse first: others can't reach it (2), or nobody has tried yet, which counts for runs that
members waited for in vain (1); it is slow."""

FIT: Tier = (0, False)


class ReaderChoice:
    """Chooses among readers that have room: fewer leases than their share and their credit.

    Those are preferred that have the smallest (unreachable, slow, lost the lease, not the rack's holder, runs in
    flight, dice). One that is unreachable or slow gets a lease only if no better one will read the run later: of
    two a node is better if nothing more is held against it, so no quick one waits for a slow one that others reach.
    Readers are drawn from samples, so a choice takes constant time, unless the run is read again, or waits for a better
    one: O(readers).
    """

    def __init__(self, readers: Readers, roster: Roster) -> None:
        """Chooses among the readers of one swarm."""
        self.racks = RackBalance(roster, readers.dice)
        self._readers = readers
        # Readers whose runs `first_reads` named: the next choice looks at them.
        self._first: list[NodeId] = []

    def choose(
        self, run: RunIndex, *, again: bool = False, losers: Sequence[NodeId] = ()
    ) -> MemberRecord | None:
        """The reader of a run, or None if none has room for it, or a better one will read it later.

        If it is read `again` members waited for it in vain, and all quick readers may have it: any reader may read it,
        above its share, too. The `losers` of its lease come after others that are as good.
        """
        readers, best, least = self._readers, None, (FIT, False, 0)
        # Racks have equal shares, whatever their size: the nodes of a small one read more.
        rack_share = ceil(readers.concurrency.limit / max(1, self.racks.count))
        seats = dict.fromkeys(self.racks.order(run), rack_share)
        share = readers.concurrency.limit if again else self._share
        first, self._first = self._first, []
        for node in chain(seats, first, self._drawn(every=again)):
            one = readers.working.get(node)
            if one is None or not readers.may_read(one, run):
                continue
            if len(one.runs) >= min(max(seats.get(node, 0), share), one.credit):
                continue
            load = 0 if node in seats else len(one.runs)
            rank = self._tier(one, again=again), node in losers, load
            if best is None or rank < least:
                best, least = one, rank
            if rank == (FIT, False, 0):
                break
        return None if best is None or self._waits(best, run, again=again) else best

    def goes_to_another(self, run: RunIndex, slow: MemberRecord) -> bool:
        """Whether a run that is taken from a slow reader goes to another one, and not back to it. O(readers)."""
        readers = self._readers
        others = (
            one
            for one in readers.working.values()
            if one is not slow
            and readers.may_read(one, run)
            # A run waits for a quick reader without room, and not for one that is as slow as the loser.
            and (not one.slow or len(one.runs) < one.credit)
        )
        return any(stands_aside(one) <= stands_aside(slow) for one in others)

    def acceptable(self, *, every: bool) -> RunSet:
        """Runs that a reader with room has use for, as far as a sample can tell.

        A slow or unreachable one counts only if no other has use for any: most of its runs wait for a better one.
        `every`: a reader above its share, too, and no sample but all of them.
        """
        readers, share = self._readers, self._share
        drawn = [readers.working[node] for node in self._drawn(every=every)]
        able = [one for one in drawn if every or len(one.runs) < share]
        fit = [one for one in able if one.node not in readers.unfit]
        return bitset.union(map(lacked_by, fit)) or bitset.union(map(lacked_by, able))

    def first_reads(self, fresh: RunSet) -> RunSet:
        """Where readers want some runs only: those of readers without a lease come before second reads of others.

        As far as a sample can tell, and of readers that are neither slow nor unreachable. Of a reader's runs the
        `fresh` ones come first.
        """
        readers = self._readers
        if not readers.choosy:
            return 0
        idle = readers.idle.draw(readers.dice, SAMPLE)
        self._first = [node for node in idle if node not in readers.unfit]
        lacked = [lacked_by(readers.working[node]) for node in self._first]
        return bitset.union(runs & fresh or runs for runs in lacked)

    def _drawn(self, *, every: bool) -> list[NodeId]:
        """Readers with room, those without a lease first."""
        readers = self._readers
        count = len(readers.working) if every else SAMPLE
        drawn = readers.idle.draw(readers.dice, count)
        return drawn + readers.busy.draw(readers.dice, count) if every or self._share > 1 else drawn

    def _tier(self, one: MemberRecord, *, again: bool = False) -> Tier:
        unreached = 2 if stands_aside(one) else int(again and one.reach is not Reach.REACHABLE)
        return unreached, one.slow

    def _waits(self, best: MemberRecord, run: RunIndex, *, again: bool) -> bool:
        """Whether a run waits for a reader that is better than the best with room."""
        # All quick readers may have what is read again, so a slow one doesn't wait for them.
        count, readers = 1 if again else 2, self._readers
        against = self._tier(best)[:count]
        return any(against) and any(
            (its := self._tier(one)[:count]) != against
            and all(map(le, its, against))
            and lacked_by(one) >> run & 1
            and readers.may_read_soon(one)
            for one in readers.working.values()
        )

    @property
    def _share(self) -> int:
        """How many of the leases at once are the fair share of one reader."""
        concurrency, count = self._readers.concurrency, self._readers.able
        # A node's second read takes its rate from the first reads of all, unless many reads wait for their bytes.
        # Reads that wait for the way count twice (`pays`); the other waiting reads stand in a queue.
        more = concurrency.limit - concurrency.least + concurrency.pays - concurrency.least
        worth_two = more >= WORTH_TWO * count
        return max(1, ceil((concurrency.limit if worth_two else concurrency.least) / count))


class RackBalance:
    """Gives leases to the rack that reads least, so that the links into all racks carry the same.

    Sites are compared first, then racks: the link into a site is narrower than the one into a rack. Without labels all
    members are in one rack, and nothing is balanced.
    """

    def __init__(self, roster: Roster, dice: random.Random) -> None:
        """Nothing is read yet."""
        self._roster = roster
        self._dice = dice
        self._reading = Counter[str | Place]()  # leases in flight of each site and rack
        self._read = Counter[str | Place]()  # those ever given

    @property
    def count(self) -> int:
        """How many racks there are."""
        return len(self._roster.places)

    def order(self, run: RunIndex) -> Iterator[NodeId]:
        """Which nodes should read a run, the best first: of each rack the node that would bring it there anyway.

        Of many racks some are drawn: to sort 250 for each lease took a tenth of a tracker's time.
        """
        if self.count > 1:
            places = self._dice.sample([*self._roster.places], min(SAMPLE, self.count))
            for place in sorted(places, key=lambda one: self._burden(one[0]) + self._burden(one)):
                yield self._roster.seated(place)[run % BRIDGE_SLOTS]

    def on_begun(self, place: Place) -> None:
        """A member there reads one run more."""
        for one in (place[0], place):
            self._reading[one] += 1
            self._read[one] += 1

    def on_ended(self, place: Place) -> None:
        """A member that was there when its lease began reads one run less."""
        for one in (place[0], place):
            self._reading[one] -= 1

    def _burden(self, one: str | Place) -> tuple[int, int]:
        return self._reading[one], self._read[one]
