"""In which batches and reads the bytes of a load come."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from p2pcache.loader.plan.selection import Want
from p2pcache.loader.source.base import Range

MiB = 1 << 20
READ_BYTES = 8 * MiB  # a preadv of 8 MiB measured best; smaller ones pay more for each call
BATCH_BYTES = 4 * MiB  # small tensors that travel together: about a chunk of a large file
GAP_BYTES = 64 << 10  # reading so much in vain costs less than another system call
ALIGN_BYTES = 256  # what CUDA's allocator promises; suits every dtype and vector unit
MAX_PARTS = 1000  # of one read: the kernel takes 1024 at most (IOV_MAX)
MAX_ITEMS = 256  # tensors of one read: bounds the padding in a ring slot to 64 KiB
MAX_SPANS = 64  # a strided slice with more of them is waited for as a whole


class Part(NamedTuple):
    """Bytes of one read: to `offset` of the batch's tensor `item`; to nowhere if `item` is -1."""

    item: int
    offset: int
    length: int


class Read(NamedTuple):
    """Neighbouring bytes of one file, for one call."""

    path: str
    start: int
    parts: list[Part]


@dataclass(slots=True)
class Batch:
    """Tensors that are waited for, held and handed out together."""

    wants: list[Want]
    offsets: list[int] = field(default_factory=list)  # of each want in the batch's own memory
    nbytes: int = 0  # memory, with padding

    def add(self, want: Want) -> None:
        """Append one tensor."""
        self.offsets.append(self.nbytes)
        self.wants.append(want)
        self.nbytes += -(-want.nbytes // ALIGN_BYTES) * ALIGN_BYTES

    def ranges(self) -> list[Range]:
        """The bytes of the file that must be there."""
        found: list[Range] = []
        for want in self.wants:
            path = want.info.path
            for start, end in _spans(want):
                if found and found[-1].path == path and found[-1].end == start:
                    start = found.pop().start  # noqa: PLW2901  # neighbours become one
                found.append(Range(path, start, end))
        return found

    def reads(self, read_bytes: int = READ_BYTES) -> Iterator[Read]:
        """The calls that bring it; each spans at most `read_bytes` of the file."""
        return _reads(self.wants, read_bytes)


def batches(wants: Iterable[Want], batch_bytes: int = BATCH_BYTES) -> list[Batch]:
    """Group wants, in order: large ones alone, small neighbours of one file together."""
    found: list[Batch] = []
    for want in wants:
        last = found[-1] if found else None
        if (
            last is None
            or last.nbytes + want.nbytes > batch_bytes
            or last.wants[-1].info.path != want.info.path
        ):
            last = Batch([])
            found.append(last)
        last.add(want)
    return found


def _spans(want: Want) -> list[tuple[int, int]]:
    end = want.start + want.stride * (want.pieces - 1) + want.length
    if want.nbytes == 0:
        return []
    if want.pieces == 1 or want.pieces > MAX_SPANS or want.stride - want.length <= GAP_BYTES:
        return [(want.start, end)]
    return [
        (want.start + i * want.stride, want.start + i * want.stride + want.length)
        for i in range(want.pieces)
    ]


def _reads(wants: Sequence[Want], read_bytes: int) -> Iterator[Read]:
    """Walk the segments in file order and close a read when it is full or the gap is wide."""
    path, start, end, items = "", 0, 0, 0
    parts: list[Part] = []
    for item, want in enumerate(wants):
        items += 1
        for position, offset, length in _pieces(want, read_bytes):
            gap = position - end
            fits = (
                want.info.path == path
                and 0 <= gap <= GAP_BYTES
                and position + length - start <= read_bytes
                and len(parts) + 2 <= MAX_PARTS
                and items <= MAX_ITEMS
            )
            if not fits:
                if parts:
                    yield Read(path, start, parts)
                path, start, parts, items = want.info.path, position, [], 1
            elif gap:
                parts.append(Part(-1, 0, gap))
            parts.append(Part(item, offset, length))
            end = position + length
    if parts:
        yield Read(path, start, parts)


def _pieces(want: Want, read_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(position in the file, offset in the tensor, length) of bites no longer than a read."""
    for index in range(want.pieces if want.length else 0):
        for inside in range(0, want.length, read_bytes):
            yield (
                want.start + index * want.stride + inside,
                index * want.length + inside,
                min(read_bytes, want.length - inside),
            )
