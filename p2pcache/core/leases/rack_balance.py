"""Which rack the next origin lease goes to: the one that reads least, so that all uplinks carry the same. Pure."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from p2pcache.core.membership.roster import Place, Roster
from p2pcache.core.racks.settings import BRIDGE_SLOTS

Burden = tuple[int, int, Place]
"""Leases in flight of a rack, those ever given, and which rack it is."""


class Dealer:
    """Deals leases to the racks of a swarm. Without labels everybody is in one rack, and nothing is dealt.

    Invariant: `_reading` counts the leases in flight of each site and rack, `_read` those ever given;
    `_lines` has the racks of each site in order, as of the roster's `rack_changes` that is `_seen`.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._reading: Counter[str | Place] = Counter()
        self._read: Counter[str | Place] = Counter()
        self._places: dict[int, tuple[Place, int]] = {}  # of those that read, and how many runs
        self._lines: dict[str, list[Burden]] = {}
        self._seen = -1

    def order(self, run: int) -> Iterator[int]:
        """Who should read a run, the best first: of each rack the node that would bring it there anyway.

        Sites come first in turn, then racks, for the way into a site is narrower than the one into a rack.
        """
        if len(self._roster.places) < 2:
            return
        if self._seen != self._roster.rack_changes:
            self._line_up()
        for site in sorted(self._lines, key=lambda s: (self._reading[s], self._read[s], s)):
            for _, _, place in self._lines[site]:
                yield self._roster.seated(place)[run % BRIDGE_SLOTS]

    def took(self, node: int) -> None:
        """A node reads one more run."""
        place, runs = self._places.get(node) or (self._roster.place(node), 0)
        self._places[node] = place, runs + 1
        self._count(place, 1, 1)

    def gave_back(self, node: int) -> None:
        """It reads one run less."""
        place, runs = self._places.pop(node)
        if runs > 1:
            self._places[node] = place, runs - 1
        self._count(place, -1, 0)

    def _count(self, place: Place, reading: int, read: int) -> None:
        before = self._burden(place)
        for one in (place[0], place):
            self._reading[one] += reading
            self._read[one] += read
        line = self._lines.get(place[0], [])
        at = bisect_left(line, before)
        if (
            at < len(line) and line[at] == before
        ):  # sorting 250 racks for each lease took 8 % of a tracker
            del line[at]
            insort(line, self._burden(place))

    def _line_up(self) -> None:
        self._lines.clear()
        for place in sorted(self._roster.places, key=self._burden):
            self._lines.setdefault(place[0], []).append(self._burden(place))
        self._seen = self._roster.rack_changes

    def _burden(self, place: Place) -> Burden:
        return self._reading[place], self._read[place], place
