"""Chunks read from the origin without an agent: proved, or refused."""

import time
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.errors import OriginChanged
from p2pcache.loader.source.origin_fallback import OriginFallback
from tests.agent.kit import push


@pytest.fixture
def pushed(tmp_path: Path) -> tuple[Layout, Path, bytes]:
    """A model of one file with some runs, in an origin."""
    data = bytes(i * 31 % 251 for i in range(20 << 20))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(data)
    return push(tmp_path / "origin", tmp_path / "model", "team/m:v1"), tmp_path / "origin", data


def settle(fallback: OriginFallback, run: int) -> None:
    deadline = time.monotonic() + 30
    while not fallback.has_run(run) and fallback.error is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_only_requested_runs_are_read(pushed: tuple[Layout, Path, bytes]) -> None:
    layout, origin, data = pushed
    assert layout.run_count > 2
    fallback = OriginFallback(layout, origin.as_uri())
    try:
        fallback.request_runs(bitset.of([1]))
        settle(fallback, 1)
        chunks = layout.run_chunks(1)
        assert fallback.bytes_origin == sum(layout.lengths[chunk] for chunk in chunks)
        assert not fallback.has_run(0)
        place = layout.first_place(chunks[0])
        part = bytearray(1000)
        fallback.read_chunk(chunks[0], 50, memoryview(part))
        assert part == data[place.offset + 50 :][:1000]
    finally:
        fallback.close()


def test_bytes_that_do_not_match_the_manifest_are_refused(
    pushed: tuple[Layout, Path, bytes],
) -> None:
    layout, origin, _ = pushed
    for blob in (origin / "p2pcache/v1/blobs").iterdir():
        blob.chmod(0o644)
        blob.write_bytes(bytes(blob.stat().st_size))
    fallback = OriginFallback(layout, origin.as_uri())
    try:
        fallback.request_runs(bitset.of([0]))
        settle(fallback, 0)
        assert isinstance(fallback.error, OriginChanged)
        assert not fallback.has_run(0)
    finally:
        fallback.close()
