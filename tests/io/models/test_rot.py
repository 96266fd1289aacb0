"""Restarts, rot and meddling: what isn't proved any more is not believed, and is mended."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2pcache.core import bitset
from p2pcache.errors import (
    NotFound,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.blobs.bitmap import decode
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_store, read_chunk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


def test_progress_survives_a_restart_of_the_store(tmp_path: Path) -> None:
    wanted = model()
    opened = open_store(tmp_path)
    node = opened.node_id
    here = wanted.add(opened)
    half = range(wanted.layout.chunk_count // 2)
    wanted.fill(here, half)
    done = here.bytes_done
    opened.close()

    opened = open_store(tmp_path)
    assert opened.node_id == node
    info = opened.models()[0]
    assert (info.complete, info.bytes_done > 0) == (False, True)
    again = opened.get(wanted.digest)
    assert again is not None
    assert again.bytes_done == done
    assert all(again.has_chunk(c) for c in half)
    wanted.assert_proved(again)
    wanted.fill(again)
    again.publish(REF, 1)
    opened.close()

    opened = open_store(tmp_path)
    info = opened.models()[0]
    assert info.complete
    assert info.tags == [REF]
    assert info.bytes_done == info.bytes_total
    assert opened.tag_of(REF) == (wanted.digest, 1)
    whole = opened.get(wanted.digest)
    assert whole is not None
    assert whole.complete
    wanted.assert_proved(whole)
    opened.close()


def test_a_newer_cache_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    wanted = model()
    opened = open_store(tmp_path)
    wanted.fill(wanted.add(opened))
    opened.close()
    db = sqlite3.connect(tmp_path / "cache/agent.db")
    db.execute("pragma user_version=99")
    db.close()
    (tmp_path / "cache/partial/of-a-newer-kind").write_bytes(b"x")
    before = content(tmp_path / "cache")
    with pytest.raises(UsageError, match=r"newer release .*; upgrade p2pcache"):
        open_store(tmp_path)
    assert content(tmp_path / "cache") == before


def content(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file but the lock and SQLite's own."""
    found = {str(p.relative_to(folder)): p.stat() for p in folder.rglob("*") if p.is_file()}
    return {
        n: (s.st_size, s.st_mtime_ns) for n, s in found.items() if n[:5] not in ("lock", "agent")
    }


def test_a_damaged_database_says_what_to_do_and_its_loss_costs_no_bytes(tmp_path: Path) -> None:
    wanted = model()
    opened = open_store(tmp_path)
    here = wanted.add(opened)
    wanted.fill(here)
    here.publish(REF, 3)
    opened.close()
    database = tmp_path / "cache/agent.db"
    database.write_bytes(b"garbage, not a database" * 100)
    with pytest.raises(P2PCacheError, match="stop the agent and remove this file: models stay"):
        open_store(tmp_path)
    database.unlink()
    opened = open_store(tmp_path)
    again = opened.get(wanted.digest)
    assert again is not None
    assert again.have_runs() == 0, "no proof record: nothing is believed"
    assert opened.tag_of(REF) == (wanted.digest, 0), "the link tells"
    with pytest.raises(NotFound):
        again.source(0)
    assert again.copy_local() == bitset.full(wanted.layout.run_count)
    wanted.assert_tree(tmp_path / "cache/models/team/llama/v1")
    again.publish(REF, 3)
    opened.close()


def test_a_rotten_source_is_not_copied(store: Store, tmp_path: Path) -> None:
    data = os.urandom(3000)
    old = Model({"a": data}, 1000)
    new = Model({"b": data[:2000]}, 1000)
    here = old.add(store)
    old.fill(here)
    blob = tmp_path / "cache/partial" / old.layout.blobs[0].id
    with blob.open("r+b") as file:
        file.write(b"rotten")
    there = new.add(store)
    there.copy_local()
    assert [there.has_chunk(c) for c in (0, 1)] == [False, True]
    assert not here.has_chunk(0), "nor believed where it came from"
    new.assert_proved(there)


