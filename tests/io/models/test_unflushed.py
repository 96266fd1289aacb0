"""What came between the last flush and a crash lies on the disk: it is proved there, not fetched again."""

import errno
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from p2pcache.io.blobs import blob_pool, letting_go, proving
from p2pcache.io.disk.disk import Disk
from tests.io.models.crash_kit import in_child
from tests.io.models.store_kit import Model, model, open_store

MODEL = model(1, chunk_bytes=8192)  # whole pages: a region of data says nothing of less


def crash(path: Path, *, flushed: int, written: int) -> None:
    """A process writes so many chunks, of which it flushes some, and dies in the middle of one more."""

    def life() -> None:
        store = open_store(path)
        one = MODEL.add(store)
        MODEL.fill(one, range(flushed))
        one.flush()
        MODEL.fill(one, range(flushed, written))
        if written < MODEL.layout.chunk_count:
            writer = one.begin(written)
            assert writer is not None
            writer.put(0, memoryview(MODEL.chunk(written))[: len(MODEL.chunk(written)) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(life) == -signal.SIGKILL


@pytest.mark.parametrize("flushed", [0, 3])
def test_a_file_without_a_bitmap_is_proved(tmp_path: Path, flushed: int) -> None:
    count = MODEL.layout.chunk_count
    crash(tmp_path, flushed=flushed, written=count - 2)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    assert not any(blob.hoped for blob in one.files)
    one.copy_local()
    assert sum(map(one.has_chunk, range(count))) >= count - 2
    assert not one.has_chunk(count - 2)
    MODEL.assert_proved(one)
    MODEL.fill(one)
    one.publish()
    store.close()


@pytest.mark.parametrize(
    ("flushed", "written", "found", "proved"),
    [(5, 5, [1], []), (5, 6, [1, 2], [1]), (5, 7, [1, 2], [1, 2]), (6, 6, [2], []), (6, 7, [2], [2])],
)  # fmt: skip
def test_what_came_after_the_bitmap_is_proved(
    tmp_path: Path, flushed: int, written: int, found: list[int], proved: list[int]
) -> None:
    assert MODEL.layout.chunk_count == 7
    crash(tmp_path, flushed=flushed, written=written)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    weights = one.files[-1]
    believed = bytes(weights.bits)
    assert believed == (b"\x01\x00\x00\x01" if flushed == 5 else b"\x01\x01\x00\x01")
    assert weights.hoped
    assert weights.suspects() == found
    one.copy_local()
    assert [p for p, bit in enumerate(weights.bits) if bit and not believed[p]] == proved
    MODEL.assert_proved(one)
    MODEL.fill(one)
    one.publish()
    store.close()


def test_more_than_a_crash_can_have_kept_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(tmp_path, flushed=5, written=7)
    for limit, found in ((16_383, []), (16_384, [1, 2])):
        monkeypatch.setattr(blob_pool, "MOST_UNFLUSHED_BYTES", limit)
        store = open_store(tmp_path)
        weights = MODEL.add(store).files[-1]
        assert weights.bits == b"\x01\x00\x00\x01"
        assert weights.suspects() == found
        store.close()


def test_the_most_that_is_hashed_counts_for_all_blobs_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Model({f"{n}.bin": random.Random(n).randbytes(4 * 8192) for n in range(5)}, 8192)

    def life() -> None:
        store = open_store(tmp_path)
        one = many.add(store)
        many.fill(one, range(0, many.layout.chunk_count, 4))
        one.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(life) == -signal.SIGKILL
    monkeypatch.setattr(blob_pool, "data_regions", lambda _fd, size: iter([(0, size)]))
    monkeypatch.setattr(blob_pool, "MOST_UNFLUSHED_BYTES", 7 * 8192)
    store = open_store(tmp_path)
    one = many.add(store)
    assert sum(len(blob.suspects()) for blob in one.files) == 6
    store.close()


@pytest.mark.parametrize("step", ["open", "seek"])
def test_a_disk_that_cant_tell_what_it_has_opens_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Refusing(Disk):
        def open_read(self, parent: int, name: str) -> int:
            if step == "open":
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open_read(parent, name)

    def refuse(_fd: int, _size: int) -> Iterator[tuple[int, int]]:
        raise OSError(errno.EIO, "Input/output error")

    crash(tmp_path, flushed=5, written=6)
    if step == "seek":
        monkeypatch.setattr(blob_pool, "data_regions", refuse)
    store = open_store(tmp_path, Refusing())
    one = MODEL.add(store)
    assert one.files[-1].bits == b"\x01\x00\x00\x01"
    assert one.files[-1].suspects() == []
    store.close()


def test_what_is_punched_while_it_is_hashed_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(tmp_path, flushed=5, written=MODEL.layout.chunk_count)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    weights, pool, writers = one.files[-1], one._blobs, one._writers
    assert weights.suspects() == [1, 2]
    hashed, punched, began = Event(), Event(), Event()
    punch, proves = letting_go._punch, proving._proves

    def slow_punch(*args: Any) -> bool:
        began.set()
        assert hashed.wait(10)
        done = punch(*args)
        punched.set()
        return done

    def slow_hash(*args: Any) -> bool:
        good = proves(*args)
        hashed.set()
        assert punched.wait(10)
        return good

    monkeypatch.setattr(letting_go, "_punch", slow_punch)
    monkeypatch.setattr(proving, "_proves", slow_hash)
    with ThreadPoolExecutor(1) as thread:
        freeing = thread.submit(letting_go.free_holes, pool, writers, weights)
        assert began.wait(10)
        proving.prove_suspects(pool, weights, [1, 2])
        assert freeing.result()
    assert weights.bits == b"\x01\x00\x00\x01"
    assert weights.suspects() == []
    MODEL.assert_proved(one)
    MODEL.fill(one)
    one.publish()
    store.close()
