"""Parts of a model go while others stay: their space is free, what stays is served, and nothing wrong is believed."""

import contextlib
import errno
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from p2pcache.core import bitset
from p2pcache.core.protocol.keep_orders import KeepOrder
from p2pcache.errors import Conflict, NoSpace, NotFound
from p2pcache.ids import Ref
from p2pcache.io.blobs import reservation
from p2pcache.io.blobs.letting_go import free_holes
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models import room
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.room import Wanted
from p2pcache.io.models.store import Store
from tests.io.host.test_file_users import holding
from tests.io.models.store_kit import REF, Model, held_deleted, open_store, read_chunk

CHUNK = 1 << 20
FILES = {"config.json": b"{}" * 50, "a.bin": os.urandom(6 * CHUNK), "b.bin": os.urandom(2 * CHUNK)}
MODEL = Model(FILES, CHUNK)
RUNS = MODEL.layout.run_count


def order(runs: tuple[int, int], wanted: Model = MODEL) -> KeepOrder:
    return KeepOrder(REF.namespace, REF.name, REF.tag, wanted.digest, (runs,))


def span(first: int, end: int) -> int:
    return bitset.full(end - first) << first


def disk_bytes(path: Path) -> int:
    files = [p for p in (path / "cache").rglob("*") if p.is_file() and p.name != "spare"]
    return sum(
        {
            p.stat().st_ino: p.stat().st_blocks * 512 for p in files if "agent.db" not in p.name
        }.values()
    )


def known(store: Store) -> ModelStore:
    model = store.get(MODEL.digest)
    assert model is not None
    return model


def filled(path: Path) -> Store:
    store = open_store(path)
    MODEL.fill(MODEL.add(store))
    MODEL.add(store).flush()
    return store


def test_the_space_of_runs_that_go_is_free_and_the_others_are_served_also_later(
    tmp_path: Path,
) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        before = disk_bytes(tmp_path)
        lost: list[int] = []
        model.on_lost = lost.append
        freed = store.removal.let_go(model, span(2, RUNS))
        assert freed >= (RUNS - 3) * CHUNK
        assert before - disk_bytes(tmp_path) >= (RUNS - 3) * CHUNK
        assert model.have_runs() == span(0, 2)
        union = 0
        for runs in lost:
            union |= runs
        assert union == span(2, RUNS), "peers are told"
        with pytest.raises(NotFound):
            model.source(RUNS - 1)
        (info,) = store.models()
        assert not info.complete
        assert store.usage().filled_bytes < 3 * CHUNK, "what went counts for no quota"
    with contextlib.closing(open_store(tmp_path)) as store:
        model = known(store)
        assert model.have_runs() == span(0, 2)
        MODEL.assert_proved(model)
        MODEL.fill(model)
        MODEL.assert_tree(tmp_path / "cache/models" / model.publish(REF, 1))


def test_a_peer_that_is_being_sent_a_run_gets_its_bytes(tmp_path: Path) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        chunk = 7
        source = model.source(chunk)
        before = disk_bytes(tmp_path)
        store.removal.let_go(model, span(2, RUNS))
        assert before - disk_bytes(tmp_path) >= (RUNS - 3) * CHUNK
        assert os.pread(source.fd, source.length, source.offset) == MODEL.chunk(chunk)
        assert len(held_deleted(tmp_path)) == 1
        del source
        assert not held_deleted(tmp_path)


def test_a_peer_that_is_being_sent_a_run_of_a_partial_file_gets_its_bytes(tmp_path: Path) -> None:
    with contextlib.closing(open_store(tmp_path)) as store:
        model = MODEL.add(store)
        MODEL.fill(model, range(5))
        source = model.source(4)
        before = disk_bytes(tmp_path)
        store.removal.let_go(model, span(2, RUNS))
        assert before - disk_bytes(tmp_path) < 2.5 * CHUNK
        assert os.pread(source.fd, source.length, source.offset) == MODEL.chunk(4)
        del source
        store.keep_spare()  # what looks again from time to time
        assert before - disk_bytes(tmp_path) >= 5 * CHUNK
        MODEL.assert_proved(model)


