"""Usual times in one swarm: how long requests take, and how quickly new runs appear."""

import math
from collections import deque
from collections.abc import Sequence

from p2pcache.core.peers.settings import (
    FIRST_STEPS_S,
    KNOWN_STEPS,
    LAST_RUNS,
    PULSE_LEAST_S,
    PULSE_MAX_S,
    PULSE_SHARE,
)
from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian, median


class RequestTiming:
    """How long requests take, the median of late: within the rack, and across a boundary."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._near = RollingMedian(USUAL_OF)  # seconds, within the rack
        self._far = RollingMedian(USUAL_OF)  # seconds, across a boundary
        self._answers = RollingMedian(USUAL_OF)  # seconds

    def on_answer(self, waited_s: float) -> None:
        """BUSY or the first byte of a run came, this many seconds after the request."""
        self._answers.add(waited_s)

    def on_run(self, took_s: float, *, across: bool) -> None:
        """A run came so many seconds after its request began to count; `across`: across a boundary."""
        (self._far if across else self._near).add(took_s)

    @property
    def answer_s(self) -> float:
        """Seconds from a request to the first byte of its answer; 0: not known."""
        return self._answers.median

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of how long requests take."""
        return not self._near and not self._far

    def usual_s(self, *, across: bool) -> float:
        """Seconds that a request takes, within the rack or across a boundary; inf: not known.

        If nothing is known of one side only, it is taken for as quick as the other.
        """
        near_s, far_s = self._near.median, self._far.median
        return (far_s or near_s if across else near_s or far_s) or math.inf

    def slower_s(self, ages_s: Sequence[float] = ()) -> float:
        """Seconds that a request takes, within the rack or across a boundary, whichever takes longer; inf: not known.

        With `ages_s`, those of requests in flight across a boundary, they count like the durations of ended ones there.
        """
        if ages_s:
            return median([*ages_s, *self._far.samples])
        return max(self.usual_s(across=False), self.usual_s(across=True))


class SwarmPace:
    """How quickly runs come here, and how quickly new ones appear among us and our neighbours."""

    def __init__(self, now: float) -> None:
        """Nothing has come yet."""
        self._received_s = RollingMedian(USUAL_OF)  # seconds from one run to the next
        self._received = 0
        self._received_at = now  # when there were more here
        self._gusts: deque[tuple[float, int]] = deque(maxlen=USUAL_OF)  # seconds, new runs in them
        self._count = 0
        self._at: float | None = None  # when new runs were seen last
        self._began = now
        self.least_mean_s = 0.0  # since the tracker was lost, or ever; 0: not known

    def on_received(self, count: int, now: float) -> None:
        """So many runs came here by now."""
        if count > self._received:
            self._received_s.add((now - self._received_at) / (count - self._received))
            self._received, self._received_at = count, now

    def on_count(self, count: int, now: float) -> None:
        """So many runs are here or at a neighbour by now."""
        if count > self._count:
            if self._at is not None:
                self._gusts.append((now - self._at, count - self._count))
            self._at = now
            # It may only fall: without a tracker everybody pauses until an owner reads. If pauses raised the mean,
            # everybody would wait longer for the next owner.
            if mean_s := self.mean_s:
                self.least_mean_s = min(self.least_mean_s or mean_s, mean_s)
        self._count = count

    def on_tracker_lost(self) -> None:
        """The mean of this moment is the first one that counts from now on."""
        self.least_mean_s = self.mean_s

    @property
    def received_s(self) -> float:
        """Seconds from one run to the next, the median; 0: not known."""
        return self._received_s.median if len(self._received_s) >= KNOWN_STEPS else 0.0

    @property
    def mean_s(self) -> float:
        """The mean, which gusts don't change but pauses do; 0: not known."""
        runs = sum(count for _, count in self._gusts)
        return sum(seconds for seconds, _ in self._gusts) / runs if runs >= KNOWN_STEPS else 0.0

    def estimated_s(self, now: float) -> float:
        """`least_mean_s`; while it is unknown, the time in which the first few runs haven't come, up to a limit."""
        return self.least_mean_s or min(FIRST_STEPS_S, now - self._began) / KNOWN_STEPS


def pulse_s(pace_s: float, lacking: int) -> float:
    """Seconds from one pulse of a node's loop to the next, whole milliseconds; 0: it has none.

    `pace_s` is that of the quickest swarm; 0: not known. The pull that is nearest to its end lacks `lacking` runs: the
    last ones wait for nothing.
    """
    if lacking <= LAST_RUNS:
        return 0.0
    usual_s = int(1000 * min(PULSE_SHARE * pace_s, PULSE_MAX_S)) / 1000
    return usual_s if usual_s >= PULSE_LEAST_S else 0.0
