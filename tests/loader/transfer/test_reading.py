"""One read: gaps are discarded, neighbours are one copy, a slot comes back from a failed read."""

from pathlib import Path

import pytest

from p2pcache.errors import IntegrityError
from p2pcache.loader.memory.ring import Ring
from p2pcache.loader.plan.batches import ALIGN_BYTES, Read, ReadPart
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.transfer.reading import read_host, read_staged
from p2pcache.loader.transfer.sinks import Target
from tests.loader.memory.fake_device import FakeAsyncBackend

DATA = bytes(i % 251 for i in range(2000))


@pytest.fixture
def source(tmp_path: Path) -> DirectorySource:
    (tmp_path / "f").write_bytes(DATA)
    return DirectorySource(tmp_path)


def never() -> bool:
    return False


def test_host_memory_gets_its_parts_without_the_gaps(source: DirectorySource) -> None:
    first, second = bytearray(10), bytearray(30)
    parts = [ReadPart(0, 0, 10), ReadPart(-1, 0, 500), ReadPart(1, 20, 10)]
    read_host(source, Read("f", 100, parts), [memoryview(first), memoryview(second)])
    assert first == DATA[100:110]
    assert second == bytes(20) + DATA[610:620]


def test_neighbours_in_one_device_buffer_are_one_copy(source: DirectorySource) -> None:
    backend = FakeAsyncBackend()
    ring, buffer = Ring(backend, 1, 4096), backend.alloc_device(1000)
    parts = [ReadPart(0, 0, 100), ReadPart(-1, 0, 50), ReadPart(1, 0, 100)]
    target = Target(places=[(buffer, 0), (buffer, ALIGN_BYTES)])
    read_staged(source, Read("f", 0, parts), target, ring, backend, never)
    assert backend.copies == 1
    ring.close()
    assert buffer.data[:100] == DATA[:100]
    assert buffer.data[ALIGN_BYTES : ALIGN_BYTES + 100] == DATA[150:250]


def test_a_failed_read_gives_its_slot_back(source: DirectorySource) -> None:
    backend = FakeAsyncBackend()
    ring = Ring(backend, 1, 4096)
    target = Target(places=[(backend.alloc_device(1000), 0)])
    with pytest.raises(IntegrityError, match="too early"):
        read_staged(source, Read("f", 1990, [ReadPart(0, 0, 100)]), target, ring, backend, never)
    assert ring.acquire(lambda: True) is not None
