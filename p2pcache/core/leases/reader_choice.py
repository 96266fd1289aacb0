"""Which reader gets the next lease, and why a lease went to a slow one."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from math import ceil

from p2pcache.core.leases.readers import Readers
from p2pcache.core.leases.settings import HOPELESS_FAILURES, SAMPLE
from p2pcache.core.membership.member_record import MemberRecord, Pace, Place
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.racks.settings import BRIDGE_SLOTS
from p2pcache.ids import NodeId, RunIndex, RunSet

Burden = tuple[int, int, Place]
"""Leases in flight of a rack, those ever given, and which rack it is."""


class ReaderChoice:
    """Chooses among readers that have room: fewer leases than their share and their credit.

    Candidates are preferred in this order (the smallest tuple wins):

    1. others get at what it reads, before a reader that stands aside;
    2. it isn't slow, before a slow one that rests;
    3. its reads are as quick as the others', before one on probation;
    4. it would bring the run into its rack anyway, in the rack that reads least (`RackBalance`);
    5. fewer leases in flight;
    6. dice.

    A slow reader gets a lease only if no quick one will read the run later (`_is_awaited`). A reader that stands aside
    gets one only if no other will. Of each level of leases in flight a sample is drawn, so a choice takes constant
    time; it is the best candidate of the samples.
    """

    def __init__(self, readers: Readers, roster: Roster) -> None:
        """Chooses among the readers of one swarm."""
        self.racks = RackBalance(roster)
        self._readers = readers

    def choose(
        self, run: RunIndex, barred: AbstractSet[NodeId], *, slow_too: bool = False
    ) -> MemberRecord | None:
        """The reader of a run, or None if none that is fit has room for it.

        Args:
            run: which.
            barred: nodes that couldn't read it.
            slow_too: a slow reader may get it even if a quick one may read it later.
        """
        readers = self._readers
        if not len(readers):
            return None
        if not readers.fit:
            return self._choose_quick_first(run, barred, aside=True, slow_too=slow_too)
        found = self._choose_quick_first(run, barred, aside=False, slow_too=slow_too)
        if found is not None or not readers.aside:
            return found
        for one in readers.working.values():
            if not one.aside and not readers.rests(one) and readers.lacks(one, barred, run):
                return None  # it may read the run soon
        return self._choose_quick_first(run, barred, aside=True, slow_too=slow_too)

    def choose_reached(self, run: RunIndex, barred: AbstractSet[NodeId]) -> MemberRecord | None:
        """The least busy of the readers that the tracker could dial, if these are few; None: any may read.

        For a run that is granted again because members waited for it in vain. Where the tracker can dial hardly any
        node it doesn't doubt the others, as perhaps itself is out of reach; but what the others read may be of use to
        nobody.
        """
        readers = self._readers
        few = [one for node, one in readers.working.items() if node in readers.reached]
        if 2 * len(few) >= len(readers):
            return None
        fit = [
            one for one in few
            if len(one.runs) < one.credit and not one.aside and not readers.rests(one)
            and readers.lacks(one, barred, run)
        ]  # fmt: skip
        return min(fit, key=lambda one: (len(one.runs), one.node), default=None)

    def acceptable(self) -> RunSet:
        """Runs that a reader with room has use for, as far as a sample can tell."""
        runs, readers = 0, self._readers
        share = self._share
        for levels in readers.with_room:
            for level in levels[:share]:
                for node in level.draw(readers.dice, SAMPLE):
                    runs |= readers.working[node].wanted
        return runs

    def _choose_quick_first(
        self, run: RunIndex, barred: AbstractSet[NodeId], *, aside: bool, slow_too: bool
    ) -> MemberRecord | None:
        any_slow = bool(self._readers.slow_readers.resting)
        found = self._choose_of(run, barred, aside=aside, slow_too=not any_slow)
        if found is None and any_slow:
            found = self._choose_of(run, barred, aside=aside, slow_too=True)
            if found is not None and not slow_too and self._is_awaited(run, barred, aside=aside):
                return None
        return found

    def _choose_of(
        self, run: RunIndex, barred: AbstractSet[NodeId], *, aside: bool, slow_too: bool
    ) -> MemberRecord | None:
        share = self._share
        # Racks have equal shares, whatever their size: the nodes of a small one read more.
        rack_share = ceil(self._readers.at_once / max(1, self.racks.count))
        for node in self.racks.order(run):
            one = self._readers.working.get(node)
            if one is None or one.pace is not Pace.USUAL or one.aside != aside:
                continue
            if len(one.runs) < min(rack_share, one.credit) and self._may_read(one, run, barred):
                return one
        return self._least_busy(
            self._readers.with_room[aside][:share], run, barred, slow_too=slow_too
        )

    def _least_busy(
        self,
        levels: list[SampledSet],
        run: RunIndex,
        barred: AbstractSet[NodeId],
        *,
        slow_too: bool,
    ) -> MemberRecord | None:
        convicted: MemberRecord | None = None  # on probation, or slow
        for level in levels:
            for node in level.draw(self._readers.dice, SAMPLE):
                one = self._readers.working[node]
                if one.pace is Pace.SLOW and not slow_too:
                    continue
                if not self._may_read(one, run, barred):
                    continue
                if one.pace is Pace.USUAL:
                    return one
                convicted = convicted or one
        return convicted

    def _may_read(self, one: MemberRecord, run: RunIndex, barred: AbstractSet[NodeId]) -> bool:
        return not self._readers.rests(one) and self._readers.lacks(one, barred, run)

    def _is_awaited(self, run: RunIndex, barred: AbstractSet[NodeId], *, aside: bool) -> bool:
        """Whether a quick reader will read this run, if not now: a slow one needn't."""
        readers = self._readers
        return any(
            one.pace is not Pace.SLOW and one.aside == aside
            and (not readers.rests(one) or one.failures < HOPELESS_FAILURES)
            and readers.lacks(one, barred, run)
            for one in readers.working.values()
        )  # fmt: skip

    @property
    def _share(self) -> int:
        """How many of the leases at once are the fair share of one reader."""
        # What slow readers don't read falls to the others. Nor does one on probation count, or it would have a share
        # for which all others are full; nor one that stands aside.
        readers = self._readers
        convicted = readers.slow_readers.convicted.values()
        unfit = sum(1 for one in convicted if one.credit and not one.aside)
        fit = readers.fit - unfit
        return ceil(readers.at_once / (fit or len(readers) or 1))


