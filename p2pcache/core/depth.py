"""How many reads of the origin one node has under way at once, so that a long fat way stays full. Pure."""

from collections.abc import Sequence

from p2pcache.core.chunking import MiB
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.way import TIMES, TRIPS, Way, settled

# Storage on another continent, and nobody's gusts to add to: each read begins with a slow start of its own,
# so what came says too little for too long.
_FAR_S = 0.1
_FAR_BYTES = 32 * MiB  # more would only put off the first runs, which a loader waits for


class Depth:
    """The usual reads at once, and those that the way from the origin takes beyond them.

    A lone node with runs of 4 MiB had 0.26 of 25 Gbit/s at 30 ms to the first byte (simulated, all of
    its reads in step) with 8 reads at once, and has 0.56 with up to 32.
    """

    def __init__(self, run_bytes: Sequence[int], settings: SwarmSettings, now: float) -> None:
        """Begin with the usual ones; `run_bytes`: the length of each run."""
        self._run_bytes = run_bytes
        self._settings = settings
        self._usual_bytes = sum(run_bytes) / max(1, len(run_bytes))
        self._way = Way(0.0, now, trips=TRIPS)
        room = int(_FAR_BYTES / max(1.0, self._usual_bytes)) - settings.origin_fetches
        self._far_ahead = max(0, min(settings.origin_ahead, room))
        self._floor = 0  # as many ahead at least
        self.ahead = 0  # beyond the usual ones

    @property
    def reads(self) -> int:
        """How many runs may be read at the same time."""
        return self._settings.origin_fetches + self.ahead

    @property
    def most(self) -> int:
        """What `reads` never exceeds."""
        return self._settings.origin_fetches + self._settings.origin_ahead

    def answered(self, waited_s: float, *, alone: bool = False) -> None:
        """A read waited so long for its first byte (0: not known); `alone`: there is no other node."""
        self._way.answered(waited_s)
        self._floor = self._far_ahead if alone and self._way.rtt_s >= _FAR_S else 0

    def idle_until(self, now: float) -> None:
        """Nothing was being read until now."""
        self._way.idle_until(now)

    def read(self, run: int, now: float) -> None:
        """A run has come."""
        way = self._way
        way.carried(self._run_bytes[run], now)
        way.measure(self._usual_bytes / TIMES, self.most)
        beyond = max(self._floor, way.runs - self._settings.origin_fetches)
        self.ahead = settled(self.ahead, beyond)
