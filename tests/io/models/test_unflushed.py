"""What came between the last flush and a crash lies on the disk: it is proved there, not fetched again."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from p2pcache.io.blobs import blob_pool, letting_go, proving
from tests.io.models.crash_kit import in_child
from tests.io.models.store_kit import model, open_store

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
def test_unflushed_chunks_survive_the_process(tmp_path: Path, flushed: int) -> None:
    count = MODEL.layout.chunk_count
    crash(tmp_path, flushed=flushed, written=count - 2)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    one.copy_local()
    assert sum(map(one.has_chunk, range(count))) >= count - 2
    assert not one.has_chunk(count - 2)
    MODEL.assert_proved(one)
    MODEL.fill(one)
    one.publish()
    store.close()


def test_what_was_flushed_is_believed_at_once_and_the_rest_is_not(tmp_path: Path) -> None:
    crash(tmp_path, flushed=3, written=6)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    assert sum(map(one.has_chunk, range(MODEL.layout.chunk_count))) < 6
    store.close()


def test_a_disk_that_tells_no_holes_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_pool, "MOST_UNFLUSHED_BYTES", 1000)
    crash(tmp_path, flushed=3, written=MODEL.layout.chunk_count)
    store = open_store(tmp_path)
    one = MODEL.add(store)
    assert not any(blob.suspect for blob in one.files if any(blob.bits))
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
