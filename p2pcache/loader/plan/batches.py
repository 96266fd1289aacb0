"""In which batches and reads the bytes of a load come.

A batch is one large tensor, or small neighbours of one file. It is waited for, held in memory and
handed out as one. It is read in reads of a few megabytes, each one `preadv` (scatter input).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from p2pcache.loader.plan.selection import LoadItem
from p2pcache.loader.source.base import Range

MiB = 1 << 20
READ_BYTES = 8 * MiB  # smaller reads pay more for each call
BATCH_BYTES = 4 * MiB  # of a batch of small tensors: about a chunk of a large file
# To a device, of a model that is complete: each batch is one allocation there, each read one copy or a few.
DEVICE_READ_BYTES = 16 * MiB  # of the ring, larger ones take longer to pin than they save
DEVICE_BATCH_BYTES = 64 * MiB
GAP_BYTES = 64 << 10  # to read a smaller gap costs less than another system call
ALIGN_BYTES = 256  # of tensors in a batch; CUDA's allocator promises it, every dtype is content
MAX_PARTS = 1000  # of one read: the kernel takes 1024 (IOV_MAX)
MAX_ITEMS = 256  # tensors of one read: bounds the padding in a ring slot to 64 KiB
MAX_SPANS = 64  # a strided slice with more spans is waited for as one range


class ReadPart(NamedTuple):
    """Consecutive bytes of one read, and where they go."""

    item: int  # index in the batch's items; -1: a gap, the bytes are discarded
    offset: int  # of the part in the item's own bytes
    length: int  # bytes


class Rows(NamedTuple):
    """Equal segments of one item at equal distances, which a device copies out of what lies between them."""

    item: int  # index in the batch's items
    offset: int  # of the first segment in the item's own bytes
    length: int  # of each segment, in bytes
    stride: int  # bytes from the start of one segment to the start of the next
    segments: int  # how many

    @property
    def span(self) -> int:
        """Bytes from the first segment's start to the last one's end."""
        return (self.segments - 1) * self.stride + self.length


class Read(NamedTuple):
    """Neighbouring bytes of one file, for one call."""

    path: str
    start: int  # byte offset in the file
    parts: list[ReadPart]  # in file order, without holes; [] of rows
    rows: Rows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the file that it reads."""
        return self.rows.span if self.rows else sum(part.length for part in self.parts)


@dataclass(slots=True)
class Batch:
    """Tensors that are waited for, held and handed out together."""

    items: list[LoadItem]
    offsets: list[int] = field(default_factory=list)  # of each item in the batch's memory, in bytes
    nbytes: int = 0  # of the batch's memory, with padding

    def add(self, item: LoadItem) -> None:
        """Append one item, aligned to `ALIGN_BYTES`."""
        self.offsets.append(self.nbytes)
        self.items.append(item)
        self.nbytes += -(-item.nbytes // ALIGN_BYTES) * ALIGN_BYTES

    def ranges(self) -> list[Range]:
        """The byte ranges that must be available before the batch is read."""
        found: list[Range] = []
        for item in self.items:
            path = item.info.path
            for start, end in _spans(item):
                if found and found[-1].path == path and found[-1].end == start:
                    start = found.pop().start  # noqa: PLW2901  # neighbours become one
                found.append(Range(path, start, end))
        return found

    def reads(self, read_bytes: int = READ_BYTES, *, rows: bool = False) -> Iterator[Read]:
        """The reads that bring the batch; each spans at most `read_bytes` of the file.

        Args:
            read_bytes: of one read at most.
            rows: slices of many short segments come as `Rows`, with what lies between; else as parts.
        """
        items = list(enumerate(self.items))
        if rows:
            for index, item in items:
                if _in_rows(item, read_bytes):
                    yield from _row_reads(index, item, read_bytes)
            items = [pair for pair in items if not _in_rows(pair[1], read_bytes)]
        yield from _reads(items, read_bytes)


def batches(items: Iterable[LoadItem], batch_bytes: int = BATCH_BYTES) -> list[Batch]:
    """Group items in the given order.

    Args:
        items: of a load, in the order in which they should come.
        batch_bytes: a batch of several items has at most this many bytes; a larger item is a batch alone.
    """
    found: list[Batch] = []
    for item in items:
        last = found[-1] if found else None
        if (
            last is None
            or last.nbytes + item.nbytes > batch_bytes
            or last.items[-1].info.path != item.info.path
        ):
            last = Batch([])
            found.append(last)
        last.add(item)
    return found


def _spans(item: LoadItem) -> list[tuple[int, int]]:
    """(start, end) in the file of what is waited for; small gaps belong to it."""
    end = item.start + item.stride * (item.segments - 1) + item.length
    if item.nbytes == 0:
        return []
    if item.segments == 1 or item.segments > MAX_SPANS or item.stride - item.length <= GAP_BYTES:
        return [(item.start, end)]
    return [
        (item.start + i * item.stride, item.start + i * item.stride + item.length)
        for i in range(item.segments)
    ]


def _in_rows(item: LoadItem, read_bytes: int) -> bool:
    """Whether the bytes between an item's segments are read, too."""
    gap = item.stride - item.length
    return (
        item.segments > 1 and bool(item.length) and gap <= GAP_BYTES and item.stride <= read_bytes
    )


def _row_reads(index: int, item: LoadItem, read_bytes: int) -> Iterator[Read]:
    most = 1 + (read_bytes - item.length) // item.stride
    for first in range(0, item.segments, most):
        count = min(most, item.segments - first)
        rows = Rows(index, first * item.length, item.length, item.stride, count)
        yield Read(item.info.path, item.start + first * item.stride, [], rows)


def _reads(items: Sequence[tuple[int, LoadItem]], read_bytes: int) -> Iterator[Read]:
    """Walk the segments in file order; close a read when it is full or the gap is wide.

    A segment goes on in the next read where one ends, so that all are full whatever tensors lie there.
    """
    path, start, end, item_count = "", 0, 0, 0
    parts: list[ReadPart] = []
    for index, item in items:
        item_count += 1
        for segment in range(item.segments if item.length else 0):
            position, done = item.start + segment * item.stride, 0
            while done < item.length:
                gap = position + done - end
                fits = (
                    item.info.path == path
                    and 0 <= gap <= GAP_BYTES
                    and position + done - start < read_bytes
                    and len(parts) + 2 <= MAX_PARTS
                    and item_count <= MAX_ITEMS
                )
                if not fits:
                    if parts:
                        yield Read(path, start, parts)
                    path, start, parts, item_count = item.info.path, position + done, [], 1
                elif gap:
                    parts.append(ReadPart(-1, 0, gap))
                length = min(item.length - done, start + read_bytes - position - done)
                parts.append(ReadPart(index, segment * item.length + done, length))
                done += length
                end = position + done
    if parts:
        yield Read(path, start, parts)