class RackBalance:
    """Gives leases to the rack that reads least, so that the links into all racks carry the same.

    Without labels all members are in one rack, and nothing is balanced.

    Invariant: `_reading` counts the leases in flight of each site and rack, `_read` those ever given;
    `_order` has the racks of each site in order, as of the roster's `rack_changes` that is `_seen`.
    """

    def __init__(self, roster: Roster) -> None:
        """Nothing is read yet."""
        self._roster = roster
        self._reading: Counter[str | Place] = Counter()
        self._read: Counter[str | Place] = Counter()
        self._order: dict[str, list[Burden]] = {}
        self._seen = -1

    @property
    def count(self) -> int:
        """How many racks there are."""
        return len(self._roster.places)

    def order(self, run: RunIndex) -> Iterator[NodeId]:
        """Which nodes should read a run, the best first: of each rack the node that would bring it there anyway.

        Sites are compared first, then racks: the link into a site is narrower than the one into a rack.
        """
        if len(self._roster.places) < 2:
            return
        if self._seen != self._roster.rack_changes:
            self._sort()
        for site in sorted(self._order, key=lambda s: (self._reading[s], self._read[s], s)):
            for _, _, place in self._order[site]:
                yield self._roster.seated(place)[run % BRIDGE_SLOTS]

    def on_granted(self, record: MemberRecord) -> None:
        """A member reads one run more; all its leases count where it was when the first of them was granted."""
        if record.reading_place is None:
            record.reading_place = record.place
        self._count(record.reading_place, 1, 1)

    def on_ended(self, record: MemberRecord) -> None:
        """It reads one run less; told after the run is gone from its record."""
        assert record.reading_place is not None
        self._count(record.reading_place, -1, 0)
        if not record.runs:
            record.reading_place = None

    def _count(self, place: Place, reading: int, read: int) -> None:
        before = self._burden(place)
        for one in (place[0], place):
            self._reading[one] += reading
            self._read[one] += read
        order = self._order.get(place[0], [])
        at = bisect_left(order, before)
        # One entry is moved: to sort 250 racks for each lease took a tenth of a tracker's time.
        if at < len(order) and order[at] == before:
            del order[at]
            insort(order, self._burden(place))

    def _sort(self) -> None:
        self._order.clear()
        for place in sorted(self._roster.places, key=self._burden):
            self._order.setdefault(place[0], []).append(self._burden(place))
        self._seen = self._roster.rack_changes

    def _burden(self, place: Place) -> Burden:
        return self._reading[place], self._read[place], place
