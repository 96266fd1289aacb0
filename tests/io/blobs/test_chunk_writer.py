"""Several streams of one chunk: whoever proves first wins, nobody writes after that."""

import gc
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, encode, make_file, make_manifest
from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.io.blobs.chunk_writer import ChunkWriter
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import Model, open_fds, open_store, read_chunk


class SlowDisk(Disk):
    """Writes that wait for a gate, to hold a put in flight."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.refuse_copies = False
        self.writes_begun = 0

    def write_at(self, fd: int, data: memoryview | bytes, offset: int) -> None:
        self.writes_begun += 1
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(30)
        super().write_at(fd, data, offset)

    def copy_range(self, source: int, start: int, target: int, offset: int, length: int) -> None:
        if self.refuse_copies:
            raise OSError(28, "No space left on device")
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(30)
        super().copy_range(source, start, target, offset, length)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def store(tmp_path: Path, disk: SlowDisk) -> Iterator[Store]:
    opened = open_store(tmp_path, disk)
    yield opened
    assert opened._writers._slots == {}, "every writer was ended"
    opened.close()


@pytest.fixture
def wanted() -> Model:
    return Model({"a": random.Random(1).randbytes(2000), "b": b"x" * 500}, 1000)


def begin(here: ModelStore, chunk: int = 0) -> ChunkWriter:
    writer = here.begin(chunk)
    assert writer is not None
    return writer


def send(writer: ChunkWriter, data: bytes) -> None:
    view = memoryview(data)
    writer.update(view)
    writer.put(0, view)


def test_a_liar_beside_an_honest_peer(store: Store, wanted: Model) -> None:
    here = wanted.add(store)
    liar, honest = begin(here), begin(here)
    lie = bytes(1000)
    liar.update(memoryview(lie))
    liar.put(0, memoryview(lie)[:600])
    send(honest, wanted.chunk(0))
    assert honest.finish()
    liar.put(600, memoryview(lie)[600:])
    assert read_chunk(here, 0) == wanted.chunk(0), "a fenced put does nothing"
    assert not liar.finish(), "the liar is blamed although somebody else proved it"
    wanted.assert_proved(here)


def test_the_second_stream_of_the_same_bytes_is_proved_too(store: Store, wanted: Model) -> None:
    here = wanted.add(store)
    first, second = begin(here), begin(here)
    send(second, wanted.chunk(0))
    assert second.finish()
    send(first, wanted.chunk(0))
    assert first.finish()
    first, second = begin(here, 1), begin(here, 1)
    send(first, wanted.chunk(1))
    send(second, wanted.chunk(1))
    assert first.finish()
    assert second.finish()
    wanted.assert_proved(here)


def test_a_running_put_is_waited_for(store: Store, wanted: Model, disk: SlowDisk) -> None:
    here = wanted.add(store)
    liar, honest = begin(here), begin(here)
    send(honest, wanted.chunk(0))
    disk.gate.clear()
    late = threading.Thread(target=liar.put, args=(0, memoryview(bytes(1000))))
    late.start()
    assert disk.waiting.wait(30)
    result: list[bool] = []
    finish = threading.Thread(target=lambda: result.append(honest.finish()))
    finish.start()
    finish.join(0.05)
    assert finish.is_alive(), "not proved while the other one still writes into the region"
    assert not here.has_chunk(0)
    disk.gate.set()
    late.join()
    finish.join()
    assert result == [True]
    liar.abort()
    wanted.assert_proved(here)
    assert here.has_chunk(0)


def test_one_thread_at_a_time_writes_a_file(store: Store, wanted: Model, disk: SlowDisk) -> None:
    """The kernel lets no second one in, and that one would spin for as long as the first writes."""
    here = wanted.add(store)
    writers = [begin(here, 0), begin(here, 1)]
    disk.gate.clear()
    before = disk.writes_begun
    threads = [
        threading.Thread(target=send, args=(w, wanted.chunk(n))) for n, w in enumerate(writers)
    ]
    for thread in threads:
        thread.start()
    assert disk.waiting.wait(30)
    threads[1].join(0.05)
    begun = disk.writes_begun - before
    disk.gate.set()
    for thread, writer in zip(threads, writers, strict=True):
        thread.join()
        assert writer.finish()
    assert begun == 1


def test_an_aborted_put_in_flight_never_meets_its_successor(
    store: Store, wanted: Model, disk: SlowDisk
) -> None:
    here = wanted.add(store)
    stuck = begin(here)
    disk.gate.clear()
    late = threading.Thread(target=stuck.put, args=(0, memoryview(bytes(1000))))
    late.start()
    assert disk.waiting.wait(30)
    stuck.abort()  # returns at once, though the put still runs
    successor = begin(here)
    result: list[bool] = []

    def succeed() -> None:
        send(successor, wanted.chunk(0))
        result.append(successor.finish())

    other = threading.Thread(target=succeed)
    other.start()
    disk.gate.set()
    late.join()
    other.join()
    assert result == [True]
    wanted.assert_proved(here)
    assert here.has_chunk(0)


def test_puts_after_an_abort_do_nothing(store: Store, wanted: Model) -> None:
    here = wanted.add(store)
    gone = begin(here)
    gone.abort()
    gone.abort()
    gone.put(0, memoryview(bytes(1000)))
    assert wanted.put(here, 0)
    gone.put(0, memoryview(bytes(1000)))
    wanted.assert_proved(here)


def test_a_reference_to_an_ended_writer_keeps_no_file_open(store: Store, wanted: Model) -> None:
    """An error that a library keeps in a cycle has all frames below it, until garbage is collected."""
    here = wanted.add(store)
    before = open_fds()
    proved, given_up = begin(here, 0), begin(here, 1)
    send(proved, wanted.chunk(0))
    assert proved.finish()
    given_up.abort()
    store.remove_model(wanted.digest)
    assert open_fds() == before


def test_a_removal_waits_for_the_winner_that_copies(
    store: Store, disk: SlowDisk, tmp_path: Path
) -> None:
    same = random.Random(3).randbytes(1000)
    wanted = Model({"a": same + b"a", "b": same + b"b"}, 1000)
    here = wanted.add(store)
    writer = begin(here)
    send(writer, same)
    disk.gate.clear()
    proving = threading.Thread(target=writer.finish)
    proving.start()
    assert disk.waiting.wait(30)
    removing = threading.Thread(target=store.remove_model, args=(wanted.digest,))
    removing.start()
    removing.join(0.2)
    assert removing.is_alive()
    disk.gate.set()
    for thread in (proving, removing):
        thread.join(30)
    assert not any((tmp_path / "cache" / "partial").iterdir())


def test_a_full_disk_while_the_winner_copies(store: Store, wanted: Model, disk: SlowDisk) -> None:
    here = wanted.add(store)
    first, second = begin(here), begin(here)
    send(second, wanted.chunk(0))
    disk.refuse_copies = True
    with pytest.raises(NoSpace):
        second.finish()
    assert not here.has_chunk(0)
    send(first, wanted.chunk(0))
    with pytest.raises(NoSpace):
        first.finish()
    disk.refuse_copies = False
    assert wanted.put(here, 0)
    wanted.assert_proved(here)


def test_a_failed_copy_keeps_no_file_open(store: Store, wanted: Model, disk: SlowDisk) -> None:
    """A full disk must get back all of a removed model at once, not with the next garbage."""
    here = wanted.add(store)
    before = open_fds()
    disk.refuse_copies = True
    gc.disable()
    try:
        first, second = begin(here), begin(here)
        send(second, wanted.chunk(0))
        with pytest.raises(NoSpace):
            second.finish()
        first.abort()
        del first, second
        store.remove_model(wanted.digest)
        assert open_fds() == before
    finally:
        gc.enable()


def test_two_models_write_one_chunk(store: Store) -> None:
    same = random.Random(2).randbytes(1000)
    one, two = Model({"a": same}, 1000), Model({"b": b"z" * 1000 + same}, 1000)
    first, second = one.add(store), two.add(store)
    ours, theirs = begin(first, 0), begin(second, 1)
    send(theirs, same)
    assert theirs.finish()
    assert first.has_chunk(0), "the winner fills every place that a writer waits for"
    send(ours, same)
    assert ours.finish()
    one.assert_proved(first)
    two.assert_proved(second)


def test_a_manifest_that_lies_about_a_length_harms_no_other_model(store: Store) -> None:
    """Digests are global, but only with their length: else a chunk would spill over its region."""
    part = random.Random(4).randbytes(1000)
    honest = Model({"a": part}, 1000)
    digest = honest.layout.digest_of_chunk(0)
    tail = Chunk(300, blake3(b"t" * 300).digest())
    evil = make_manifest([make_file("b", [Chunk(500, digest), tail])])
    layout = Layout(evil)
    there = store.add_model(layout, encode(evil))
    writer = begin(there, 1)
    send(writer, b"t" * 300)
    assert writer.finish()
    waiting = begin(there, 0)
    here = honest.add(store)
    honest.fill(here)
    assert not there.has_chunk(0)
    assert read_chunk(there, 1) == b"t" * 300
    waiting.abort()
    there.copy_local()
    assert not there.has_chunk(0)
    assert here.has_chunk(0), "the good source isn't blamed for the lie"


def test_every_place_of_a_repeated_chunk_is_filled(store: Store, tmp_path: Path) -> None:
    part = random.Random(3).randbytes(1000)
    wanted = Model({"a": part * 5 + b"end", "b": part, "c": b"start" * 200 + part}, 1000)
    here = wanted.add(store)
    assert wanted.layout.chunk_count == 3
    wanted.fill(here)
    assert here.bytes_done == wanted.layout.total_bytes
    here.flush()
    for number, blob in enumerate(wanted.layout.blobs):
        path = next(p for p, n in wanted.layout.blob_of_file.items() if n == number)
        assert (tmp_path / "cache/blobs" / blob.id).read_bytes() == wanted.files[path]


@pytest.mark.parametrize("seed", range(6))
def test_many_racing_writers_with_liars(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    part = dice.randbytes(700)
    wanted = Model({"a": dice.randbytes(3000) + part, "b": part + dice.randbytes(1400)}, 700)
    here = wanted.add(store)
    fds = open_fds()
    blamed: list[bool] = []
    failures: list[BaseException] = []

    def peer(number: int) -> None:
        luck = random.Random(seed * 100 + number)
        for chunk in luck.sample(range(wanted.layout.chunk_count), wanted.layout.chunk_count):
            try:
                blamed.append(_race(wanted, here, chunk, luck, lies=number % 2 == 1))
            except P2PCacheError as error:
                failures.append(error)

    threads = [threading.Thread(target=peer, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wanted.fill(here)
    wanted.assert_proved(here)
    assert here.verify() == []
    assert not any(blamed), "a liar was believed, or an honest peer blamed"
    assert open_fds() <= fds + 4


def _race(wanted: Model, here: ModelStore, chunk: int, luck: random.Random, *, lies: bool) -> bool:
    """One stream in random slices; True if the verdict was unjust."""
    writer = here.begin(chunk)
    if writer is None:
        return False
    data = bytearray(wanted.chunk(chunk))
    if lies:
        data[luck.randrange(len(data))] ^= 1
    slices = [(o, memoryview(data)[o : o + 100]) for o in range(0, len(data), 100)]
    if luck.randrange(5) == 0:
        writer.put(*slices[0])
        writer.abort()
        return False
    for _, piece in slices:
        writer.update(piece)
    luck.shuffle(slices)
    for offset, piece in slices:
        writer.put(offset, piece)
    return writer.finish() is lies
