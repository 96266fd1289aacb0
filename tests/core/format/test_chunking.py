"""Cuts: sums, sizes, and safetensors headers that nobody vouches for."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format.chunking import (
    MAX_CHUNK_BYTES,
    MAX_HEADER_BYTES,
    GiB,
    KiB,
    MiB,
    cut,
    nominal_chunk_bytes,
    safetensors_header_bytes,
    safetensors_starts,
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(0, 256 * KiB), (256 * MiB - 1, 256 * KiB), (256 * MiB, MiB), (GiB - 1, MiB), (GiB, 4 * MiB),
     (64 * GiB - 1, 4 * MiB), (64 * GiB, 16 * MiB), (10**13, 16 * MiB)],
)  # fmt: skip
def test_nominal_sizes(size: int, chunk: int) -> None:
    assert nominal_chunk_bytes(size) == chunk <= MAX_CHUNK_BYTES


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(0, []), (1, [1]), (256 * KiB, [256 * KiB]), (256 * KiB + 1, [256 * KiB, 1])],
)
def test_small_cuts(size: int, lengths: list[int]) -> None:
    assert cut(size) == lengths


@given(st.integers(1, 200 * MiB), st.sets(st.integers(1, 200 * MiB - 1), max_size=8))
def test_cuts_cover_the_file_and_meet_every_start(size: int, starts: set[int]) -> None:
    inside = sorted(s for s in starts if s < size)
    lengths = cut(size, inside)
    assert sum(lengths) == size
    assert all(0 < n <= nominal_chunk_bytes(size) for n in lengths)
    edges = set()
    offset = 0
    for length in lengths:
        edges.add(offset)
        offset += length
    assert edges.issuperset(inside)


def safetensors(header: dict[str, object], data_bytes: int, pad: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def starts_of(file: bytes) -> list[int]:
    length = safetensors_header_bytes(file[:8], len(file))
    assert length is not None
    return safetensors_starts(file[8 : 8 + length], len(file))


def entry(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


def test_the_grid_restarts_at_data_and_large_tensors() -> None:
    big = 256 * KiB
    header = {"b": entry(100, 100 + big), "a": entry(0, 100), "__metadata__": {"x": "y"},
              "c": entry(100 + big, 99 + 2 * big)}  # fmt: skip
    file = safetensors(header, 99 + 2 * big)
    data = len(file) - (99 + 2 * big)
    assert starts_of(file) == [data, data + 100], "c is smaller than a chunk"
    longer = safetensors(header, 99 + 2 * big, pad=1000)
    assert [s - 1000 for s in starts_of(longer)] == [data, data + 100]


def test_empty_tensors_are_legal() -> None:
    file = safetensors({"a": entry(0, 0), "b": entry(0, 10), "z": entry(10, 10)}, 10)
    assert starts_of(file) == [len(file) - 10]
    assert starts_of(safetensors({}, 0)) == []


DOUBTFUL: dict[str, dict[str, object]] = {
    "gap": {"a": entry(0, 5), "b": entry(6, 10)},
    "overlap": {"a": entry(0, 6), "b": entry(5, 10)},
    "backwards": {"a": entry(0, 5), "b": entry(10, 5)},
    "negative": {"a": entry(-5, 10)},
    "too long": {"a": entry(0, 11)},
    "too short": {"a": entry(0, 9)},
    "no offsets": {"a": {"dtype": "U8"}},
    "one offset": {"a": {"data_offsets": [0]}},
    "words": {"a": {"data_offsets": ["zero", "ten"]}},
    "none": {"a": {"data_offsets": [None, 10]}},
    "list": {"a": [0, 10]},
    "infinite": {"a": {"data_offsets": [0, 1e400]}},
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_file_with_a_doubtful_header_is_cut_on_a_plain_grid(case: str) -> None:
    assert starts_of(safetensors(DOUBTFUL[case], 10)) == []


@pytest.mark.parametrize("header", [b"", b"[]", b"null", b"{", b"\xff\xff", b"[" * 100_000, b"7"])
def test_headers_that_are_no_table(header: bytes) -> None:
    assert safetensors_starts(header, 8 + len(header) + 10) == []


@pytest.mark.parametrize(
    ("announced", "size"),
    [(0, 100), (1, 100), (93, 100), (1 << 63, 100), (2**64 - 1, 100), (2, 9),
     (MAX_HEADER_BYTES + 1, 10**9)],
)  # fmt: skip
def test_header_lengths_that_cannot_be(announced: int, size: int) -> None:
    assert safetensors_header_bytes(struct.pack("<Q", announced), size) is None


def test_header_lengths_that_can() -> None:
    assert safetensors_header_bytes(struct.pack("<Q", 92), 100) == 92
    assert safetensors_header_bytes(b"\2\0\0\0\0\0\0", 100) is None


@given(st.binary(max_size=200), st.integers(0, 10**12))
def test_no_header_does_harm(header: bytes, size: int) -> None:
    starts = safetensors_starts(header, size)
    assert starts == sorted(set(starts))
    assert all(0 < s < size for s in starts)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


entries = st.fixed_dictionaries({"data_offsets": json_values}) | json_values


@given(st.dictionaries(st.text(max_size=5), entries, max_size=4), st.integers(0, 10**6))
def test_no_json_does_harm(header: dict[str, object], size: int) -> None:
    starts = safetensors_starts(json.dumps(header).encode(), size)
    assert all(0 < s < size for s in starts)
