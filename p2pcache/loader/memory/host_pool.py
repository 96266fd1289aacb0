"""How much host memory a load holds, and when its consumer has let go of a block."""

import mmap
import queue
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from p2pcache.loader.memory.arena import PAGE, SMALL_BYTES, Arena, Block, fresh

# What may be held beyond the limit: 64 MiB are promised, headers and threads take some of it.
SPARE_BYTES = 48 << 20
_TURN_S = 0.1  # how often a waiting thread looks whether it shall stop


class Budget:
    """Bytes that may be out at a time. More than the limit is still given, when nothing else is out.

    One thread acquires. Any may release, also from a finalizer: there is no lock.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waited_s = 0.0
        self.out_bytes = 0
        self.peak_bytes = 0
        self.looked_at_bytes = 0  # what the consumer has before him: so much less is read ahead
        self._released: queue.SimpleQueue[int] = queue.SimpleQueue()

    def acquire(self, nbytes: int, stop: Callable[[], bool]) -> bool:
        """Block until there is room; False once `stop()` is true."""
        began = time.monotonic()
        while not self._room(nbytes):
            if stop():
                return False
            with suppress(queue.Empty):
                self.out_bytes -= self._released.get(timeout=_TURN_S)
        self.out_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.out_bytes)
        self.waited_s += time.monotonic() - began
        return True

    def _room(self, nbytes: int) -> bool:
        while not self._released.empty():
            self.out_bytes -= self._released.get()
        wished = self.out_bytes + nbytes
        most = min(self.limit_bytes, self.limit_bytes + SPARE_BYTES - self.looked_at_bytes)
        return not self.out_bytes or wished <= most

    def release(self, nbytes: int) -> None:
        """These bytes are no longer ours."""
        self._released.put(nbytes)


class HostPool:
    """Blocks for a load: what isn't handed over yet stays below a limit."""

    def __init__(self, limit_bytes: int, most_bytes: int, largest_bytes: int = 0) -> None:
        """Map the arena.

        Args:
            limit_bytes: see `Budget`.
            most_bytes: that will ever be asked for.
            largest_bytes: of one block.

        Raises:
            NoSpace: the system gives no memory.
        """
        self.budget = Budget(limit_bytes)
        # twice: what the consumer looks at lies beside what is read ahead; untouched pages cost nothing,
        # and a block that finds no place here touches pages that nobody uses again
        room = 2 * max(limit_bytes, largest_bytes)
        # two of the largest are seen at once in any case: one is looked at while the next one is read
        self._most_held_bytes = max(limit_bytes + SPARE_BYTES, 2 * largest_bytes)
        self._seen: weakref.ref[Any] | None = (
            None  # the owner of the block that was handed over last
        )
        self._then: list[list[int]] = []  # what is no longer ours when that block is dropped
        self._counted: list[int] = []  # that block's bytes, while they are still counted as ours
        self._arena = Arena(max(1, -(-min(room, most_bytes) // PAGE)) * PAGE)

    def alloc(self, nbytes: int, stop: Callable[[], bool]) -> Block | None:
        """A block, as soon as the limit allows it; None once `stop()` is true. One thread calls it."""
        if not self.budget.acquire(nbytes, stop):
            return None
        span = self._arena.take(nbytes) if nbytes >= SMALL_BYTES else None
        # holes that are too small keep their pages, and what found no place has pages of its own
        held = self.budget.out_bytes + self.budget.looked_at_bytes
        self._arena.trim(max(0, self._most_held_bytes - held))
        return fresh(nbytes) if span is None else Block(nbytes, self._arena.memory, span)

    def hand_over(self, block: Block) -> None:
        """The block is its consumer's from now on; it comes back when the last view of it dies.

        It counts as ours until he drops the one before it, as a loop does in a moment, or asks for
        more: both beside all that may be read ahead would be one too many.
        """
        self.turn()
        before, then = self._seen() if self._seen is not None else None, self._then
        self._seen, self._then, self._counted = weakref.ref(block.owner), [], [block.nbytes]
        weakref.finalize(
            block.owner, self._dropped, block.memory, block.span, self._then
        ).atexit = False
        if before is None:
            self.turn()
        else:
            then.append(self._counted)

    def turn(self) -> None:
        """The consumer asks for more."""
        self._let(self._counted)

    def _dropped(
        self,
        memory: mmap.mmap | bytearray,
        span: tuple[int, int] | None,
        then: list[list[int]],
    ) -> None:
        if span is not None:
            self._arena.give_back(span)
        elif isinstance(memory, mmap.mmap):  # before others use what it leaves
            memory.madvise(mmap.MADV_DONTNEED)
        for counted in then:
            self._let(counted)

    def _let(self, counted: list[int]) -> None:
        with suppress(IndexError):  # once for each block, whoever comes first
            self.budget.looked_at_bytes = nbytes = counted.pop()
            self.budget.release(nbytes)

    def recycle(self, block: Block) -> None:
        """The block, lent without `hand_over`, is used again from now on, whoever still looks."""
        self.budget.release(block.nbytes)
        if block.span is not None:
            self._arena.give_back(block.span)

    def close(self) -> None:
        """The load is over; tensors that somebody holds stay as they are."""
        self._arena.close()
