"""How late the event loop wakes up, for metrics: a blocked loop as it shows from inside."""

import asyncio
from collections import deque

from p2pcache.io.tasks import Tasks

SLEEP_S = 0.25  # a stall that a heartbeat or a probe would notice is longer
WINDOW_S = 60.0  # above usual scrape intervals, so that no stall falls between two of them


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
