"""How quickly new runs appear in a swarm: the clock that tells a slow node from a slow swarm."""

from collections import deque
from statistics import median_high

_STEPS = 15  # the last few seconds of a storm
_KNOWN = 4  # steps below which nothing is said: the first is what was there when we came


class Tempo:
    """Seconds from one new run to the next, among us and our neighbours."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._count = 0
        self._at = 0.0

    def look(self, count: int, now: float) -> None:
        """So many runs are to be had by now."""
        if count > self._count:
            self._steps.append((now - self._at) / (count - self._count))
            self._at = now
        self._count = count

    @property
    def seconds(self) -> float:
        """The median of late; 0.0: not known."""
        return median_high(self._steps) if len(self._steps) >= _KNOWN else 0.0
