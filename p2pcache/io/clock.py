"""The clock, the one place where a daemon reads the time, so that tests can hand in another; when a process began."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Where `now` comes from."""

    def now(self) -> float:
        """Monotonic seconds from an arbitrary zero: the time that deciders are given."""
        ...

    def wall(self) -> float:
        """Unix seconds, for people and records. May jump; never used for deadlines."""
        ...


MOST_S = 1.0  # between two calls of `now` in a process that runs; more time than that stood still
LOOK_S = 0.25  # between calls of `keep_awake`


class AwakeClock:
    """The machine's clocks, without the time for which this process stood still.

    A process that was stopped (SIGSTOP, a paused machine, no CPU time) heard nobody meanwhile. By the
    machine's clock all others would seem silent afterwards. `keep_awake` must be called every `LOOK_S`.

    It is for a decider, which needs a time. The silence of one connection is counted in looks at it, to the same end
    (`io.peers.liveness`, `agent.tracker_link`).
    """

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self.on_stood_still: Callable[[float], None] = lambda _: None  # called with the time now
        self._real = real
        self._now = self._looked = real()

    def now(self) -> float:
        """Monotonic seconds."""
        real = self._real()
        passed, self._looked = real - self._looked, real
        self._now += min(passed, MOST_S)
        if passed > MOST_S:
            self.on_stood_still(self._now)
        return self._now

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    async def keep_awake(self) -> None:
        """Record that the process runs."""
        self.now()


PROC = Path("/proc")
# Field 22 of /proc/PID/stat, counted behind the name, which may hold spaces and brackets.
_START = 19


def start_of(pid: int) -> str:
    """When a process started, in ticks since the boot; "": there is none of that number, or it has ended.

    A number alone doesn't say which process it is, for numbers are used again.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[_START]