def test_a_chunk_that_is_fetched_again_meanwhile_is_right(tmp_path: Path) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        reader = model.source(3)
        store.removal.let_go(model, span(2, RUNS))
        chunk = next(iter(MODEL.layout.run_chunks(3)))
        writer = model.begin(chunk)
        assert writer is not None
        data = memoryview(MODEL.chunk(chunk))
        writer.put(0, data)
        del reader
        store.keep_spare()
        writer.update(data)
        assert writer.finish()
        store.keep_spare()
        assert read_chunk(model, chunk) == MODEL.chunk(chunk)
        assert model.verify() == []


def test_what_a_crash_left_is_free_after_the_next_look(tmp_path: Path) -> None:
    with contextlib.closing(open_store(tmp_path)) as store:
        model = MODEL.add(store)
        MODEL.fill(model, range(5))
        held = model.source(3), model.source(4)
        store.removal.let_go(model, span(2, RUNS))
        before = disk_bytes(tmp_path)
        del held
    with contextlib.closing(open_store(tmp_path)) as store:
        model = known(store)
        assert disk_bytes(tmp_path) == before
        store.removal.free_holes(model)
        assert before - disk_bytes(tmp_path) >= 3 * CHUNK
        MODEL.assert_proved(model)


def test_a_blob_of_another_model_stays_whole(tmp_path: Path) -> None:
    other = Model({"a.bin": FILES["a.bin"], "more": b"x" * 5000}, CHUNK)
    with contextlib.closing(filled(tmp_path)) as store:
        other.fill(other.add(store))
        other.add(store).publish(Ref.parse("team/other:v1"), 1)
        store.removal.let_go(MODEL.add(store), span(0, RUNS))
        other.assert_tree(tmp_path / "cache/models/team/other/v1")
        assert not (tmp_path / "cache/partial" / MODEL.layout.blobs[-1].id).exists()


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_model_in_use_stays_as_it_is(tmp_path: Path, how: str) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        tree = tmp_path / "cache/models" / model.publish(REF, 1)
        model.pin()
        with pytest.raises(Conflict):
            store.removal.let_go(model, span(2, RUNS))
        model.unpin()
        with holding(tree / "b.bin", how):
            for _ in range(2):
                with pytest.raises(Conflict, match="in use"):
                    store.removal.let_go(model, span(2, RUNS))
                with pytest.raises(Conflict, match="in use"):
                    store.evict_model(MODEL.digest)
                MODEL.assert_tree(tree)
                MODEL.assert_tree(tmp_path / "cache/models/team/llama/v1")
        assert model.complete
        assert store.removal.let_go(model, span(2, RUNS)) >= (RUNS - 3) * CHUNK
        assert not tree.exists()


def test_copies_that_write_more_than_is_freed_are_dear(tmp_path: Path) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        everything = model.have_runs()
        assert model.dear_to_keep(span(4, 6), everything) == span(0, 4), "of a.bin"
        assert model.dear_to_keep(span(3, 6), everything) == 0
        assert model.dear_to_keep(span(4, 8), everything) == 0, "b.bin gives room, too"
        assert model.dear_to_keep(span(5, 7), everything) == span(0, 5), "a.bin, the larger one"
        assert model.dear_to_keep(span(4, 6), everything & ~1) == 0, "an ordered run stays anyway"
        assert model.dear_to_keep(span(6, 8), everything) == 0, "of b.bin nothing stays"
    with contextlib.closing(open_store(tmp_path / "partial")) as store:
        model = MODEL.add(store)
        MODEL.fill(model, range(5))
        assert model.dear_to_keep(span(4, 5), model.have_runs()) == 0, "holes cost nothing"


