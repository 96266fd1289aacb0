"""How long a load waits before it demands bytes, and which ones then. Pure."""

import threading
from collections.abc import Callable, Sequence

from p2pcache.loader.source.base import Range

# Bytes that nobody has waited for so long come in the swarm's own order, rarest first inside a
# window: if every loader asked for its next tensor at once, all nodes of a storm would want the
# same chunk.
PATIENCE_S = 0.3
# A node without neighbours spreads nothing, and fetches in file order: what lies behind bytes that this
# load doesn't need would come last. Four times what such a node reads at once; so many runs in order do
# a swarm no harm if it comes after all.
AHEAD_RUNS = 32


class Demands:
    """What one load demands while it waits."""

    def __init__(self, runs: Callable[[Range], Sequence[int]], has: Callable[[int], bool]) -> None:
        """Nothing is demanded.

        Args:
            runs: those that a range of a file lies in.
            has: whether a run is here.
        """
        self.planned = False  # what is waited for now is weights
        self.neighbours: int | None = None  # of the node, as its agent said last; None: not yet
        self.told = 0  # runs (bits) that were demanded
        self._runs = runs
        self._has = has
        self._gap = 0  # every run below it was here
        self._lock = threading.Lock()  # of those who tell

    def patience_s(self, ranges: Sequence[Range]) -> float:
        """How long to wait for these ranges, the most welcome first, before any is demanded."""
        return 0.0 if not self.planned or self._passed_over(ranges) else PATIENCE_S

    def choose(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Those of the ranges that are waited for, the most welcome first, to demand now."""
        if not self.planned:
            return ranges  # metadata: all of it
        if not self._passed_over(ranges):
            return ranges[:1]  # what is next, so that a stuck one gets through
        if all(self.told >> run & 1 for run in self._missing(ranges[0])):
            return []  # one call for many of them, not one for each
        some, runs = 0, set[int]()
        while some < len(ranges) and len(runs) < AHEAD_RUNS:
            runs.update(self._missing(ranges[some]))
            some += 1
        return ranges[:some]

    def tell(self, runs: int) -> int:
        """Those of the runs (bits) that the agent must hear of; it has heard of them from now on."""
        with self._lock:
            fresh = runs & ~self.told
            self.told |= fresh
        return fresh

    def forget(self) -> None:
        """Another agent listens, which has heard of nothing."""
        with self._lock:
            self.told = 0

    def _missing(self, wanted: Range) -> list[int]:
        return [run for run in self._runs(wanted) if not self._has(run)]

    def _passed_over(self, ranges: Sequence[Range]) -> bool:
        """Whether a node without neighbours would fetch something else before the first range."""
        if self.neighbours != 0 or not ranges:
            return False
        first = min(self._missing(ranges[0]), default=0)
        while self._gap < first and self._has(self._gap):
            self._gap += 1
        return self._gap < first
