"""Host memory of a load: bounded, reused when a tensor dies, never while somebody can see it.

Fresh memory costs more than the reads themselves: the first touch of a page takes longer than
filling it. So a load has one arena, gives out its lowest free bytes, and gets them back when the
last view of them dies. A consumer that copies and drops stays on few pages; one that keeps what
it gets uses the arena up and then has memory of its own.
"""

import ctypes
import mmap
import sys
from collections import deque
from typing import Any

from p2pcache.errors import NoSpace

SMALL_BYTES = 256 << 10  # below it memory comes from the ordinary allocator, which reuses by itself
PAGE = mmap.PAGESIZE
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11's mmap lacks the name


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
        self._touched = bytearray(nbytes // PAGE)  # of each page, whether the system gave memory
        self._spare_pages = 0  # free and touched
        self._closed = False

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """The lowest free span of so many bytes, rounded up to pages; None if there is none."""
        self._collect()
        length = -(-nbytes // PAGE) * PAGE
        for i, (start, free) in enumerate(self._holes):
            if free >= length:
                self._holes[i : i + 1] = [(start + length, free - length)] if free > length else []
                pages = slice(start // PAGE, (start + length) // PAGE)
                self._spare_pages -= self._touched.count(1, pages.start, pages.stop)
                self._touched[pages] = b"\1" * (length // PAGE)
                return (start, length)
        return None

    def trim(self, spare_bytes: int) -> None:
        """Of the free pages that have memory keep so much; the highest go back to the system."""
        self._collect()
        surplus = self._spare_pages - spare_bytes // PAGE
        for start, length in reversed(self._holes):
            first, end = start // PAGE, (start + length) // PAGE
            while surplus > 0 and (last := self._touched.rfind(1, first, end)) >= 0:
                end = max(first, last + 1 - surplus)
                gone = self._touched.count(1, end, last + 1)
                self._let_go((end * PAGE, (last + 1 - end) * PAGE))
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
        self._spare_pages += span[1] // PAGE
        holes: list[tuple[int, int]] = []
        for start, length in sorted([*self._holes, span]):
            if holes and sum(holes[-1]) == start:
                holes[-1] = (holes[-1][0], holes[-1][1] + length)
            else:
                holes.append((start, length))
        self._holes = holes


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
