"""How long requests take, from the last few of them."""

import math
from collections import deque
from collections.abc import Sequence

from p2pcache.core.peers.peer_book import median

_DURATIONS = 31  # requests over which the typical duration is the median
_TRIPS = 15  # ... and the time until an answer begins
_CROSS_AFTER = 4.0  # typical requests that a bridge may take: it asks, and then its rack asks it
_CROSS_MAX_S = 10.0  # ... while none has ended yet, or on the slowest links
_FIRST = 7  # requests after which something can be said


class Timing:
    """Medians as of the last `review`. What takes long across a boundary says nothing of a neighbour here."""

    def __init__(self) -> None:
        """Nothing is known: every request takes for ever."""
        self._near: deque[float] = deque(maxlen=_DURATIONS)  # seconds, within the rack
        self._far: deque[float] = deque(maxlen=_DURATIONS)  # across a boundary
        self._trips: deque[float] = deque(maxlen=_TRIPS)
        self._near_s = self._far_s = math.inf
        self.trip_s = 0.0  # from a question to its answer's first byte; 0: not known

    def answered(self, waited_s: float) -> None:
        """A question was answered, or its answer began, after so long."""
        self._trips.append(waited_s)

    def took(self, seconds: float, *, across: bool) -> None:
        """A run came."""
        (self._far if across else self._near).append(seconds)
        if self._near_s == math.inf and len(self._near) == _FIRST:
            self.review()  # a whole model may be here before the next one

    def review(self) -> None:
        """Take the medians anew."""
        near_s, far_s = median(self._near), median(self._far)
        self._near_s = near_s or far_s or math.inf
        self._far_s = far_s or near_s or math.inf
        self.trip_s = median(self._trips)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of how long requests take."""
        return self._near_s == math.inf

    def typical_s(self, *, across: bool) -> float:
        """What a request takes; inf: not known. If nothing is known of one side, it is as the other."""
        return self._far_s if across else self._near_s

    def look_away_s(self, least_s: float, ages: Sequence[float] = ()) -> float:
        """How long not to look across a boundary: some requests, with `ages` those that are under way there now."""
        typical_s = median([*ages, *self._far]) if ages else max(self._near_s, self._far_s)
        return min(max(least_s, _CROSS_AFTER * typical_s), _CROSS_MAX_S)
