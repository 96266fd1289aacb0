"""Which rack the next origin lease goes to: the one that reads least, so that all uplinks carry the same. Pure."""

from collections import Counter
from collections.abc import Iterator

from p2pcache.core.roster import Place, Roster
from p2pcache.core.seats import SEATS


class Dealer:
    """Deals leases to the racks of a swarm. Without labels everybody is in one rack, and nothing is dealt.

    Invariant: `_reading` counts the leases in flight of each site and rack, `_read` those ever given.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._reading: Counter[str | Place] = Counter()
        self._read: Counter[str | Place] = Counter()
        self._places: dict[int, tuple[Place, int]] = {}  # of those that read, and how many runs

    def order(self, run: int) -> Iterator[int]:
        """Who should read a run, the best first: of each rack the node that would bring it there anyway.

        Sites come first in turn, then racks, for the way into a site is narrower than the one into a rack.
        """
        if len(self._roster.places) > 1:
            for place in sorted(self._roster.places, key=self._burden):
                yield self._roster.seated(place)[run % SEATS]

    def took(self, node: int) -> None:
        """A node reads one more run."""
        place, runs = self._places.get(node) or (self._roster.place(node), 0)
        self._places[node] = place, runs + 1
        for one in (place[0], place):
            self._reading[one] += 1
            self._read[one] += 1

    def gave_back(self, node: int) -> None:
        """It reads one run less."""
        place, runs = self._places.pop(node)
        if runs > 1:
            self._places[node] = place, runs - 1
        for one in (place[0], place):
            self._reading[one] -= 1

    def _burden(self, place: Place) -> tuple[int, int, int, int, Place]:
        site = place[0]
        return (
            self._reading[site], self._read[site], self._reading[place], self._read[place], place
        )  # fmt: skip
