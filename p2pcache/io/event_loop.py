"""The event loop of a daemon with very many connections: how late it wakes up, and garbage that must not hold it.

Python's own rule now and then traverses all live objects: with thousands of members that stops the
tracker. Its young generation is large, too, since each message replaces a few long-lived
objects. Here the young generation is collected often, while it is small, and then set aside
(`gc.freeze`). All objects are traversed only after many connections have ended: cycles consist of
their remains.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Callable

from p2pcache.io.tasks import Tasks

SLEEP_S = 0.25  # a stall that a heartbeat or a probe would notice is longer
WINDOW_S = 60.0  # above usual scrape intervals, so that no stall falls between two of them
# Thousands of messages a second leave tens of thousands of new objects, and a collection looks at each. Seldom ones
# would stall the loop.
YOUNG_S = 0.05
LEAST_ENDED = 500  # connections; some 30 KiB each, if all of it hung together in cycles
SHARE_ENDED = 4  # a quarter of the live connections, if that is more: Python's rule for old objects


class LoopLag:
    """Sleeps again and again, and records how late it woke up."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()  # (when, seconds)

    def start(self, tasks: Tasks) -> None:
        """Begin; ends with `tasks`."""
        _ = tasks.spawn(self._measure(), name="loop-lag")

    @property
    def worst_s(self) -> float:
        """The longest delay of the last minute, in seconds."""
        return max((late for _, late in self._late), default=0.0)

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SLEEP_S
            await asyncio.sleep(SLEEP_S)
            now = loop.time()
            self._late.append((now, max(0.0, now - due)))
            while self._late[0][0] < now - WINDOW_S:
                self._late.popleft()


def usual_rule() -> None:
    """Set aside what was imported, and collect by Python's own rule from now on: a daemon's pauses must be short."""
    gc.freeze()
    gc.set_threshold(700, 10, 10)


class GcPacing:
    """Collects in place of Python's own rule, from `start` on. One per process."""

    def __init__(self, *, live: Callable[[], int], ended: Callable[[], int]) -> None:
        """Nothing changes yet.

        Args:
            live: connections now.
            ended: connections that have ended since the start.
        """
        self.full = 0  # collections of all generations, for tests
        self._live = live
        self._ended = ended
        self._ended_before = 0  # `ended` at the last full collection

    def start(self, tasks: Tasks) -> None:
        """Take over for the life of the process."""
        gc.disable()
        tasks.every(YOUNG_S, self.collect_due, name="garbage")

    async def collect_due(self) -> None:
        """Collect the young generation, or all of them when enough connections have ended."""
        ended = self._ended()
        if ended - self._ended_before >= max(LEAST_ENDED, self._live() // SHARE_ENDED):
            self._ended_before = ended
            self.full += 1
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(0)
        gc.freeze()
