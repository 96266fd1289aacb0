"""Host memory that is given out, taken back and given out again.

The first touch of a fresh page takes longer than reading into it. So a load has one arena, gives
out its lowest free bytes first, and gets them back when their last view dies.
"""

import ctypes
import mmap
import sys
from collections import deque
from contextlib import suppress
from typing import Any

from p2pcache.errors import NoSpace

SMALL_BYTES = 256 << 10  # smaller blocks come from Python's allocator, which reuses memory itself
PAGE = mmap.PAGESIZE
_HUGEPAGE = 14  # MADV_HUGEPAGE; macOS' mmap lacks the name
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
        """Take a part of some memory.

        Args:
            nbytes: size of the block.
            memory: what it lies in.
            span: (start, length) in the memory of an arena, in bytes; None: it begins at 0.
        """
        self.nbytes = nbytes
        self.memory = memory
        self.span = span
        self.owner: Any = (ctypes.c_ubyte * nbytes).from_buffer(memory, span[0] if span else 0)
        self.view = memoryview(self.owner).cast("B")


def fresh(nbytes: int) -> Block:
    """Allocate a block outside of any arena; the system gets it back when its last view dies.

    Raises:
        NoSpace: the system gives no memory.
    """
    return Block(nbytes, bytearray(nbytes) if nbytes < SMALL_BYTES else _anonymous(nbytes))


class Arena:
    """One mapping, given out lowest bytes first. One thread takes; any thread gives back.

    A span is (start, length) in bytes, both multiples of the page size.
    """

    def __init__(self, nbytes: int) -> None:
        """Map memory.

        Args:
            nbytes: a multiple of the page size.

        Raises:
            NoSpace: the system gives no memory.
        """
        self.memory = _anonymous(nbytes)
        self._holes = [(0, nbytes)]  # free spans by their start, never adjacent
        self._returned: deque[tuple[int, int]] = deque()  # by finalizers, which can't take a lock
        self._touched = bytearray(nbytes // PAGE)  # 1 for each page that has memory
        self._spare_pages = 0  # free pages that have memory
        self._closed = False

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """The lowest free span of `nbytes`, rounded up to pages; None if there is none."""
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
        """Give free pages back to the system, the highest first, until `spare_bytes` of them have memory."""
        self._collect()
        surplus = self._spare_pages - spare_bytes // PAGE
        for start, length in reversed(self._holes):
            first, end = start // PAGE, (start + length) // PAGE
            while surplus > 0 and (last := self._touched.rfind(1, first, end)) >= 0:
                end = max(first, last + 1 - surplus)
                gone = self._touched.count(1, end, last + 1)
                self._free_pages((end * PAGE, (last + 1 - end) * PAGE))
                self._touched[end : last + 1] = bytes(last + 1 - end)
                self._spare_pages -= gone
                surplus -= gone

    def give_back(self, span: tuple[int, int]) -> None:
        """Take back a span of which no view is left."""
        if self._closed:
            self._free_pages(span)
        else:
            self._returned.append(span)

    def close(self) -> None:
        """Give all free pages back to the system now, and others as soon as they are given back."""
        self._closed = True
        self._collect()
        for span in self._holes:
            self._free_pages(span)

    def _collect(self) -> None:
        while self._returned:
            self._add_hole(self._returned.popleft())

    def _free_pages(self, span: tuple[int, int]) -> None:
        self.memory.madvise(mmap.MADV_DONTNEED, *span)

    def _add_hole(self, span: tuple[int, int]) -> None:
        self._spare_pages += span[1] // PAGE
        holes: list[tuple[int, int]] = []
        for start, length in sorted([*self._holes, span]):
            if holes and sum(holes[-1]) == start:
                holes[-1] = (holes[-1][0], holes[-1][1] + length)
            else:
                holes.append((start, length))
        self._holes = holes


def pages(nbytes: int) -> mmap.mmap:
    """Memory to be pinned at once, of huge pages where the system has them: they take a fraction of the time.

    Raises:
        NoSpace: the system gives no memory.
    """
    found = _anonymous(nbytes)
    with suppress(OSError):  # a kernel without them
        found.madvise(_HUGEPAGE)
    return found


def _anonymous(nbytes: int) -> mmap.mmap:
    """Map memory that takes pages when it is touched.

    Raises:
        NoSpace: the system gives none.
    """
    # Not reserved: an arena is larger than its touched part, and may be larger than the machine's memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        return mmap.mmap(-1, nbytes, flags)
    except (OSError, OverflowError) as error:
        raise NoSpace(f"no room for {nbytes} bytes of memory; lower memory_limit") from error
