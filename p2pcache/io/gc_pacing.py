"""When Python looks for garbage cycles in a daemon with very many connections.

Left alone it looks through everything that lives now and then: with 10,000 members that stops the
tracker for 0.7 s every twenty seconds, and for 50-100 ms every second or two (each message replaces a
few long-lived objects, so "young" ones are tens of thousands). Here the young are looked at often, so that
they are few (about 1 ms), and then set aside; everything is looked at only after many connections have
ended, since their remains are what cycles are made of.
"""

import gc
from collections.abc import Callable

from p2pcache.io.tasks import Tasks

# 3,100 messages leave some 36,000 new objects a second, mostly what connections wait with, and a look takes
# a microsecond for each: once a second that were stalls of 40 ms, and of 100 while a storm begins.
YOUNG_S = 0.05
LEAST_ENDED = 500  # connections; some 30 KiB each, if all of it hung together in cycles
SHARE_ENDED = 4  # ... or a quarter of those that live, which is Python's own rule for old objects


class Garbage:
    """Collects in place of Python's own rule, from `start` on. One per process."""

    def __init__(self, *, live: Callable[[], int], ended: Callable[[], int]) -> None:
        """Nothing changes yet.

        Args:
            live: connections now.
            ended: connections that have ended since the start.
        """
        self.full = 0  # looks through everything, for tests
        self._live = live
        self._ended = ended
        self._looked_at = 0  # `ended` at the last look through everything

    def start(self, tasks: Tasks) -> None:
        """Take over; for as long as the process lives."""
        gc.disable()
        tasks.every(YOUNG_S, self.look, name="garbage")

    async def look(self) -> None:
        """Do what is due."""
        ended = self._ended()
        if ended - self._looked_at >= max(LEAST_ENDED, self._live() // SHARE_ENDED):
            self._looked_at = ended
            self.full += 1
            gc.unfreeze()
            gc.collect()
        else:
            gc.collect(0)
        gc.freeze()
