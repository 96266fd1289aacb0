"""Host memory of a load: bounded, reused when a tensor dies, never while somebody can see it.

Fresh memory costs more than the reads themselves: the first touch of a page takes longer than
filling it. So a load has one arena, gives out its lowest free bytes, and gets them back when the
last view of them dies. A consumer that copies and drops stays on few pages; one that keeps what
it gets uses the arena up and then has memory of its own.
"""

import ctypes
import mmap
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from p2pcache.errors import NoSpace

SMALL_BYTES = 256 << 10  # below it memory comes from the ordinary allocator, which reuses by itself
_PAGE = mmap.PAGESIZE
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11's mmap lacks the name
_TURN_S = 0.1  # how often a waiting thread looks whether it shall stop


class Budget:
    """Bytes that may be out at a time. More than the limit is still given, when nothing else is out."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waited_s = 0.0
        self.out_bytes = 0
        self.peak_bytes = 0
        self._changed = threading.Condition()

    def acquire(self, nbytes: int, stop: Callable[[], bool]) -> bool:
        """Block until there is room; False once `stop()` is true."""
        began = time.monotonic()
        with self._changed:
            while self.out_bytes and self.out_bytes + nbytes > self.limit_bytes:
                if stop():
                    return False
                self._changed.wait(_TURN_S)
            self.out_bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self.out_bytes)
        self.waited_s += time.monotonic() - began
        return True

    def release(self, nbytes: int) -> None:
        """These bytes are no longer ours."""
        with self._changed:
            self.out_bytes -= nbytes
            self._changed.notify_all()


class Block:
    """`nbytes` of writable memory behind `owner`, an object with the buffer protocol."""

    __slots__ = ("nbytes", "owner", "span", "view")

    def __init__(
        self,
        nbytes: int,
        memory: mmap.mmap | bytearray,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.span = span  # (start, length) in the arena, where it is of one
        self.owner: Any = (ctypes.c_ubyte * nbytes).from_buffer(memory, span[0] if span else 0)
        self.view = memoryview(self.owner).cast("B")


def fresh(nbytes: int) -> Block:
    """Memory that goes back to the system when its last view dies."""
    return Block(nbytes, bytearray(nbytes) if nbytes < SMALL_BYTES else _anonymous(nbytes))


class Arena:
    """One mapping, given out lowest bytes first. One thread takes; any thread gives back."""

    def __init__(self, nbytes: int) -> None:
        self.memory = _anonymous(nbytes)
        self._holes = [(0, nbytes)]  # free spans by their start, never adjacent
        self._returned: deque[tuple[int, int]] = (
            deque()
        )  # finalizers run anywhere: no lock for them
        self._closed = False

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """The lowest free span of so many bytes, rounded up to pages; None if there is none."""
        while self._returned:
            self._fill(self._returned.popleft())
        length = -(-nbytes // _PAGE) * _PAGE
        for i, (start, free) in enumerate(self._holes):
            if free >= length:
                self._holes[i : i + 1] = [(start + length, free - length)] if free > length else []
                return (start, length)
        return None

    def give_back(self, span: tuple[int, int]) -> None:
        """Nobody looks at these bytes any more."""
        if self._closed:
            self._let_go(span)
        else:
            self._returned.append(span)

    def close(self) -> None:
        """Nothing is taken any more: free pages go back to the system, others when they are given back."""
        self._closed = True
        while self._returned:
            self._fill(self._returned.popleft())
        for span in self._holes:
            self._let_go(span)

    def _let_go(self, span: tuple[int, int]) -> None:
        self.memory.madvise(mmap.MADV_DONTNEED, *span)

    def _fill(self, span: tuple[int, int]) -> None:
        holes: list[tuple[int, int]] = []
        for start, length in sorted([*self._holes, span]):
            if holes and sum(holes[-1]) == start:
                holes[-1] = (holes[-1][0], holes[-1][1] + length)
            else:
                holes.append((start, length))
        self._holes = holes


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
        self._arena = Arena(max(1, -(-min(room, most_bytes) // _PAGE)) * _PAGE)

    def alloc(self, nbytes: int, stop: Callable[[], bool]) -> Block | None:
        """A block, as soon as the limit allows it; None once `stop()` is true. One thread calls it."""
        if not self.budget.acquire(nbytes, stop):
            return None
        span = self._arena.take(nbytes) if nbytes >= SMALL_BYTES else None
        return fresh(nbytes) if span is None else Block(nbytes, self._arena.memory, span)

    def hand_over(self, block: Block) -> None:
        """The block is its consumer's from now on; it comes back when the last view of it dies."""
        self.budget.release(block.nbytes)
        if block.span is not None:
            weakref.finalize(block.owner, self._arena.give_back, block.span).atexit = False

    def recycle(self, block: Block) -> None:
        """The block, lent without `hand_over`, is used again from now on, whoever still looks."""
        self.budget.release(block.nbytes)
        if block.span is not None:
            self._arena.give_back(block.span)

    def close(self) -> None:
        """The load is over; tensors that somebody holds stay as they are."""
        self._arena.close()


def _anonymous(nbytes: int) -> mmap.mmap:
    """Memory that is there once it's touched.

    Raises:
        NoSpace: the system gives none.
    """
    # not reserved: an arena is larger than what is touched of it, at times than the machine's memory
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        return mmap.mmap(-1, nbytes, flags)
    except (OSError, OverflowError) as error:
        raise NoSpace(f"no room for {nbytes} bytes of memory; lower memory_limit") from error
