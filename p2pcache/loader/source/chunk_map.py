"""Which chunks and runs a byte range of a file lies in."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from p2pcache.core.format.layout import Layout


class Piece(NamedTuple):
    """A part of a range that lies in one chunk."""

    chunk: int
    run: int
    offset: int  # in the chunk
    length: int


class Geometry:
    """Answers for one layout, and remembers them: a loader asks about the same tensors in loops."""

    def __init__(self, layout: Layout) -> None:
        """Nothing is computed before it is asked for."""
        self._layout = layout
        self._offsets: dict[int, array[int]] = {}
        self._runs: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def runs(self, blob: int, start: int, end: int) -> tuple[int, ...]:
        """The runs of bytes [start, end) of a blob, each once."""
        key = (blob, start, end)
        found = self._runs.get(key)
        if found is None:
            pieces = self.pieces(blob, start, end)
            found = self._runs[key] = tuple(dict.fromkeys(piece.run for piece in pieces))
        return found

    def pieces(self, blob: int, start: int, end: int) -> list[Piece]:
        """The parts of bytes [start, end) of a blob, in order."""
        layout = self._layout
        chunks = layout.blobs[blob].chunks
        offsets = self._offsets.get(blob)
        if offsets is None:
            lengths = (layout.lengths[chunk] for chunk in chunks)
            offsets = self._offsets[blob] = array("Q", accumulate(lengths, initial=0))
        pieces = []
        position = bisect_right(offsets, start) - 1
        while start < end and position < len(chunks):
            chunk = chunks[position]
            length = min(end, offsets[position + 1]) - start
            pieces.append(Piece(chunk, layout.run_of(chunk), start - offsets[position], length))
            start += length
            position += 1
        return pieces


class Buffers:
    """Buffers that are filled one after the other, taken by length."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        """`into`: at least as long together as what will be taken."""
        self._left = [view for view in into if len(view)]

    def take(self, length: int) -> list[memoryview]:
        """The next `length` bytes of them."""
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
