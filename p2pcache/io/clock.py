"""The clock: the one place where a daemon reads the time, so that tests can hand in another."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where `now` comes from."""

    def now(self) -> float:
        """Seconds that only ever grow (the zero is arbitrary): what deciders are given."""
        ...

    def wall(self) -> float:
        """Unix seconds, for people and records. May jump; never used for deadlines."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()
