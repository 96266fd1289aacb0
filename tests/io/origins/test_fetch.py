"""Leased reads into a real cache: what comes out of each thing that can be wrong."""

import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import NoSpace
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.fetch import fetch_run, fetch_runs
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.repo import OriginRepo, blob_key
from p2pcache.io.origins.retry import RetryPolicy
from tests.io.models.store_kit import Model, held_deleted, open_store


class Counting(FileOrigin):
    """Keeps the ranges that were asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ranges: list[tuple[str, int, int]] = []

    def open(self, key: str, start: int, length: int) -> Body:
        self.ranges.append((key, start, length))
        return super().open(key, start, length)


class World:
    """A model at an origin, and an empty cache."""

    def __init__(self, tmp_path: Path, model: Model) -> None:
        folder = tmp_path / "origin"
        folder.mkdir()
        self.model = model
        self.layout = model.layout
        self.origin = Counting(folder.as_uri())
        self.repo = OriginRepo(Retrying(self.origin, RetryPolicy(0)))
        for path, data in model.files.items():
            blob = self.layout.blobs[self.layout.blob_of_file[path]]
            self.origin.put(blob_key(blob.id), data)
        self.store = open_store(tmp_path / "cache")
        self.target: ModelStore = model.add(self.store)
        self.read = 0

    def fetch(self, run: int) -> Outcome:
        return fetch_run(self.repo, self.layout, self.target, run, on_bytes=self.count)

    def count(self, size: int) -> None:
        self.read += size

    def path(self, blob: int) -> Path:
        return self.origin._folder.root / blob_key(self.layout.blobs[blob].id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One file of ten chunks (a run each), one small file."""
    data = os.urandom(10 * 262_144)
    made = World(tmp_path, Model({"big": data, "small": b"hello"}))
    yield made
    made.store.close()


def test_all_runs(world: World) -> None:
    assert all(world.fetch(run) is Outcome.DONE for run in range(world.layout.run_count))
    assert world.target.complete
    world.model.assert_proved(world.target)
    assert world.read == world.layout.total_bytes
    assert world.fetch(0) is Outcome.DONE  # nothing is missing: nothing is read
    assert world.read == world.layout.total_bytes


def test_small_files_of_one_run(tmp_path: Path) -> None:
    files = {f"f{i}": os.urandom(1000 + i) for i in range(20)} | {"empty": b""}
    world = World(tmp_path, Model(files))
    assert world.layout.run_count == 1
    assert world.fetch(0) is Outcome.DONE
    assert world.target.complete
    assert len(world.origin.ranges) == 20
    world.store.close()


def test_one_get_per_contiguous_piece(tmp_path: Path) -> None:
    world = World(tmp_path, Model({"f": os.urandom(10_000)}, chunk_bytes=1000))
    assert world.layout.run_count == 1
    world.model.fill(world.target, [4])
    assert world.fetch(0) is Outcome.DONE
    assert [(start, length) for _, start, length in world.origin.ranges] == [
        (0, 4000),
        (5000, 5000),
    ]
    world.store.close()


def test_corrupt_object_is_read_twice_and_no_more(world: World) -> None:
    damaged = bytearray(world.path(0).read_bytes())
    damaged[3 * 262_144 + 7] ^= 1
    world.path(0).write_bytes(damaged)
    assert world.fetch(3) is Outcome.MISMATCH
    assert world.read == 2 * 262_144
    assert not world.target.has_chunk(3)
    assert world.fetch(4) is Outcome.DONE


def test_damage_on_the_way_heals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = world.repo.open_blob
    calls = 0

    def shifted(blob: str, start: int, length: int, *rest: object) -> Body:
        nonlocal calls
        calls += 1
        return plain(blob, start + (calls == 1), length)

    monkeypatch.setattr(world.repo, "open_blob", shifted)
    assert world.fetch(2) is Outcome.DONE
    assert calls == 2
    world.model.assert_proved(world.target)


@pytest.mark.parametrize("gone", [True, False])
def test_object_missing_or_too_short(world: World, gone: bool) -> None:
    if gone:
        world.path(0).unlink()
    else:
        os.truncate(world.path(0), 5 * 262_144 + 100)
    assert world.fetch(5) is Outcome.MISMATCH
    assert world.read == 0


