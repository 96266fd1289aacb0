"""How many neighbours hold each run, as bit-sliced counters (O'Neil and Quass 1997).

Bit r of plane i is bit i of run r's count. To add a neighbour with all its runs is a handful of operations on large
integers, however many runs there are, and one pass over the planes finds the rarest of some runs. A list of counts
would cost a Python step for each run, and a neighbour with all of a large model would hold the loop.
"""

from p2pcache.core import bitset
from p2pcache.ids import RunSet


class Rarity:
    """Holders of each run, for rarest first (Cohen 2003)."""

    __slots__ = ("planes",)

    def __init__(self) -> None:
        """No run has a holder."""
        self.planes: list[RunSet] = []  # least significant first; the last one may be 0

    def add_holder(self, runs: RunSet) -> None:
        """Each of these runs has one more holder."""
        i = 0
        while runs:
            if i == len(self.planes):
                self.planes.append(0)
            plane = self.planes[i]
            self.planes[i] = plane ^ runs
            runs &= plane  # the carry
            i += 1

    def remove_holder(self, runs: RunSet) -> None:
        """Each of these runs has one holder less; it must have one."""
        i = 0
        while runs:
            plane = self.planes[i]
            self.planes[i] = plane ^ runs
            runs &= ~plane  # the borrow
            i += 1

    def rarest(self, runs: RunSet) -> RunSet:
        """Those of `runs` that have the fewest holders."""
        for plane in reversed(self.planes):
            fewer = runs & ~plane
            if fewer:
                runs = fewer
        return runs

    @property
    def held(self) -> RunSet:
        """Runs that have a holder."""
        return bitset.union(self.planes)

    @property
    def common(self) -> RunSet:
        """Runs that have at least two holders."""
        return bitset.union(self.planes[1:])