def test_what_stays_has_no_room_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of which nothing stays go all the same; a file of which some does stays whole."""
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        model.publish(REF, 1)
        monkeypatch.setattr(reservation, "free_bytes", lambda _: CHUNK - 1)
        with pytest.raises(NoSpace, match="not enough space"):
            store.removal.let_go(model, span(2, RUNS))
        assert model.have_runs() == span(0, 6), "that is a.bin"
        assert not list((tmp_path / "cache/tmp").iterdir())
        monkeypatch.undo()
        assert store.removal.let_go(model, span(2, RUNS)) >= 4 * CHUNK
        MODEL.assert_proved(model)


class Refusing(Disk):
    """No bitmap can be written while it is told so."""

    refuses = False

    def replace_file(self, parent: int, name: str, data: bytes, *, durable: bool = True) -> None:
        if self.refuses and name.endswith(".have"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace_file(parent, name, data, durable=durable)


@pytest.mark.parametrize("chunks", [RUNS, RUNS - 1], ids=["published", "partial"])
def test_a_bitmap_that_cant_be_written_loses_nothing_also_in_a_crash(
    tmp_path: Path, chunks: int
) -> None:
    disk = Refusing()
    with contextlib.closing(open_store(tmp_path, disk)) as store:
        model = MODEL.add(store)
        MODEL.fill(model, range(chunks))
        model.flush()
        disk.refuses = True
        for _ in range(2):
            with pytest.raises(NoSpace):
                store.removal.let_go(model, span(2, RUNS))
            assert model.have_runs() & span(0, 6) == span(0, 6), (
                "files of which nothing stays may go"
            )
            store.keep_spare()
            MODEL.assert_proved(model)
        shutil.copytree(tmp_path / "cache", tmp_path / "crashed/cache")
        disk.refuses = False
        store.removal.let_go(model, span(2, RUNS))
        assert model.have_runs() == span(0, 2)
        assert disk_bytes(tmp_path) < 3 * CHUNK
        MODEL.assert_proved(model)
    with contextlib.closing(open_store(tmp_path / "crashed")) as store:
        MODEL.assert_proved(known(store))


def test_files_that_somebody_has_linked_keep_their_bytes(tmp_path: Path) -> None:
    """As `pull --to DIR --link hard` does: a hole would be one in his copy, too."""
    with contextlib.closing(filled(tmp_path)) as store:
        model = MODEL.add(store)
        path = tmp_path / "cache/models" / model.publish(REF, 1)
        copy = tmp_path / "a.bin"
        copy.hardlink_to(path / "a.bin")
        assert store.removal.let_go(model, span(2, RUNS)) >= (RUNS - 3) * CHUNK
        store.keep_spare()
        assert copy.read_bytes() == FILES["a.bin"]
        MODEL.assert_proved(model)


# -- orders beside quota, pins and rm --------------------------------------------------------------


def test_ordered_parts_stay_when_a_model_is_evicted(tmp_path: Path) -> None:
    with contextlib.closing(filled(tmp_path)) as store:
        MODEL.add(store).publish(REF, 1)
        store.orders.replace([order((0, 3))], {MODEL.digest})
        whole = room.choose(store, Wanted(RUNS * CHUNK), 0.0)
        assert not whole.plan.victims, "the ordered part can't go"
        choice = room.choose(store, Wanted(4 * CHUNK), 0.0)
        (victim,) = choice.plan.victims
        freed = store.evict_model(victim.digest, victim.value)
        assert freed >= 4 * CHUNK
        model = known(store)
        assert model.have_runs() == span(0, 3)
        assert not (tmp_path / "cache/models/team/llama/v1").exists(), "half a model isn't shown"
        (info,) = store.models()
        assert (info.remote, info.kept) == (False, "part")
        told = room.state(store, {}, 0.0)
        assert told["kept_bytes"] == MODEL.layout.bytes_of(span(0, 3))
        assert not room.choose(store, Wanted(1), 0.0).plan.victims
        assert "keeps" in room.choose(store, Wanted(1), 0.0).kept[MODEL.digest]


def test_a_kept_part_has_its_name_and_survives_prune_and_rm(tmp_path: Path) -> None:
    with contextlib.closing(open_store(tmp_path)) as store:
        store.orders.replace([order((0, 3))], ())
        MODEL.fill(MODEL.add(store), range(3))
        MODEL.add(store).flush()
        (info,) = store.models()
        assert info.as_json()["ref"] == str(REF)
        assert store.named(REF) == MODEL.digest
        users = room.users_and_claims(store, [MODEL.digest], 0.0)
        assert "keep" in users.held[MODEL.digest]
        assert not store.prune(all_unused=True, users=users).removed


def test_a_look_for_space_waits_while_a_part_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both freed the same model's space, the second one found it done, and the agent ended by a KeyError."""
    with contextlib.closing(open_store(tmp_path)) as store, ThreadPoolExecutor(1) as other:
        model = MODEL.add(store)
        MODEL.fill(model, range(5))
        looks: list[Future[None]] = []

        def slowly(*args: Any) -> bool:
            if not looks:
                looks.append(other.submit(store.keep_spare))
                wait(looks, timeout=0.2)
            return free_holes(*args)

        monkeypatch.setattr("p2pcache.io.models.removal.free_holes", slowly)
        store.removal.let_go(model, span(2, RUNS))
        assert looks[0].result() is None
