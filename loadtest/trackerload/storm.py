"""One storm of `loadtest.trackerload.__main__`: what storage has given, and what has spread."""

import random
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

from p2pcache.core import bitset

if TYPE_CHECKING:
    from loadtest.trackerload.agents import Agent

RUNS_PER_S = 40.0  # what storage gives a storm, however many leases are in flight
FIRST_BYTE_S = 0.02  # of storage
SPREAD_S = 1.0  # from the reader to everybody else in the swarm


class Storm:
    """One model that some agents of this process pull at once."""

    def __init__(self, members: list["Agent"], runs: int) -> None:
        self.runs = runs
        self.digest = secrets.token_hex(32)
        self.members = members
        self._read: deque[tuple[float, int]] = deque()
        self._spread = 0
        self._free_at = 0.0  # of storage

    def reading(self, dice: random.Random) -> float:
        """How long a lease takes that was granted now, seconds: those before it come first."""
        now = time.monotonic()
        took = dice.uniform(0.5, 1.5) / RUNS_PER_S
        self._free_at = max(now + FIRST_BYTE_S, self._free_at) + took
        return self._free_at - now

    def read(self, run: int) -> None:
        """A member has read a run from the origin."""
        self._read.append((time.monotonic(), run))

    @property
    def have(self) -> int:
        """What every member has by now, as bits."""
        before = time.monotonic() - SPREAD_S
        while self._read and self._read[0][0] < before:
            self._spread |= 1 << self._read.popleft()[1]
        return self._spread

    @property
    def over(self) -> bool:
        """Whether everybody has everything."""
        return self.have == bitset.full(self.runs)
