"""Virtual time: a discrete-event simulation with a heap of calls, and one hash over all decisions."""

import hashlib
import heapq
import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from p2pcache.ids import NodeId, RunIndex

_Call = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class World:
    """The clock and the dice of one simulation.

    Calls that are due at the same time happen in the order in which they were scheduled, so a simulation is a pure
    function of its seed.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.dice = Random(seed)
        self.steps = 0
        self._heap: list[_Call] = []
        self._messages: deque[_Call] = deque()  # in order
        self._count = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` at the time `when`, or now if that has passed."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` in `delay_s` seconds, which must not be negative."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, what, args))

    def arrives(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """The same as `after`, for messages. Most take equally long and so are in order; a heap would be slower."""
        when = self.now + delay_s
        if self._messages and when < self._messages[-1][0]:
            self.after(delay_s, what, *args)
        else:
            self._count += 1
            self._messages.append((when, self._count, what, args))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let time pass until `done()`, or until no call is left.

        Args:
            until: the latest time, in seconds.
            done: whether to stop.
        """
        heap, messages = self._heap, self._messages
        while (heap or messages) and not done():
            message_next = bool(messages) and (not heap or messages[0] < heap[0])
            if (messages[0] if message_next else heap[0])[0] > until:
                self.now = until
                return
            self.now, _, what, args = messages.popleft() if message_next else heapq.heappop(heap)
            self.steps += 1
            what(*args)

    def trace(self, kind: int, node: NodeId, number: int, run: RunIndex) -> None:
        """Add one decision to the trace.

        Args:
            kind: of the decision.
            node: that decided.
            number: of the request, read or peer.
            run: the run, or the outcome.
        """
        self._trace.update(struct.pack("<dBQQQ", self.now, kind, node, number, run))

    @property
    def trace_hash(self) -> str:
        """Equal for two simulations that decided the same at the same times."""
        return self._trace.hexdigest()
