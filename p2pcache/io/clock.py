"""The clock: the one place where a daemon reads the time, so that tests can hand in another."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where `now` comes from."""

    def now(self) -> float:
        """Seconds that only ever grow (the zero is arbitrary): what deciders are given."""
        ...

    def wall(self) -> float:
        """Unix seconds, for people and records. May jump; never used for deadlines."""
        ...


MOST_S = 1.0  # between two looks of a process that runs; what is more, it didn't
LOOK_S = 0.25


class AwakeClock:
    """The machine's clocks, without the time for which this process stood still.

    Who is stopped (SIGSTOP, a paused machine, no CPU time) hears nobody, and everybody would seem silent
    afterwards. Somebody must call `now` every `LOOK_S`.
    """

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._now = self._looked = real()

    def now(self) -> float:
        """Monotonic seconds."""
        real = self._real()
        self._now += min(real - self._looked, MOST_S)
        self._looked = real
        return self._now

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    async def look(self) -> None:
        """Note that the process runs."""
        self.now()


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()
