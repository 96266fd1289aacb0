"""Virtual time: a heap of things to do, and the one hash that tells two runs apart."""

import hashlib
import heapq
import struct
from collections.abc import Callable
from random import Random
from typing import Any


class World:
    """The clock and the dice of one simulation.

    What is due at the same time happens in the order in which it was scheduled, so a run is a
    pure function of its seed.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.dice = Random(seed)
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` at a time (or now, if that has passed)."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` in so many seconds, not negative."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, what, args))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let time pass until `done` or the deadline or nothing is left to happen."""
        heap = self._heap
        while heap and not done():
            if heap[0][0] > until:
                self.now = until
                return
            self.now, _, what, args = heapq.heappop(heap)
            self.steps += 1
            what(*args)

    def trace(self, kind: int, node: int, number: int, run: int) -> None:
        """Add one decision to the trace."""
        self._trace.update(struct.pack("<dBQQQ", self.now, kind, node, number, run))

    @property
    def trace_hash(self) -> str:
        """Equal for two runs that decided the same at the same times."""
        return self._trace.hexdigest()
