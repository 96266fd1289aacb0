"""Where each run of one model stands on this node: missing, asked for, being read, or had."""

from collections.abc import Iterator

from p2pcache.core import bitset


class RunBook:
    """Sets of runs as bits.

    Invariants (`check`): every set lies inside `full`; nothing that is had is asked for, being
    fetched or leased; what is demanded is wanted.
    """

    __slots__ = ("asked", "demanded", "fetching", "full", "have", "leased", "missing", "wanted")

    def __init__(self, count: int, have: int) -> None:
        self.full = bitset.full(count)
        self.have = have & self.full  # proved
        self.missing = self.full & ~self.have
        self.asked = 0  # requested from a neighbour, answer outstanding
        self.fetching = 0  # being read from the origin
        self.leased = 0  # the tracker lets us read them; being fetched or waiting for it
        self.demanded = 0  # a loader waits for them
        self.wanted = self.full  # what is to be got; the rest is served if it is had, no more

    @property
    def needed(self) -> int:
        """Runs still to be got."""
        return self.missing & self.wanted

    @property
    def free(self) -> int:
        """Needed runs that nobody was asked for (a lease that waits doesn't forbid to ask)."""
        return self.missing & self.wanted & ~(self.asked | self.fetching)

    def window(self, length: int) -> int:
        """The `length` runs from the first needed one on."""
        gap = bitset.first(self.missing & self.wanted)
        return 0 if gap < 0 else bitset.full(length) << gap

    def in_order(self, runs: int) -> Iterator[int]:
        """These runs as they should come: what a loader waits for first, then the others."""
        yield from bitset.members(runs & self.demanded)
        yield from bitset.members(runs & ~self.demanded)

    def demand(self, runs: int) -> None:
        """A loader waits for these runs."""
        runs &= self.missing
        self.demanded |= runs
        self.wanted |= runs

    def want(self, runs: int) -> None:
        """Only these runs are to be got from now on."""
        self.wanted = runs & self.full
        self.demanded &= self.wanted

    def prove(self, runs: int) -> int:
        """Mark runs as had; returns those that were missing."""
        fresh = runs & self.missing
        self.have |= fresh
        self.missing &= ~fresh
        self.asked &= ~fresh
        self.fetching &= ~fresh
        self.leased &= ~fresh
        self.demanded &= ~fresh
        return fresh

    def lose(self, runs: int) -> int:
        """Mark runs as missing again; returns those that were had."""
        gone = runs & self.have
        self.have &= ~gone
        self.missing |= gone
        return gone

    def check(self) -> None:
        """Assert the invariants."""
        assert self.have | self.missing == self.full
        assert not self.have & self.missing
        busy = self.asked | self.fetching | self.leased | self.demanded
        assert not busy & self.have, "a run that is had is still being got"
        assert not (busy | self.wanted) & ~self.full
        assert not self.demanded & ~self.wanted
