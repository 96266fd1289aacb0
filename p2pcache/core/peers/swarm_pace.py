"""How quickly new runs appear in a swarm: the clock that tells a slow node from a slow swarm."""

from collections import deque
from statistics import median_high

_STEPS = 15  # the last few seconds of a storm
_KNOWN = 4  # steps below which nothing is said: the first is what was there when we came

# In which the first few may not come, or who has nothing to learn it from (a model of three runs) would wait for ever.
_MOST_S = 6.0


class Tempo:
    """Seconds from one new run to the next, among us and our neighbours."""

    def __init__(self, now: float) -> None:
        """Nothing has come yet."""
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._came: deque[tuple[float, int]] = deque(maxlen=_STEPS)  # seconds, and runs in them
        self._count = 0
        self._at = 0.0
        self._began = now
        self.least_s = 0.0  # the least mean since the tracker was lost, or ever; 0.0: not known

    def look(self, count: int, now: float) -> None:
        """So many runs are to be had by now."""
        if count > self._count:
            runs = count - self._count
            if self._steps:
                self._came.append((now - self._at, runs))
            self._steps.append((now - self._at) / runs)
            self._at = now
            # Never more than it was: the pauses in which everybody waits for an owner would make them wait longer
            # for the next (and silence is longer for some than for others).
            if mean_s := self.mean_s:
                self.least_s = min(self.least_s or mean_s, mean_s)
        self._count = count

    def lost(self) -> None:
        """The tracker is gone: what is known of the swarm's mean tempo is known now."""
        self.least_s = self.mean_s

    @property
    def seconds(self) -> float:
        """The median of late; 0.0: not known."""
        return median_high(self._steps) if len(self._steps) >= _KNOWN else 0.0

    @property
    def mean_s(self) -> float:
        """The mean of late, which gusts don't change but pauses do; 0.0: not known."""
        runs = sum(count for _, count in self._came)
        return sum(seconds for seconds, _ in self._came) / runs if runs >= _KNOWN else 0.0

    def at_least_s(self, now: float) -> float:
        """The least mean, or while none is known the time in which the first few haven't come, up to a limit."""
        return self.least_s or min(_MOST_S, now - self._began) / _KNOWN