def test_verify_finds_rotten_chunks_and_a_pull_mends_them(store: Store, tmp_path: Path) -> None:
    wanted = model()
    here = wanted.add(store)
    wanted.fill(here)
    path = tmp_path / "cache/models" / here.publish(REF, 1)
    seen: list[tuple[int, int]] = []
    assert here.verify(lambda done, total: seen.append((done, total))) == []
    assert seen[-1][0] == seen[-1][1] > 0
    place = wanted.layout.first_place(here.layout.chunk_count - 1)
    blob = wanted.layout.blobs[place.blob]
    file = tmp_path / "cache/blobs" / blob.id
    file.chmod(0o644)
    with file.open("r+b") as damage:
        damage.seek(place.offset)
        damage.write(b"bit rot")
    lost: list[int] = []
    here.on_lost = lost.append
    bad = here.verify()
    assert bad == [here.layout.chunk_count - 1]
    assert lost == [bitset.full(wanted.layout.run_count) & ~here.have_runs()]
    assert not path.exists(), "a path is complete or absent"
    assert file.exists() is False
    with pytest.raises(NotFound):
        here.source(bad[0])
    wanted.assert_proved(here)
    store.close()
    again = open_store(tmp_path)
    mended = again.get(wanted.digest)
    assert mended is not None
    assert not mended.has_chunk(bad[0])
    wanted.fill(mended)
    mended.publish(REF, 1)
    wanted.assert_tree(path)
    assert mended.verify() == []
    again.close()


def test_a_changed_file_is_not_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = Model({"a": os.urandom(3000)}, 1000)
    opened = open_store(tmp_path)
    here = wanted.add(opened)
    wanted.fill(here)
    path = tmp_path / "cache/models" / here.publish(REF, 1)
    opened.close()
    target = path / "a"
    target.chmod(0o644)
    with target.open("r+b") as file:
        file.write(b"evil")
    opened = open_store(tmp_path)
    again = opened.get(wanted.digest)
    assert again is not None
    assert again.have_runs() == 0
    with pytest.raises(NotFound):
        again.source(1)
    again.copy_local()
    assert [again.has_chunk(c) for c in range(3)] == [False, True, True]
    # It mends itself, and nobody would hear of a disk that begins to fail.
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "was complete, and a part of it is wrong on disk" in told
    assert not path.exists()
    wanted.fill(again)
    again.publish(REF, 1)
    wanted.assert_tree(path)
    opened.close()


def test_a_file_changed_while_the_store_is_open_is_noticed_when_it_is_opened(
    store: Store, tmp_path: Path
) -> None:
    wanted = Model({"a": os.urandom(3000)}, 1000)
    here = wanted.add(store)
    wanted.fill(here)
    here.publish(REF, 1)
    file = tmp_path / "cache/blobs" / wanted.layout.blobs[0].id
    os.utime(file, ns=(1, 1))
    with pytest.raises(NotFound, match="changed on disk"):
        here.source(0)
    assert here.have_runs() == 0
    assert here.begin(0) is None, "proved again where it lies"
    here.copy_local()
    assert read_chunk(here, 0) == wanted.chunk(0)
    file.unlink()
    store._blobs.files.clear()
    with pytest.raises(NotFound):
        here.source(0)
    wanted.fill(here)
    wanted.assert_proved(here)


@pytest.mark.parametrize("damage", ["content", "gone", "nothing"])
def test_a_file_changed_behind_our_back_is_noticed_before_its_path_is_handed_out(
    store: Store, tmp_path: Path, damage: str
) -> None:
    wanted = Model({"a": os.urandom(3000), "b": b"", "c": b"fine"}, 1000)
    here = wanted.add(store)
    wanted.fill(here)
    path = tmp_path / "cache/models" / here.publish(REF, 1)
    blob = wanted.layout.blobs[wanted.layout.blob_of_file["a"]]
    file = tmp_path / "cache/blobs" / blob.id
    if damage == "content":
        file.chmod(0o644)
        with file.open("r+b") as damaged:
            damaged.write(b"evil")
    elif damage == "gone":
        file.unlink()
    assert here.recheck() is (damage == "nothing")
    here.copy_local()
    expected = {"content": [0, 1, 1], "gone": [0, 0, 0], "nothing": [1, 1, 1]}[damage]
    assert [here.has_chunk(c) for c in blob.chunks] == expected
    wanted.fill(here)
    here.publish(REF, 1)
    wanted.assert_tree(path)
    assert here.recheck()


