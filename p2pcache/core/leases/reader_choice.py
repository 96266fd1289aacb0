"""Which reader gets the next lease, and why a lease went to a slow one."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from math import ceil

from p2pcache.core.leases.readers import Readers
from p2pcache.core.leases.settings import HOPELESS_FAILURES, SAMPLE, WORTH_TWO
from p2pcache.core.membership.member_record import MemberRecord, Pace, Place, Reach
from p2pcache.core.membership.roster import Roster
from p2pcache.core.racks.settings import BRIDGE_SLOTS
from p2pcache.ids import NodeId, RunIndex, RunSet

Burden = tuple[int, int, Place]
"""Leases in flight of a rack, those ever given, and which rack it is."""


Tier = tuple[bool, bool, bool, bool]
"""What is held against a reader: others may not get what it reads, whether they do isn't known and some wait for the
run, it is slow, it failed last or is on probation."""

FIT: Tier = (False, False, False, False)


class ReaderChoice:
    """Chooses among readers that have room: fewer leases than their share and their credit.

    Candidates are preferred in this order (the smallest tuple wins):

    1. others get at what it reads, before a reader that stands aside; for a run that members waited for, this is known;
    2. it isn't slow, before a slow one that rests, or whose read would be the last to end;
    3. its last read succeeded, as quickly as the others', before one that failed or is on probation;
    4. it would bring the run into its rack anyway, in the rack that reads least (`RackBalance`);
    5. fewer leases in flight;
    6. dice.

    A reader that stands aside or is slow gets a lease only if no better one will read the run later. Of each number of
    leases in flight a sample is drawn, so a choice takes constant time.
    """

    def __init__(self, readers: Readers, roster: Roster) -> None:
        """Chooses among the readers of one swarm."""
        self.racks = RackBalance(roster)
        self._readers = readers

    def choose(self, run: RunIndex, left: int, *, again: bool = False) -> MemberRecord | None:
        """The reader of a run, or None if none has room for it, or a better one will read it later.

        Args:
            run: which.
            left: runs that are free, this one included.
            again: members waited for it in vain. A reader that the tracker could dial comes before one of which
                nothing is known: the latter's bytes may be of use to nobody.
        """
        best, worst = None, FIT
        for one in self._with_room(run, every=again):
            if self._readers.rests(one) or not self._readers.lacks(one, run):
                continue
            tier = self._tier(one, left, again=again)
            if best is None or tier < worst:
                best, worst = one, tier
            if tier == FIT:
                break
        if best is None:
            return None
        # All quick readers may have what is read again, so a slow one doesn't wait for them.
        against = self._tier(best, left)[: 2 if again else 3]
        return None if any(against) and self._will_be_read(run, left, against) else best

    def acceptable(self, *, every: bool) -> RunSet:
        """Runs that a reader with room has use for, as far as a sample can tell; `every`: also above its share."""
        runs, readers = 0, self._readers
        for level in readers.with_room if every else readers.with_room[: self._share]:
            for node in level.draw(readers.dice, SAMPLE):
                if not readers.rests(one := readers.working[node]):
                    runs |= one.wanted & ~one.have
        return runs

    def _with_room(self, run: RunIndex, *, every: bool) -> Iterator[MemberRecord]:
        """Candidates by what comes after their tier: holders of racks, then by leases in flight, then dice."""
        readers = self._readers
        # Racks have equal shares, whatever their size: the nodes of a small one read more.
        rack_share = ceil(readers.at_once / max(1, self.racks.count))
        for node in self.racks.order(run):
            one = readers.working.get(node)
            if one is not None and len(one.runs) < min(rack_share, one.credit):
                yield one
        for level in readers.with_room if every else readers.with_room[: self._share]:
            for node in level.draw(readers.dice, len(level) if every else SAMPLE):
                yield readers.working[node]

    def _tier(self, one: MemberRecord, left: int, *, again: bool = False) -> Tier:
        readers, on_probation = self._readers, one.pace is Pace.PROBATION
        late = on_probation and not readers.slow_readers.ends_in_time(one, left, readers.at_once)
        aside = one.node in readers.aside
        doubted = again and one.reach is not Reach.REACHABLE
        return aside, doubted, one.pace is Pace.SLOW or late, on_probation or one.failures > 0

    def _will_be_read(self, run: RunIndex, left: int, against: tuple[bool, ...]) -> bool:
        """Whether a reader that stands less aside, or isn't slow, will read this run, if not now."""
        readers = self._readers
        return any(
            self._tier(one, left)[: len(against)] < against
            and (not readers.rests(one) or one.failures < HOPELESS_FAILURES)
            and readers.lacks(one, run)
            for one in readers.working.values()
        )

    @property
    def _share(self) -> int:
        """How many of the leases at once are the fair share of one reader."""
        readers, count = self._readers, self._readers.able
        least = readers.concurrency.least
        # A second read of a node starves beside the first ones of all, unless many reads wait for their bytes. Where
        # some have one, no lease may wait because all have their share.
        worth_two = readers.at_once - least >= WORTH_TWO * count
        return max(ceil(readers.at_once / count) if worth_two else 1, ceil(least / count))


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
