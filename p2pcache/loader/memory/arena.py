"""Host memory of a load: bounded, reused when a tensor dies, never while somebody can see it.

Fresh memory costs more than the reads themselves: the first touch of a page takes longer than
filling it. So a load has one arena, gives out its lowest free bytes, and gets them back when the
last view of them dies. A consumer that copies and drops stays on few pages; one that keeps what
it gets uses the arena up and then has memory of its own.
"""

import ctypes
import mmap
import queue
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from p2pcache.errors import NoSpace

SMALL_BYTES = 256 << 10  # below it memory comes from the ordinary allocator, which reuses by itself
# What may be held beyond the limit: 64 MiB are promised, headers and threads take some of it.
SPARE_BYTES = 48 << 20
_PAGE = mmap.PAGESIZE
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11's mmap lacks the name
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


class Block:
    """`nbytes` of writable memory behind `owner`, an object with the buffer protocol."""

    __slots__ = ("memory", "nbytes", "owner", "span", "view")

    def __init__(
        self,
        nbytes: int,
        memory: mmap.mmap | bytearray,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.memory = memory
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
        self._touched = bytearray(nbytes // _PAGE)  # of each page, whether the system gave memory
        self._spare_pages = 0  # free and touched
        self._closed = False

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """The lowest free span of so many bytes, rounded up to pages; None if there is none."""
        self._collect()
        length = -(-nbytes // _PAGE) * _PAGE
        for i, (start, free) in enumerate(self._holes):
            if free >= length:
                self._holes[i : i + 1] = [(start + length, free - length)] if free > length else []
                pages = slice(start // _PAGE, (start + length) // _PAGE)
                self._spare_pages -= self._touched.count(1, pages.start, pages.stop)
                self._touched[pages] = b"\1" * (length // _PAGE)
                return (start, length)
        return None

    def trim(self, spare_bytes: int) -> None:
        """Of the free pages that have memory keep so much; the highest go back to the system."""
        self._collect()
        surplus = self._spare_pages - spare_bytes // _PAGE
        for start, length in reversed(self._holes):
            first, end = start // _PAGE, (start + length) // _PAGE
            while surplus > 0 and (last := self._touched.rfind(1, first, end)) >= 0:
                end = max(first, last + 1 - surplus)
                gone = self._touched.count(1, end, last + 1)
                self._let_go((end * _PAGE, (last + 1 - end) * _PAGE))
                self._touched[end : last + 1] = bytes(last + 1 - end)
                self._spare_pages -= gone
                surplus -= gone

    def give_back(self, span: tuple[int, int]) -> None:
        """Nobody looks at these bytes any more."""
        if self._closed:
            self._let_go(span)
        else:
            self._returned.append(span)

    def close(self) -> None:
        """Nothing is taken any more: free pages go back to the system, others when they are given back."""
        self._closed = True
        self._collect()
        for span in self._holes:
            self._let_go(span)

    def _collect(self) -> None:
        while self._returned:
            self._fill(self._returned.popleft())

    def _let_go(self, span: tuple[int, int]) -> None:
        self.memory.madvise(mmap.MADV_DONTNEED, *span)

    def _fill(self, span: tuple[int, int]) -> None:
        self._spare_pages += span[1] // _PAGE
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
        # two of the largest are seen at once in any case: one is looked at while the next one is read
        self._most_held_bytes = max(limit_bytes + SPARE_BYTES, 2 * largest_bytes)
        self._seen: weakref.ref[Any] | None = (
            None  # the owner of the block that was handed over last
        )
        self._then: list[list[int]] = []  # what is no longer ours when that block is dropped
        self._counted: list[int] = []  # that block's bytes, while they are still counted as ours
        self._arena = Arena(max(1, -(-min(room, most_bytes) // _PAGE)) * _PAGE)

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
