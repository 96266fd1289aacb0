"""Bounds the host memory of a load, and takes blocks back when their last view dies.

A load holds what it has read ahead and, beside it, the tensor that its consumer looks at. A consumer
that copies and drops tensors stays on few pages; one that keeps them uses the arena up and then gets
memory of its own.
"""

import mmap
import queue
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from p2pcache.loader.memory.arena import PAGE, SMALL_BYTES, Arena, Block, fresh

# What a load may hold beyond the memory limit. docs/loader.md promises 64 MiB; headers and threads
# take the rest.
SPARE_BYTES = 48 << 20
_POLL_S = 0.1  # seconds between two looks of a waiting thread at `stop`


class Budget:
    """A counter of bytes with a limit. A request above the limit is granted when nothing else is out.

    One thread acquires. Any thread may release, also in a finalizer, so there is no lock.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Nothing is out; at most `limit_bytes` may be."""
        self.limit_bytes = limit_bytes
        self.waited_s = 0.0
        self.out_bytes = 0
        self.peak_bytes = 0
        self.consumer_bytes = 0  # of the tensors that the consumer looks at
        self._released: queue.SimpleQueue[int] = queue.SimpleQueue()

    def acquire(self, nbytes: int, stop: Callable[[], bool]) -> bool:
        """Block until `nbytes` more may be out; False once `stop()` is true."""
        began = time.monotonic()
        while not self._fits(nbytes):
            if stop():
                return False
            with suppress(queue.Empty):
                self.out_bytes -= self._released.get(timeout=_POLL_S)
        self.out_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.out_bytes)
        self.waited_s += time.monotonic() - began
        return True

    def _fits(self, nbytes: int) -> bool:
        while not self._released.empty():
            self.out_bytes -= self._released.get()
        most = min(self.limit_bytes, self.limit_bytes + SPARE_BYTES - self.consumer_bytes)
        return not self.out_bytes or self.out_bytes + nbytes <= most

    def release(self, nbytes: int) -> None:
        """Count `nbytes` as no longer out."""
        self._released.put(nbytes)


class HostPool:
    """Blocks of host memory for a load. Blocks that aren't handed over yet stay below a limit."""

    def __init__(self, limit_bytes: int, total_bytes: int, largest_bytes: int = 0) -> None:
        """Map the arena.

        Args:
            limit_bytes: see `Budget`.
            total_bytes: of all blocks that will be asked for.
            largest_bytes: of the largest of them.

        Raises:
            NoSpace: the system gives no memory.
        """
        self.budget = Budget(limit_bytes)
        # Twice the limit, since the consumer's tensors lie beside those that are read ahead. Untouched
        # pages cost nothing; a block without a place here touches pages that are used once.
        room = 2 * max(limit_bytes, largest_bytes)
        # Two of the largest blocks coexist in any case: one is looked at while the next one is read.
        self._most_held_bytes = max(limit_bytes + SPARE_BYTES, 2 * largest_bytes)
        self._last_owner: weakref.ref[Any] | None = None  # of the block handed over last
        # Byte counts to release when that block is dropped. A count is a list that is emptied once.
        self._release_with_last: list[list[int]] = []
        self._last_counted: list[int] = []  # that block's bytes, while the budget counts them
        self._arena = Arena(max(1, -(-min(room, total_bytes) // PAGE)) * PAGE)

    def alloc(self, nbytes: int, stop: Callable[[], bool]) -> Block | None:
        """Allocate a block as soon as the limit allows it. One thread calls this.

        Args:
            nbytes: its size.
            stop: ends the wait once it is true.

        Returns:
            The block; None once `stop()` is true.

        Raises:
            NoSpace: the system gives no memory.
        """
        if not self.budget.acquire(nbytes, stop):
            return None
        span = self._arena.take(nbytes) if nbytes >= SMALL_BYTES else None
        # Holes that are too small keep their pages, and a block outside the arena has its own.
        held = self.budget.out_bytes + self.budget.consumer_bytes
        self._arena.trim(max(0, self._most_held_bytes - held))
        return fresh(nbytes) if span is None else Block(nbytes, self._arena.memory, span)

    def hand_over(self, block: Block) -> None:
        """Give a block to the consumer; it comes back when its last view dies.

        The budget counts it until the consumer drops the block before it, as a loop does in a moment,
        or asks for more. Without that both blocks would lie beside all that may be read ahead.
        """
        self.on_next_batch()
        previous = self._last_owner() if self._last_owner is not None else None
        release_with_previous = self._release_with_last
        self._last_owner = weakref.ref(block.owner)
        self._release_with_last, self._last_counted = [], [block.nbytes]
        weakref.finalize(
            block.owner, self._on_dropped, block.memory, block.span, self._release_with_last
        ).atexit = False
        if previous is None:
            self.on_next_batch()
        else:
            release_with_previous.append(self._last_counted)

    def on_next_batch(self) -> None:
        """The consumer asks for more, so the block handed over last no longer counts."""
        self._release(self._last_counted)

    def _on_dropped(
        self,
        memory: mmap.mmap | bytearray,
        span: tuple[int, int] | None,
        to_release: list[list[int]],
    ) -> None:
        if span is not None:
            self._arena.give_back(span)
        elif isinstance(memory, mmap.mmap):  # its pages go before the budget is released
            memory.madvise(mmap.MADV_DONTNEED)
        for counted in to_release:
            self._release(counted)

    def _release(self, counted: list[int]) -> None:
        with suppress(IndexError):  # released already, by another thread perhaps
            self.budget.consumer_bytes = nbytes = counted.pop()
            self.budget.release(nbytes)

    def recycle(self, block: Block) -> None:
        """Take back a block that was lent without `hand_over`, whoever still has a view of it."""
        self.budget.release(block.nbytes)
        if block.span is not None:
            self._arena.give_back(block.span)

    def close(self) -> None:
        """End the load; blocks that somebody holds stay valid."""
        self._arena.close()
