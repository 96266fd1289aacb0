"""An evicted model gives its space, stays known by its names, and comes back as any other."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import Busy, Conflict, NoSpace, NotAllowed, NotFound
from p2pcache.ids import Ref
from p2pcache.io.disk.agent_db import Records
from p2pcache.io.disk.disk import Disk, free_bytes
from p2pcache.io.host import file_users
from p2pcache.io.models import removal, room
from p2pcache.io.models.room import Wanted
from p2pcache.io.models.store import Store
from tests.io.models.store_kit import REF, Model, model, open_store, small_file_system

OTHER = Ref.parse("team/qwen:v1")
MB = 1 << 20


def bring(store: Store, wanted: Model, ref: Ref) -> None:
    """Fill and publish a model."""
    wanted.fill(wanted.add(store))
    wanted.add(store).publish(ref, 1)


def blobs_in(path: Path) -> set[str]:
    return {p.name for p in (path / "cache/blobs").iterdir()}


def test_it_goes_and_stays_listed(tmp_path: Path) -> None:
    one, other = model(1), model(2)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        bring(store, other, OTHER)
        assert store.evict_model(one.digest, 4.0) > 0
        rows = {info.digest: info for info in store.models()}
        gone = rows[one.digest]
        assert (gone.remote, gone.complete, gone.bytes_done) == (True, False, 0)
        assert gone.tags == [REF]
        assert rows[other.digest].complete
        assert blobs_in(tmp_path) == {b.id for b in other.layout.blobs}
        assert not (tmp_path / "cache/models/team/llama").exists()
        assert store.get(one.digest) is None
        assert store.manifest(one.digest) == one.encoded
        with pytest.raises(NotFound):
            store.evict_model(one.digest)
        before = rows
    with contextlib.closing(open_store(tmp_path)) as store:
        assert {info.digest: info for info in store.models()} == before


def test_it_is_forgotten_when_its_last_tag_moves_on(tmp_path: Path) -> None:
    one, new = model(1), model(2)
    stable = REF._replace(tag="stable")
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        bring(store, one, stable)
        store.evict_model(one.digest, 4.0)
        bring(store, new, REF)
        rows = {info.digest: info.tags for info in store.models()}
        assert rows == {one.digest: [stable], new.digest: [REF]}
        bring(store, new, stable)
        assert [info.digest for info in store.models()] == [new.digest]
        assert store.manifest(one.digest) is None


def test_it_comes_back_with_its_uses(tmp_path: Path) -> None:
    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        store.evict_model(one.digest, 4.0)
        bring(store, one, REF)
        (info,) = store.models()
        assert (info.complete, info.remote) == (True, False)
        one.assert_tree(tmp_path / "cache/models/team/llama/v1")
        (candidate,) = store.candidates({})
        assert candidate.uses.times == 1  # within a minute it is one use
        assert candidate.uses.level == 4.0, "the cache's level is the value of what went"


def test_shared_blobs_stay(tmp_path: Path) -> None:
    files = {"tokens": b"shared" * 100, "weights": b"1" * 3000}
    one, other = Model(files, 1000), Model(files | {"weights": b"2" * 3000}, 1000)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        bring(store, other, OTHER)
        store.evict_model(one.digest)
        other.assert_tree(tmp_path / "cache/models/team/qwen/v1")
        assert store.evict_model(other.digest) > 0
        assert not blobs_in(tmp_path)


def test_a_model_without_a_name_is_forgotten(tmp_path: Path) -> None:
    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        one.fill(one.add(store))
        store.evict_model(one.digest)
        assert store.models() == []


def test_a_model_in_use_stays_whole(tmp_path: Path) -> None:
    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        opened = store.get(one.digest)
        assert opened is not None
        opened.pin()
        with pytest.raises(Conflict, match="in use"):
            store.evict_model(one.digest)
        one.assert_tree(tmp_path / "cache/models/team/llama/v1")
        opened.unpin()


class Refusing(Disk):
    """The renames of manifests fail, `times` times, with this error."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.times = number, times

    def rename(self, source: int, old: str, target: int, new: str) -> None:
        if new.endswith(".remote") and self.times:
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number))
        super().rename(source, old, target, new)


