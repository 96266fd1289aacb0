"""Copies straight from the page cache, on a device whose copies happen as late as they may."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from p2pcache.loader.memory.arena import PAGE
from p2pcache.loader.memory.mapping import map_shared
from p2pcache.loader.plan.batches import Batch
from p2pcache.loader.plan.selection import LoadItem, cut_tensor, whole_tensor
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from p2pcache.loader.transfer import cache_copies
from p2pcache.loader.transfer.cache_copies import CacheCopies
from p2pcache.loader.transfer.sinks import Target
from tests.loader.loader_kit import Spec, write
from tests.loader.memory.fake_device import FakeAsyncBackend

SPECS = [Spec("a", "U8", (3 * PAGE + 11,)), Spec("b", "BF16", (40, 300)), Spec("c", "U8", (7,))]


class Place:
    """A model, and one batch of it on its way to a device."""

    def __init__(self, folder: Path, *items: str) -> None:
        self.body = write(folder / "m.safetensors", SPECS, pad=3)
        self.source = DirectorySource(folder)
        self.infos = open_catalog(self.source, Deadline(None, "m")).tensors
        self.backend = FakeAsyncBackend()
        self.cache = CacheCopies(self.source, self.backend)
        self.load([whole_tensor(self.infos[name]) for name in items or "abc"])

    def load(self, items: list[LoadItem]) -> None:
        self.batch = Batch([])
        for item in items:
            self.batch.add(item)
        self.buffer = self.backend.alloc_device(self.batch.nbytes)
        self.target = Target(places=[(self.buffer, offset) for offset in self.batch.offsets])

    def bring(self, read_bytes: int = PAGE + 5) -> list[bool]:
        return [
            self.cache.bring(read, self.target) for read in self.batch.reads(read_bytes, rows=True)
        ]

    def found(self) -> list[bytes]:
        self.backend.ready([self.buffer], self.backend.record_all())
        return [bytes(self.buffer.data[offset : offset + item.nbytes])
                for item, offset in zip(self.batch.items, self.batch.offsets, strict=True)]  # fmt: skip


def end_of(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)


def test_all_bytes_come_and_all_is_let_go(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert all(place.bring())
    assert place.backend.pinned() == len(place.backend.events) > 5
    place.cache.close()
    assert place.found() == list(place.body.values())
    end_of("p2pcache-unpin")
    place.backend.events.clear()
    assert place.backend.pinned() == 0
    place.cache.close()


def test_rows(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.load([cut_tensor(place.infos["b"], 1, 100, 200)])
    assert all(place.bring())
    rows = [place.body["b"][i * 600 + 200 : i * 600 + 400] for i in range(40)]
    assert place.found() == [b"".join(rows)]


def test_the_oldest_go_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_copies, "HELD_BYTES", 5 * PAGE)
    place = Place(tmp_path)
    assert all(place.bring())
    come = [event.come for event in place.backend.events]
    assert come == sorted(come, reverse=True)
    assert come[0]
    assert place.found() == list(place.body.values())


def test_what_goes_through_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    monkeypatch.setattr(cache_copies, "_MAX_PARTS", 1)
    several = place.bring(1 << 20)
    assert several == [False]
    monkeypatch.undo()
    cold = os.preadv

    def not_there(fd: int, room: Any, at: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return cold(fd, room, at)

    monkeypatch.setattr(os, "preadv", not_there)
    assert not any(place.bring())
    monkeypatch.undo()
    place.backend.refuses_files = True
    assert not any(place.bring())
    place.backend.refuses_files = False
    assert not any(place.bring())  # it isn't asked again
    assert place.backend.copies == 0


def test_a_shared_mapping_is_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * PAGE + b"y" * 10)
    fd = os.open(path, os.O_RDWR)
    found = map_shared(fd, PAGE, 10)
    os.pwrite(fd, b"z", PAGE)
    os.close(fd)
    assert bytes(found) == b"z" + b"y" * 9
    with pytest.raises(OSError, match="descriptor"):
        map_shared(fd, 0, 10)
