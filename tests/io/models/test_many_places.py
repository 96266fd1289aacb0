"""What it costs that one chunk lies in many places: a manifest of a few megabytes can say so a million times."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.ids import Ref
from p2pcache.io.blobs import proving
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import Model, open_store

PLACES = 20_000
BOUND_S = 5.0  # the square of the places takes minutes


@contextmanager
def by_number() -> Iterator[None]:
    """The block's time follows the number of places, and not its square."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < BOUND_S


@pytest.fixture
def repeated() -> Model:
    """A file of one byte over and over, and one that holds it among others."""
    return Model({"a": b"x" * PLACES, "b": b"y" + b"x" * PLACES}, chunk_bytes=1)


def filled(store: Store, model: Model) -> None:
    model.fill(model.add(store))


def test_each_place_of_a_chunk_is_sent(tmp_path: Path, repeated: Model) -> None:
    store = open_store(tmp_path)
    model = repeated.add(store)
    with by_number():  # as a client does who sends the whole file
        for chunk in repeated.layout.blobs[0].chunks:
            assert repeated.put(model, chunk)
    assert model.has_chunk(0)
    assert model.missing_chunks(0)
    repeated.fill(model)
    assert model.complete
    assert model.bytes_done == 2
    store.close()


def test_many_try_in_vain_and_one_succeeds(tmp_path: Path, repeated: Model) -> None:
    store = open_store(tmp_path)
    model = repeated.add(store)
    with by_number():
        writers = [model.begin(0) for _ in range(200)]
        for writer in writers:
            assert writer is not None
            writer.put(0, memoryview(b"x"))
            writer.update(memoryview(b"x"))
        assert all(writer is not None and writer.finish() for writer in writers)
    assert (store.root / "partial" / repeated.layout.blobs[1].id).read_bytes()[1:] == b"x" * PLACES
    assert model.missing_chunks(0) == [repeated.layout.blobs[1].chunks[0]]
    store.close()


def test_a_served_chunk_is_found_by_its_first_place(tmp_path: Path, repeated: Model) -> None:
    store = open_store(tmp_path)
    filled(store, repeated)
    model = repeated.add(store)
    with by_number():
        for _ in range(PLACES):
            model.source(0)
    source = model.source(0)
    assert os.pread(source.fd, source.length, source.offset) == b"x"
    store.close()


def test_suspect_places_are_proved(tmp_path: Path, repeated: Model) -> None:
    store = open_store(tmp_path)
    filled(store, repeated)
    store.close()
    for blob in repeated.layout.blobs:  # another time stamp: it is proved again
        os.utime(tmp_path / "cache/blobs" / blob.id, ns=(1, 1))
    store = open_store(tmp_path)
    model = repeated.add(store)
    assert model.missing_chunks(0)
    with by_number():
        model.copy_local()
    assert model.complete
    store.close()


def test_all_places_are_lost_and_found(tmp_path: Path) -> None:
    numbered = b"".join(number.to_bytes(4) for number in range(PLACES))  # no two chunks alike
    many = Model({"a": numbered}, chunk_bytes=4)
    store = open_store(tmp_path)
    model = many.add(store)
    blob = model.files[0]
    with by_number():
        for _ in range(20):
            with store._blobs.lock:
                blob.gain(range(PLACES))
                assert model.have_runs() == bitset.full(many.layout.run_count)
                blob.lose(range(PLACES))
    assert model.have_runs() == 0
    assert not any(model.has_chunk(chunk) for chunk in range(PLACES))
    assert not proving.doubt_unreadable(store._blobs, blob)
    store.close()


def test_one_model_is_looked_up_without_the_others(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one, other = Model({"a": b"x"}), Model({"b": b"y"})
    for number, model in enumerate((one, other)):
        model.fill(model.add(store))
        model.add(store).publish(Ref.parse(f"team/m{number}:v1"), 1)
    assert [store.model_info(info.digest) for info in store.models()] == store.models()
    assert store.model_info("ab" * 32) is None
    looked: list[str] = []
    blobs_of = store._records.blobs_of
    store._records.blobs_of = lambda digest: looked.append(digest) or blobs_of(digest)  # type: ignore[func-returns-value,method-assign]
    assert store.model_info(one.digest) is not None
    assert looked == [one.digest]
    store.close()
