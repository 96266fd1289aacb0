"""How long a load waits before it demands bytes from its agent, and which ones it demands then.

The agent makes demanded runs urgent. A load decides; it does no I/O and reads no clock.
"""

import threading
from collections.abc import Callable, Sequence

from p2pcache.ids import RunIndex, RunSet
from p2pcache.loader.source.base import Range

# A load lets the swarm choose (rarest first in a window) until it has waited this long. If every
# loader demanded its next tensor at once, all nodes of a storm would want the same run.
PATIENCE_S = 0.3
# Runs demanded at once on a node without neighbours. Such a node fetches in file order, so a tensor
# behind bytes that the load doesn't need would come last. Four times the runs that it reads at
# once: few enough to do a swarm no harm that forms meanwhile.
AHEAD_RUNS = 32


class DemandPolicy:
    """What one load demands while it waits."""

    def __init__(
        self,
        runs_of: Callable[[Range], Sequence[RunIndex]],
        has_run: Callable[[RunIndex], bool],
    ) -> None:
        """Nothing is demanded yet.

        Args:
            runs_of: the runs in which a range of a file lies.
            has_run: whether a run is readable here.
        """
        self.reads_weights = False  # False: the load still reads headers and index
        self.neighbours: int | None = None  # of the node, as its agent said last; None: unknown
        self.demanded: RunSet = 0  # by this load, of the agent that is attached
        self._runs_of = runs_of
        self._has_run = has_run
        self._first_gap: RunIndex = 0  # all runs below it are readable
        self._lock = threading.Lock()  # of `demanded`

    def patience_s(self, ranges: Sequence[Range]) -> float:
        """Seconds to wait before any of these ranges is demanded, the most urgent range first."""
        return 0.0 if not self.reads_weights or self._fetched_later(ranges) else PATIENCE_S

    def to_demand(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Which of the awaited ranges, the most urgent first, to demand now."""
        if not self.reads_weights:
            return ranges
        if not self._fetched_later(ranges):
            return ranges[:1]  # it may be stuck
        if all(self.demanded >> run & 1 for run in self._missing(ranges[0])):
            return []  # the next call demands many, not one for each range that arrives
        count, runs = 0, set[RunIndex]()
        while count < len(ranges) and len(runs) < AHEAD_RUNS:
            runs.update(self._missing(ranges[count]))
            count += 1
        return ranges[:count]

    def mark_demanded(self, runs: RunSet) -> RunSet:
        """Count these runs as demanded.

        Returns:
            Those that weren't demanded before: the agent must hear of them.
        """
        with self._lock:
            fresh = runs & ~self.demanded
            self.demanded |= fresh
        return fresh

    def on_reattached(self) -> None:
        """Another agent listens, which knows of no demand."""
        with self._lock:
            self.demanded = 0

    def _missing(self, wanted: Range) -> list[RunIndex]:
        return [run for run in self._runs_of(wanted) if not self._has_run(run)]

    def _fetched_later(self, ranges: Sequence[Range]) -> bool:
        """Whether the node has no neighbours and would fetch another run before the first range."""
        if self.neighbours != 0 or not ranges:
            return False
        first = min(self._missing(ranges[0]), default=0)
        while self._first_gap < first and self._has_run(self._first_gap):
            self._first_gap += 1
        return self._first_gap < first