def test_a_truncated_blob_is_mended(tmp_path: Path) -> None:
    wanted = Model({"a": os.urandom(3000)}, 1000)
    opened = open_store(tmp_path)
    here = wanted.add(opened)
    wanted.fill(here)
    here.publish(REF, 1)
    opened.close()
    os.truncate(tmp_path / "cache/blobs" / wanted.layout.blobs[0].id, 1500)
    opened = open_store(tmp_path)
    again = wanted.add(opened)
    again.copy_local()
    assert [again.has_chunk(c) for c in range(3)] == [True, False, False]
    wanted.fill(again)
    again.publish(REF, 1)
    wanted.assert_tree(tmp_path / "cache/models/team/llama/v1")
    opened.close()


@pytest.mark.parametrize("damage", ["tear", "foreign", "gone", "count", "newer"])
def test_a_torn_bitmap_costs_a_proof_not_the_bytes(tmp_path: Path, damage: str) -> None:
    wanted = Model({"a": os.urandom(5000)}, 1000)
    opened = open_store(tmp_path)
    here = wanted.add(opened)
    wanted.fill(here, [0, 3])
    opened.close()
    bitmap = tmp_path / "cache/partial" / f"{wanted.layout.blobs[0].id}.have"
    good = bitmap.read_bytes()
    if damage == "gone":
        bitmap.unlink()
    else:
        bad = {"tear": good[:-1], "foreign": b"\xff" * len(good), "count": good + b"\0",
               "newer": b"P2PHAVE2" + good[8:]}[damage]  # fmt: skip
        bitmap.write_bytes(bad)
    opened = open_store(tmp_path)
    again = wanted.add(opened)
    assert again.have_runs() == 0
    again.copy_local()
    assert [again.has_chunk(c) for c in range(5)] == [True, False, False, True, False]
    wanted.fill(again)
    wanted.assert_proved(again)
    opened.close()


def test_a_partial_file_deleted_behind_our_back(tmp_path: Path) -> None:
    wanted = Model({"a": os.urandom(3000)}, 1000)
    opened = open_store(tmp_path)
    here = wanted.add(opened)
    wanted.fill(here, [0])
    here.flush()
    file = tmp_path / "cache/partial" / wanted.layout.blobs[0].id
    file.unlink()
    opened._blobs.files.clear()
    lost: list[int] = []
    here.on_lost = lost.append
    assert wanted.put(here, 1)
    assert not here.has_chunk(0)
    assert not file.with_name(f"{file.name}.have").exists(), "nor would a crash now believe it"
    wanted.fill(here)
    here.publish(REF, 1)
    wanted.assert_tree(tmp_path / "cache/models/team/llama/v1")
    opened.close()


def test_a_flush_never_records_chunks_that_were_taken_back_meanwhile(tmp_path: Path) -> None:
    class Meddler(Disk):
        meddle: Callable[[], None] | None = None

        def sync(self, fd: int) -> None:
            super().sync(fd)
            if self.meddle is not None:
                meddle, self.meddle = self.meddle, None
                meddle()

    wanted = Model({"a": os.urandom(3000)}, 1000)
    disk = Meddler()
    opened = open_store(tmp_path, disk)
    here = wanted.add(opened)
    wanted.fill(here, [0, 1])
    blob = here.files[0]
    disk.meddle = lambda: blob.lose([0])
    here.flush()
    bitmap = tmp_path / "cache/partial" / f"{blob.id}.have"
    assert not bitmap.exists()
    here.flush()
    assert bitmap_of(bitmap) == [0, 1, 0]
    opened.close()


def bitmap_of(path: Path) -> list[int]:
    found = decode(path.read_bytes())
    assert found is not None
    return list(found.bits)