@pytest.mark.parametrize(("number", "error"), [(errno.EROFS, NotAllowed), (errno.ENOSPC, NoSpace)])
def test_a_disk_that_refuses_loses_nothing(tmp_path: Path, number: int, error: type) -> None:
    one = model(1)
    disk = Refusing(number, 2)
    with contextlib.closing(open_store(tmp_path, disk)) as store:
        bring(store, one, REF)
        with pytest.raises(error):
            store.evict_model(one.digest)
        (info,) = store.models()
        assert info.complete
        one.assert_tree(tmp_path / "cache/models/team/llama/v1")
        disk.times = 0
        assert store.evict_model(one.digest) > 0


def test_the_space_kept_back_serves_the_first_step(tmp_path: Path) -> None:
    one = model(1)
    with contextlib.closing(open_store(tmp_path, Refusing(errno.ENOSPC, 1))) as store:
        bring(store, one, REF)
        assert store.evict_model(one.digest) > 0


def test_it_works_on_a_disk_without_a_free_block(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 20 * MB) as place:
        one = Model({"weights": os.urandom(8 * MB)}, MB)
        with contextlib.closing(open_store(place)) as store:
            bring(store, one, REF)
            with (place / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            assert free_bytes(place) == 0
            assert store.evict_model(one.digest) >= 8 * MB
            assert store.models()[0].remote
        with contextlib.closing(open_store(place)) as store:
            assert store.models()[0].remote


def test_a_model_that_is_back_isnt_evicted_by_what_was_left_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NoSpace("full")

    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        with monkeypatch.context() as patch:
            patch.setattr(Records, "evict_model", refuse)
            store.evict_model(one.digest)
        bring(store, one, REF)
        store.keep_spare()
        assert store.models()[0].complete
        assert (tmp_path / "cache/models/team/llama/v1/weights-1.bin").exists()


@pytest.mark.parametrize("error", [NoSpace("full"), Busy("locked", retry_after_s=1)])
def test_records_that_cant_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    one = model(1)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        with monkeypatch.context() as patch:
            patch.setattr(Records, "evict_model", refuse)
            assert store.evict_model(one.digest) > 0
            assert store.models()[0].remote, "what the disk says counts"
        store.keep_spare()
        assert not store._records.blobs_of(one.digest)
        bring(store, one, REF)
        assert store.models()[0].complete


def test_what_others_have_open_stays(tmp_path: Path) -> None:
    """Of a look at processes the plan is told; here, by the test's own child."""
    import subprocess
    import sys

    one, other = model(1), model(2)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, one, REF)
        bring(store, other, OTHER)
        path = tmp_path / "cache/models/team/llama/v1/weights-1.bin"
        program = f"f = open({str(path)!r}); print(flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            choice = room.choose(store, Wanted(1, 1 << 40), 0.0)
            rehearsed = room.choose(store, Wanted(0, rehearsal=True), 0.0)
            child.communicate(b"\n")
        assert "in use by" in rehearsed.kept[one.digest], "also where nothing has to go"
        assert [victim.digest for victim in choice.plan.victims] == [other.digest]
        assert "in use by" in choice.kept[one.digest]
        assert len(room.choose(store, Wanted(1, 1 << 40), 0.0).plan.victims) == 2


def test_models_that_go_together_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = file_users.look

    def counted(*args: Any) -> file_users.Look:
        nonlocal looks
        looks += 1
        return look(*args)

    monkeypatch.setattr(file_users, "look", counted)
    with contextlib.closing(open_store(tmp_path)) as store:
        bring(store, model(1), REF)
        bring(store, model(2), OTHER)
        choice = room.choose(store, Wanted(1, 1 << 40), 0.0)
        one, other = (victim.digest for victim in choice.plan.victims)
        store.evict_model(one)
        assert looks == 1
        monkeypatch.setattr(removal, "LOOK_LASTS_S", 0.0)
        store.evict_model(other)
        assert looks == 2


def test_the_quota_is_a_limit_of_reservations(tmp_path: Path) -> None:
    one, other = Model({"a": os.urandom(6 * MB)}, MB), Model({"b": os.urandom(6 * MB)}, MB)
    with contextlib.closing(open_store(tmp_path)) as store:
        store.limits = store.limits._replace(quota_bytes=10 * MB)
        bring(store, one, REF)
        with pytest.raises(NoSpace, match="cache_quota") as refused:
            other.add(store)
        assert (refused.value.coming_bytes, refused.value.short_bytes) == (6 * MB, 2 * MB)
        assert [info.digest for info in store.models()] == [one.digest]
        store.evict_model(one.digest)
        bring(store, other, OTHER)