def test_unavailable(world: World) -> None:
    root = world.origin._folder.root
    root.rename(root.with_name("away"))
    assert world.fetch(0) is Outcome.UNAVAILABLE


def test_cancelled(world: World) -> None:
    outcome = fetch_run(
        world.repo, world.layout, world.target, 0, on_bytes=world.count, cancelled=lambda: True
    )
    assert outcome is Outcome.CANCELLED
    assert world.read == 0
    assert world.fetch(0) is Outcome.DONE


def test_a_read_that_failed_keeps_nothing_open(
    world: World, clean_env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """botocore's errors refer to themselves: what their frames hold lives until garbage is collected."""
    with socket.socket() as nobody:  # bound, and deaf: whoever connects is refused
        nobody.bind(("127.0.0.1", 0))
        clean_env.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        clean_env.setenv("AWS_ACCESS_KEY_ID", "who")
        clean_env.setenv("AWS_SECRET_ACCESS_KEY", "ever")
        world.repo = OriginRepo(open_origin("s3://bucket", OriginSettings(retry_for_s=0.3)))
        gc.disable()
        try:
            assert world.fetch(0) is Outcome.UNAVAILABLE
            world.store.remove_model(world.model.digest)
            assert held_deleted(tmp_path) == []
        finally:
            gc.enable()


def test_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise NoSpace("no space left")

    monkeypatch.setattr(type(world.target._writers.blobs.disk), "write_at", full)
    assert world.fetch(0) is Outcome.FAILED
    assert not world.target.has_chunk(0)


def test_limiter_is_asked_for_each_slice(world: World) -> None:
    taken: list[int] = []

    class Limiter:
        def take(self, nbytes: int, /) -> None:
            taken.append(nbytes)

    fetch_run(world.repo, world.layout, world.target, 0, on_bytes=world.count, limiter=Limiter())
    assert sum(taken) == world.layout.run_bytes[0]


def fetch_all(
    world: World, runs: list[int], cancelled: Callable[[int], bool] = lambda _run: False
) -> list[tuple[int, Outcome]]:
    ended: list[tuple[int, Outcome]] = []
    fetch_runs(
        world.repo, world.layout, world.target, runs, on_bytes=world.count, cancelled=cancelled,
        on_ended=lambda run, outcome: ended.append((run, outcome)), on_wrong=lambda *_: None,
    )  # fmt: skip
    return ended


def test_runs_side_by_side_share_a_request(world: World) -> None:
    runs = list(range(world.layout.run_count))
    assert fetch_all(world, runs) == [(run, Outcome.DONE) for run in runs]
    assert [length for _, _, length in world.origin.ranges] == [10 * 262_144, 5]
    assert world.read == world.layout.total_bytes
    world.model.assert_proved(world.target)


def test_each_run_is_had_before_the_next_ends(world: World) -> None:
    had: list[int] = []
    fetch_runs(
        world.repo, world.layout, world.target, [2, 3, 4], cancelled=lambda _run: False,
        on_ended=lambda *_: had.append(world.target.have_runs()), on_wrong=lambda *_: None,
    )  # fmt: skip
    assert had == [0b100, 0b1100, 0b11100]


def test_a_cancelled_run_keeps_what_came_before_and_what_comes_after(world: World) -> None:
    ended = fetch_all(world, [0, 1, 2], lambda run: run == 1)
    assert ended == [(0, Outcome.DONE), (1, Outcome.CANCELLED), (2, Outcome.DONE)]
    assert world.target.have_runs() == 0b101
    assert world.read == 2 * 262_144


def test_a_corrupt_run_does_not_stop_those_after_it(world: World) -> None:
    damaged = bytearray(world.path(0).read_bytes())
    damaged[3 * 262_144 + 7] ^= 1
    world.path(0).write_bytes(damaged)
    assert fetch_all(world, [2, 3, 4]) == [
        (2, Outcome.DONE),
        (3, Outcome.MISMATCH),
        (4, Outcome.DONE),
    ]
    assert world.read == 4 * 262_144, "only the damaged run is read again"


def test_a_storage_that_fails_ends_all_runs_of_a_request_at_once(world: World) -> None:
    root = world.origin._folder.root
    root.rename(root.with_name("away"))
    assert fetch_all(world, [0, 1, 2]) == [(run, Outcome.UNAVAILABLE) for run in (0, 1, 2)]
