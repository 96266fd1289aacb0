"""Runs, places and chunk numbers: pure functions of the manifest."""

import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.format.chunking import KiB, nominal_chunk_bytes
from p2pcache.core.format.layout import Layout, Place
from p2pcache.core.format.manifest import (
    Chunk,
    Manifest,
    digest_of,
    encode,
    make_file,
    make_manifest,
)
from p2pcache.errors import InvalidManifest


def chunk(word: int | str, length: int) -> Chunk:
    return Chunk(length, blake3(f"{word}:{length}".encode()).digest())


def manifest(**files: list[Chunk]) -> Manifest:
    return make_manifest(make_file(path, chunks) for path, chunks in files.items())


def test_numbers_follow_first_appearance() -> None:
    same = chunk("same", 100)
    layout = Layout(manifest(a=[chunk(1, 10), same], b=[same, chunk(2, 20)], c=[], d=[same]))
    assert layout.chunk_count == 3
    assert list(layout.lengths) == [10, 100, 20]
    assert layout.digest_of_chunk(1) == same.digest
    assert list(layout.places(1)) == [Place(0, 10), Place(1, 0), Place(3, 0)]
    assert list(layout.places(2)) == [Place(1, 100)]
    assert [list(b.chunks) for b in layout.blobs] == [[0, 1], [1, 2], [], [1]]
    assert layout.total_bytes == 130
    assert layout.digest == digest_of(encode(layout.manifest))


def test_equal_files_are_one_blob() -> None:
    layout = Layout(manifest(a=[chunk(1, 10)], b=[chunk(1, 10)], c=[], e=[]))
    assert layout.blob_of_file == {"a": 0, "b": 0, "c": 1, "e": 1}
    assert len(layout.blobs) == 2
    assert list(layout.places(0)) == [Place(0, 0)]


def test_one_digest_with_two_lengths_is_refused() -> None:
    digest = bytes(32)
    with pytest.raises(InvalidManifest, match="two lengths"):
        Layout(manifest(a=[Chunk(5, digest)], b=[Chunk(6, digest)]))


def test_a_model_of_empty_files() -> None:
    layout = Layout(manifest(a=[], b=[]))
    assert (layout.chunk_count, layout.run_count, layout.total_bytes) == (0, 0, 0)
    assert len(layout.blobs) == 1


def test_ten_thousand_small_files_are_few_runs() -> None:
    files = {f"f{i:05}": [chunk(i, 5000)] for i in range(10_000)}
    layout = Layout(manifest(**files))
    assert layout.run_count == 193
    assert max(layout.run_bytes) <= 256 * KiB


def test_large_chunks_are_runs_of_their_own() -> None:
    layout = Layout(manifest(a=[chunk(i, 256 * KiB) for i in range(5)] + [chunk("end", 7)]))
    assert list(layout.run_bytes) == [256 * KiB] * 5 + [7]


def test_a_chunk_above_the_run_size_is_one_run() -> None:
    layout = Layout(manifest(a=[chunk(1, 10), chunk(2, 60 << 20), chunk(3, 10)]))
    assert list(layout.run_bytes) == [10, 60 << 20, 10]


lengths = st.lists(st.integers(1, 300 * KiB), max_size=20)


@given(st.lists(lengths, min_size=1, max_size=5), st.integers(0, 10))
def test_tables_agree(shape: list[list[int]], words: int) -> None:
    dice = random.Random(words)
    files = {
        f"f{i}": [chunk(dice.randint(0, words), n) for n in sizes] for i, sizes in enumerate(shape)
    }
    layout = Layout(manifest(**files))
    assert sum(layout.run_bytes) == layout.total_bytes == sum(layout.lengths)
    limit = nominal_chunk_bytes(layout.manifest.size_bytes)
    seen = []
    for run in range(layout.run_count):
        chunks = layout.run_chunks(run)
        seen += list(chunks)
        assert len(chunks) == 1 or layout.run_bytes[run] <= limit
        assert sum(layout.lengths[c] for c in chunks) == layout.run_bytes[run]
        assert all(layout.run_of(c) == run for c in chunks)
    assert seen == list(range(layout.chunk_count))
    places = {
        (number, sum(layout.lengths[c] for c in blob.chunks[:position])): one
        for number, blob in enumerate(layout.blobs)
        for position, one in enumerate(blob.chunks)
    }
    listed = {tuple(p): c for c in range(layout.chunk_count) for p in layout.places(c)}
    assert listed == places


def test_one_blob_has_one_sha256() -> None:
    chunk = [Chunk(1, bytes(32))]
    files = [
        make_file("a", chunk, bytes(32)),
        make_file("b", chunk),
        make_file("c", chunk, bytes(32)),
    ]
    assert len(Layout(make_manifest(files)).blobs) == 1
    with pytest.raises(InvalidManifest, match="two SHA-256"):
        Layout(make_manifest([*files, make_file("d", chunk, b"x" * 32)]))
