"""A chunk on its way in: what is received is stored in order, beside what is still coming."""

import threading
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.swarm.events import Outcome
from p2pcache.io.peers.transport.incoming_chunk import (
    INLINE_BYTES,
    INLINE_CHUNK_BYTES,
    ExpectedChunks,
    IncomingChunk,
)
from p2pcache.io.peers.transport.workers import Slice, SlicePool, Workers
from tests.io.peers.kit import FileStore, FileWriter, Model, make_model

LENGTHS = [INLINE_CHUNK_BYTES + 5, INLINE_CHUNK_BYTES + 1, INLINE_CHUNK_BYTES]
MODEL = make_model(LENGTHS)


class Gated(FileStore):
    """Writes of some chunks wait until the gate opens."""

    def __init__(self, model: Model, closed: set[int]) -> None:
        super().__init__(model, full=False)
        self.closed = closed
        self.gate = threading.Event()

    def begin(self, chunk: int) -> FileWriter | None:
        self.begun += 1
        return GatedWriter(self, chunk) if chunk in self.closed else FileWriter(self, chunk)


class GatedWriter(FileWriter):
    store: Gated

    def put(self, offset: int, data: memoryview) -> None:
        assert self.store.gate.wait(30)
        super().put(offset, data)


class Ends:
    """What became of the chunks."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Outcome, int]] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome, nbytes: int) -> None:
        with self._changed:
            self.outcomes.append((outcome, nbytes))
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= count, 30)


class Bench:
    """What a receiving thread works with."""

    def __init__(self, store: FileStore, writers: Workers, buffers: int = 8) -> None:
        self.store, self.ends = store, Ends()
        self.pool = SlicePool(buffers)
        chunks = range(store.layout.chunk_count)
        self.incoming = ExpectedChunks(0, chunks, store.layout, store, self.ends)
        self._writers = writers

    def begin(self, chunk: int) -> IncomingChunk:
        return IncomingChunk(self.incoming, chunk, LENGTHS[chunk], self._writers)

    def feed(self, reception: IncomingChunk, data: bytes) -> None:
        """One part in a buffer of its own, as the pump does it."""
        held: Slice = self.pool.take()
        held.view[: len(data)] = data
        reception.feed(held.view[: len(data)], held)
        held.release()


@pytest.fixture(scope="module")
def writers() -> Iterator[Workers]:
    workers = Workers(2, "test-write")
    yield workers
    workers.stop()


@given(seed=st.integers(0, 1 << 32), cut=st.integers(1, 4))
def test_parts_of_any_size_make_the_chunk(writers: Workers, seed: int, cut: int) -> None:
    dice, store = Random(seed), FileStore(MODEL, full=False)
    bench = Bench(store, writers)
    for chunk, data in enumerate(MODEL.chunks):
        reception, at = bench.begin(chunk), 0
        while at < len(data):
            part = data[at : at + dice.randint(1, len(data) // cut + 1)]
            bench.feed(reception, part)
            at += len(part)
    bench.ends.wait(len(LENGTHS))
    assert sorted(bench.ends.outcomes) == sorted((Outcome.DONE, length) for length in LENGTHS)
    assert store.read() == b"".join(MODEL.chunks)
    store.file.close()


def test_the_next_chunk_is_received_and_proved_while_one_is_still_written(writers: Workers) -> None:
    store = Gated(MODEL, closed={0})
    bench = Bench(store, writers)
    bench.feed(bench.begin(0), MODEL.chunks[0])
    bench.feed(bench.begin(1), MODEL.chunks[1])
    bench.ends.wait(1)
    assert bench.ends.outcomes == [(Outcome.DONE, LENGTHS[1])]
    store.gate.set()
    bench.ends.wait(2)
    assert bench.ends.outcomes[1] == (Outcome.DONE, LENGTHS[0])
    store.file.close()


def test_a_short_end_waits_for_earlier_parts(writers: Workers) -> None:
    store = Gated(MODEL, closed={0})
    bench = Bench(store, writers)
    reception, data = bench.begin(0), MODEL.chunks[0]
    bench.feed(reception, data[:-5])
    bench.feed(reception, data[-5:])  # short enough to be stored at once, were nothing under way
    assert not bench.ends.outcomes
    store.gate.set()
    bench.ends.wait(1)
    assert bench.ends.outcomes == [(Outcome.DONE, LENGTHS[0])]
    store.file.close()


def test_a_slow_disk_makes_the_receiving_thread_wait(writers: Workers) -> None:
    store = Gated(MODEL, closed={0})
    bench = Bench(store, writers, buffers=2)
    reception, data = bench.begin(0), MODEL.chunks[0]
    parts = [data[at : at + INLINE_BYTES] for at in range(0, len(data), INLINE_BYTES)]
    for part in parts[:2]:
        bench.feed(reception, part)

    def feed_rest() -> None:
        for part in parts[2:]:
            bench.feed(reception, part)

    rest = threading.Thread(target=feed_rest)
    rest.start()
    rest.join(0.05)
    assert rest.is_alive(), "both buffers wait to be written, and yet a third was had"
    store.gate.set()
    rest.join(5)
    bench.ends.wait(1)
    assert bench.ends.outcomes == [(Outcome.DONE, LENGTHS[0])]
    assert bench.pool.made == 2
    store.file.close()


def test_a_connection_that_breaks_leaves_nothing_behind(writers: Workers) -> None:
    store = Gated(MODEL, closed={0})
    bench = Bench(store, writers, buffers=3)
    reception, data = bench.begin(0), MODEL.chunks[0]
    for at in range(0, 2 * INLINE_BYTES, INLINE_BYTES):
        bench.feed(reception, data[at : at + INLINE_BYTES])
    reception.abandon()
    store.gate.set()
    bench.ends.wait(1)
    assert bench.ends.outcomes == [(Outcome.CANCELLED, LENGTHS[0])]
    assert (store.aborted, store.finished, store.have) == (1, 0, set())
    assert len([bench.pool.take() for _ in range(3)]) == 3  # every buffer came back
    store.file.close()


def test_a_full_disk_fails_the_chunk_once(writers: Workers) -> None:
    store = FileStore(MODEL, full=False, broken=OSError("no space"))
    bench = Bench(store, writers)
    reception, data = bench.begin(0), MODEL.chunks[0]
    for at in range(0, len(data), INLINE_BYTES):
        bench.feed(reception, data[at : at + INLINE_BYTES])
    bench.ends.wait(1)
    assert bench.ends.outcomes == [(Outcome.FAILED, LENGTHS[0])]
    assert (store.aborted, store.finished) == (1, 0)
    store.file.close()
