"""Batches and reads: every wanted byte once, to its place; no read spans more than it may."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.loader.plan.batches import (
    ALIGN_BYTES,
    DEVICE_BATCH_BYTES,
    DEVICE_READ_BYTES,
    GAP_BYTES,
    MAX_ITEMS,
    MAX_PARTS,
    Batch,
    batches,
)
from p2pcache.loader.plan.selection import (
    LoadItem,
    ParallelAxis,
    cut_tensor,
    select_tensors,
    whole_tensor,
)
from tests.loader.plan.plan_kit import info, table


def test_small_neighbours_share_a_batch_and_large_tensors_do_not() -> None:
    found = batches(
        [whole_tensor(info(str(i), (n,))) for i, n in enumerate([10, 10, 500, 300, 600])], 600
    )
    assert [[w.info.name for w in batch.items] for batch in found] == [
        ["0", "1"],
        ["2"],
        ["3"],
        ["4"],
    ]
    assert found[0].offsets == [0, ALIGN_BYTES]
    two_files = batches([whole_tensor(info("a", path="1")), whole_tensor(info("b", path="2"))])
    assert len(two_files) == 2


def perform(batch: Batch, data: bytes, read_bytes: int) -> list[bytes]:
    """Do what the reads say; check each call's own rules on the way."""
    found = [bytearray(item.nbytes) for item in batch.items]
    written = [bytearray(item.nbytes) for item in batch.items]
    for read in batch.reads(read_bytes):
        assert 0 < len(read.parts) <= MAX_PARTS
        assert sum(part.length for part in read.parts) <= read_bytes
        assert len({part.item for part in read.parts} - {-1}) <= MAX_ITEMS
        assert read.parts[0].item >= 0
        assert read.parts[-1].item >= 0
        position = read.start
        for item, offset, length in read.parts:
            assert length > 0
            if item >= 0:
                found[item][offset : offset + length] = data[position : position + length]
                assert not any(written[item][offset : offset + length])
                written[item][offset : offset + length] = b"\1" * length
            else:
                assert length <= GAP_BYTES
            position += length
    assert all(all(w) for w in written)
    return [bytes(f) for f in found]


@st.composite
def tensors_and_slices(draw: st.DrawFn) -> tuple[list[LoadItem], int]:
    position = draw(st.integers(0, 100))
    items = []
    count: int = draw(st.integers(1, 8))
    for i in range(count):
        position += draw(st.sampled_from([0, 0, 1, 1000, GAP_BYTES, GAP_BYTES + 1]))
        shape: tuple[int, ...] = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
        tensor = info(str(i), shape, position, draw(st.sampled_from(["U8", "F32", "BF16"])))
        position = tensor.end
        item = whole_tensor(tensor)
        sliced: bool = draw(st.booleans())
        if shape and sliced:
            dim = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[dim]))
            item = cut_tensor(tensor, dim, start, draw(st.integers(start, shape[dim])))
        items.append(item)
    return items, position


@given(tensors_and_slices(), st.integers(1, 3000), st.integers(1, 100_000))
def test_every_wanted_byte_comes_once(
    case: tuple[list[LoadItem], int], batch_bytes: int, read_bytes: int
) -> None:
    items, size = case
    data = bytes(i * 7 % 251 for i in range(size))
    seen = []
    for batch in batches(items, batch_bytes):
        for item, got in zip(batch.items, perform(batch, data, read_bytes), strict=True):
            expected = b"".join(
                data[item.start + i * item.stride :][: item.length] for i in range(item.segments)
            )
            assert got == expected
            bytes_per = (
                item.info.nbytes // max(1, _count(item.info.shape)) if item.info.nbytes else 0
            )
            assert item.nbytes == _count(item.shape) * bytes_per or item.nbytes == 0
            seen.append(item)
        for read in batch.reads(read_bytes):  # nothing is read that wasn't waited for
            end = read.start + sum(part.length for part in read.parts)
            covered = [r for r in batch.ranges() if r.start < end and read.start < r.end]
            for part in _real_parts(read.start, read.parts):
                assert any(r.start <= part[0] and part[1] <= r.end for r in covered)
    assert seen == items


def _real_parts(start: int, parts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    found = []
    for item, _, length in parts:
        if item >= 0:
            found.append((start, start + length))
        start += length
    return found


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def test_a_rank_reads_its_share_of_the_rows_only() -> None:
    tensor = info("w", (1024, 4096), dtype="BF16")
    for rank in range(4):
        (item,) = select_tensors([tensor], axes=[ParallelAxis("tensor", rank, 4)])
        (batch,) = batches([item])
        read = sum(part.length for r in batch.reads() for part in r.parts)
        assert read == tensor.nbytes // 4


def test_wide_gaps_are_not_read() -> None:
    tensor = info("experts", (8, 4, 1 << 20))
    item = cut_tensor(tensor, 1, 1, 2)
    (batch,) = batches([item])
    assert sum(part.length for r in batch.reads() for part in r.parts) == item.nbytes == 8 << 20
    assert len(batch.ranges()) == 8


def test_neighbouring_tensors_wait_as_one_range() -> None:
    (batch,) = batches([whole_tensor(t) for t in table(["a", "b", "c"])])
    assert [tuple(r) for r in batch.ranges()] == [("f", 0, 24)]
    (read,) = batch.reads()
    assert len(read.parts) == 3


def test_reads_and_batches_are_counted_by_bytes_whatever_tensors_lie_there() -> None:
    """The layout of DeepSeek-V3's experts, 14.7 MB and 3.5 KB in turns, beside one tensor of as many bytes."""
    tensors, end = [], 0
    for i in range(64):
        for name, shape, dtype in (
            (f"{i}.w", (2048, 7168), "F8_E4M3"),
            (f"{i}.s", (16, 56), "F32"),
        ):
            tensors.append(info(name, shape, end, dtype))
            end = tensors[-1].end
    found = batches([whole_tensor(t) for t in tensors], DEVICE_BATCH_BYTES)
    reads = [read for batch in found for read in batch.reads(DEVICE_READ_BYTES)]
    assert len(found) <= end / (DEVICE_BATCH_BYTES - 2 * tensors[0].nbytes)
    assert len(reads) <= end / DEVICE_READ_BYTES + len(found)


def test_rows_are_few_reads_and_bring_each_segment_once() -> None:
    tensor = info("w", (1000, 4096), dtype="BF16")
    item = cut_tensor(tensor, 1, 1024, 2048)
    (batch,) = batches([item])
    reads = list(batch.reads(1 << 20, rows=True))
    assert len(reads) == 8
    segments = [
        (read.start + row * read.rows.stride, read.rows.offset + row * read.rows.length)
        for read in reads if read.rows is not None
        for row in range(read.rows.segments)
    ]  # fmt: skip
    assert segments == [(item.start + i * 8192, i * 2048) for i in range(1000)]
    assert all(read.nbytes <= 1 << 20 for read in reads)
