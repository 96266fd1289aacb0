"""The state of each run of one model on this node.

`docs/design/06-what-a-node-asks.md` has the table of states and events; an empty cell is a bug of the caller. Three
flags stand beside the state: *wanted*, *leased* and *urgent*. A proved run is neither leased nor urgent.
"""

from collections.abc import Iterator

from p2pcache.core import bitset
from p2pcache.ids import RunIndex, RunSet


class RunStates:
    """One run set for each state and each flag, so that a decision about all runs is a few operations on integers.

    `missing` is all that isn't proved. A run of it that is neither in `requested` nor in `fetching`, which the owners
    of requests and of reads keep, is in the state *missing*; one that is in both is *racing*.

    Invariants (`check`): `have` and `missing` are a partition of `full`; what is requested, fetching, leased or urgent
    is missing; what is urgent is wanted.
    """

    __slots__ = ("fetching", "full", "have", "leased", "missing", "requested", "urgent", "wanted")

    def __init__(self, count: int, have: RunSet) -> None:
        """All of so many runs are wanted, some are here, and nothing is under way."""
        self.full: RunSet = bitset.full(count)
        self.have: RunSet = have & self.full
        self.missing: RunSet = self.full & ~self.have
        self.requested: RunSet = 0
        self.fetching: RunSet = 0
        self.leased: RunSet = 0  # the tracker lets us read them
        self.urgent: RunSet = 0  # a loader waits for them
        self.wanted: RunSet = self.full  # to be got; the others are served if they are here

    @property
    def needed(self) -> RunSet:
        """Runs that are still to be got: wanted and missing."""
        return self.missing & self.wanted

    @property
    def free(self) -> RunSet:
        """Needed runs with nothing under way. A leased one among them may be asked for."""
        return self.missing & self.wanted & ~(self.requested | self.fetching)

    def window(self, length: int) -> RunSet:
        """The `length` runs from the first needed one on."""
        gap = bitset.first(self.missing & self.wanted)
        return 0 if gap < 0 else bitset.full(length) << gap

    def in_order(self, runs: RunSet) -> Iterator[RunIndex]:
        """These runs in the order in which they should come: urgent ones, then the others."""
        yield from bitset.members(runs & self.urgent)
        yield from bitset.members(runs & ~self.urgent)

    # -- events -------------------------------------------------------------------------------

    def set_proved(self, runs: RunSet) -> RunSet:
        """Runs are here and proved; returns those that were missing. Whatever was under way for them is over."""
        fresh = runs & self.missing
        self.have |= fresh
        self.missing &= ~fresh
        self.requested &= ~fresh
        self.fetching &= ~fresh
        self.leased &= ~fresh
        self.urgent &= ~fresh
        return fresh

    def set_lost(self, runs: RunSet) -> RunSet:
        """The bytes of these runs are gone or wrong; returns those that were here."""
        lost = runs & self.have
        self.have &= ~lost
        self.missing |= lost
        return lost

    # -- flags --------------------------------------------------------------------------------

    def make_urgent(self, runs: RunSet) -> None:
        """A loader waits for these runs. They are wanted from now on."""
        runs &= self.missing
        self.urgent |= runs
        self.wanted |= runs

    def want_only(self, runs: RunSet) -> None:
        """From now on only these runs are wanted; no other run is urgent any more."""
        self.wanted = runs & self.full
        self.urgent &= self.wanted

    def check(self) -> None:
        """Assert the invariants."""
        assert self.have | self.missing == self.full
        assert not self.have & self.missing
        busy = self.requested | self.fetching | self.leased | self.urgent
        assert not busy & ~self.missing, "a proved run is still being got"
        assert not self.wanted & ~self.full
        assert not self.urgent & ~self.wanted
