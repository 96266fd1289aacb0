"""How many neighbours hold each run, as bit-sliced counters.

Bit r of plane i is bit i of run r's count, so that adding a neighbour's whole have-set is a
handful of big-int operations however many runs there are, and the rarest of a set of candidates
falls out of one pass over the planes. (A list of counts would cost a Python step per run: a
neighbour that joins with 35,000 runs would hold the loop for milliseconds.)
"""


class Rarity:
    """Counts of holders per run; sets of runs are bits of an int."""

    __slots__ = ("planes",)

    def __init__(self) -> None:
        self.planes: list[int] = []  # least significant first; the last one may be 0

    def add(self, runs: int) -> None:
        """One more holder of each of these runs."""
        i = 0
        while runs:
            if i == len(self.planes):
                self.planes.append(0)
            plane = self.planes[i]
            self.planes[i] = plane ^ runs
            runs &= plane  # the carry
            i += 1

    def remove(self, runs: int) -> None:
        """One holder less of each of these runs; each must have one."""
        i = 0
        while runs:
            plane = self.planes[i]
            self.planes[i] = plane ^ runs
            runs &= ~plane  # the borrow
            i += 1

    def rarest(self, runs: int) -> int:
        """Those of `runs` that have the fewest holders."""
        for plane in reversed(self.planes):
            fewer = runs & ~plane
            if fewer:
                runs = fewer
        return runs

    def at_least(self, count: int) -> int:
        """Runs that have so many holders (one or more)."""
        planes = self.planes
        if count >> len(planes):
            return 0
        more, equal = 0, self.held  # in the planes that were looked at, the highest first
        for i in reversed(range(len(planes))):
            if count >> i & 1:
                equal &= planes[i]
            else:
                more |= equal & planes[i]
                equal &= ~planes[i]
        return more | equal

    @property
    def held(self) -> int:
        """Runs that have a holder at all."""
        union = 0
        for plane in self.planes:
            union |= plane
        return union

    def count(self, run: int) -> int:
        """Holders of one run."""
        return sum((plane >> run & 1) << i for i, plane in enumerate(self.planes))
