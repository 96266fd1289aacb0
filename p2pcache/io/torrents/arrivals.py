"""Parts of a model that came from another site: each chunk waits in a file until BLAKE3 proves it into the store.

Proved bytes leave the waiting files at once, so the disk holds little twice. Nothing is remembered of an earlier
life but what the store has proved.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

from p2pcache.core import bitset
from p2pcache.errors import IntegrityError
from p2pcache.ids import RunSet
from p2pcache.io.blobs.chunk_writer import ChunkWriter
from p2pcache.io.disk import syscalls
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.models.model_chunks import ModelStore

Spans = list[tuple[int, int]]
"""Bytes [start, end), ascending, none beside another."""

SLICE_BYTES = 1 << 20  # of one read
_BLOCK = 4096  # of a file system: holes are made of whole ones


class Arrivals:
    """The waiting files of one model. For one thread at a time; calls block."""

    def __init__(self, store: ModelStore, root: Path) -> None:
        """Nothing has come.

        Args:
            store: takes what is proved.
            root: has the files.
        """
        self._store = store
        self._root = root
        self._came: dict[str, Spans] = {}

    def lacking(self, runs: RunSet) -> dict[str, Spans]:
        """The bytes of these runs that aren't proved, by file: of each chunk at its first place."""
        layout = self._store.layout
        paths = {number: path for path, number in reversed(layout.blob_of_file.items())}
        found: dict[str, set[tuple[int, int]]] = {}
        for run in bitset.members(runs):
            for chunk in self._store.missing_chunks(run):
                place = layout.first_place(chunk)
                span = place.offset, place.offset + layout.lengths[chunk]
                found.setdefault(paths[place.blob], set()).add(span)
        return {path: joined(sorted(spans)) for path, spans in found.items()}

    def prove_parts(self, parts: Iterable[tuple[str, int, int]]) -> int:
        """Prove all chunks that are whole now; returns their bytes.

        Args:
            parts: of files, by path, start and end, that can be read.

        Raises:
            IntegrityError: the bytes aren't the model's.
            P2PCacheError: the disk refused.
        """
        proved = 0
        for path, start, end in parts:
            number = self._store.layout.blob_of_file.get(path)
            if number is None:
                continue
            spans = self._came[path] = joined(sorted([*self._came.get(path, []), (start, end)]))
            chunks = self._store.layout.blobs[number].chunks
            offsets = self._store.files[number].offsets
            first = max(0, bisect_right(offsets, start) - 1)
            for index in range(first, bisect_left(offsets, end)):
                length = self._store.layout.lengths[chunks[index]]
                if _covers(spans, offsets[index], offsets[index] + length):
                    proved += self._prove(path, chunks[index], offsets[index], length)
        return proved

    def _prove(self, path: str, chunk: int, offset: int, length: int) -> int:
        with disk_errors(path):
            fd = os.open(self._root / path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                writer = self._store.begin(chunk)
                if writer is None:
                    return 0
                try:
                    _copy(fd, offset, length, writer)
                except BaseException:
                    writer.abort()
                    raise
                if not writer.finish():
                    raise IntegrityError(f"{path} came with other bytes than the model's")
                first, last = -(-offset // _BLOCK) * _BLOCK, (offset + length) // _BLOCK * _BLOCK
                if first < last:
                    syscalls.punch_hole(fd, first, last - first)
            finally:
                os.close(fd)
        return length


def _copy(fd: int, offset: int, length: int, writer: ChunkWriter) -> None:
    buffer = memoryview(bytearray(min(SLICE_BYTES, length)))
    for at in range(0, length, SLICE_BYTES):
        view = buffer[: min(SLICE_BYTES, length - at)]
        if os.preadv(fd, [view], offset + at) != len(view):
            raise IntegrityError("a file that waits to be proved was cut short")
        writer.update(view)
        writer.put(at, view)


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Sorted spans without overlaps."""
    found: Spans = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _covers(spans: Spans, start: int, end: int) -> bool:
    index = bisect_right(spans, start, key=lambda span: span[0]) - 1
    return index >= 0 and spans[index][1] >= end
