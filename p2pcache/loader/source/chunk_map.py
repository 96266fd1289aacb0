"""Which chunks and runs a byte range of a blob lies in."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from p2pcache.core.format.layout import Layout
from p2pcache.ids import RunIndex


class ChunkPart(NamedTuple):
    """The part of a byte range that lies in one chunk."""

    chunk: int
    run: RunIndex
    offset: int  # of the part in the chunk, in bytes
    length: int  # bytes


class ChunkMap:
    """Byte ranges of one layout's blobs. Answers are kept: a loader asks for the same tensors in loops."""

    def __init__(self, layout: Layout) -> None:
        """Nothing is computed before it is asked for."""
        self._layout = layout
        self._offsets: dict[int, array[int]] = {}  # by blob: where its chunks begin, and its end
        self._runs: dict[tuple[int, int, int], tuple[RunIndex, ...]] = {}

    def runs(self, blob: int, start: int, end: int) -> tuple[RunIndex, ...]:
        """The runs of bytes [start, end) of a blob, each once, in the order of the bytes."""
        key = (blob, start, end)
        found = self._runs.get(key)
        if found is None:
            parts = self.parts(blob, start, end)
            found = self._runs[key] = tuple(dict.fromkeys(part.run for part in parts))
        return found

    def parts(self, blob: int, start: int, end: int) -> list[ChunkPart]:
        """Bytes [start, end) of a blob, chunk by chunk in order."""
        layout = self._layout
        chunks = layout.blobs[blob].chunks
        offsets = self._offsets.get(blob)
        if offsets is None:
            lengths = (layout.lengths[chunk] for chunk in chunks)
            offsets = self._offsets[blob] = array("Q", accumulate(lengths, initial=0))
        parts = []
        position = bisect_right(offsets, start) - 1
        while start < end and position < len(chunks):
            chunk = chunks[position]
            length = min(end, offsets[position + 1]) - start
            parts.append(ChunkPart(chunk, layout.run_of(chunk), start - offsets[position], length))
            start += length
            position += 1
        return parts


class BufferCursor:
    """Hands out consecutive bytes of several buffers, as views."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        """Begin at the first byte of the first buffer."""
        self._left = [view for view in into if len(view)]

    def take(self, length: int) -> list[memoryview]:
        """Views of the next `length` bytes; as many must be left."""
        taken = []
        while length:
            view = self._left[0]
            part = view[:length]
            taken.append(part)
            length -= len(part)
            self._left[0] = view[len(part) :]
            if not self._left[0]:
                self._left.pop(0)
        return taken
