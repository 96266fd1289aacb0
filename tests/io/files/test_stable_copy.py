"""A copy of a directory that somebody writes to."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from p2pcache.errors import NotFound, TimedOut, UsageError
from p2pcache.io.files import stable_copy


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable_copy, "SETTLE_S", 0.1)


class Writer(threading.Thread):
    """Writes again and again; whoever copies finds something new after each of its pauses."""

    def __init__(self, write: Callable[[int], None], rounds: int) -> None:
        super().__init__()
        self.written = 0
        self.rounds = rounds
        self._write = write

    def run(self) -> None:
        while self.written < self.rounds:
            self._write(self.written)
            self.written += 1
            time.sleep(0.02)

    def pause(self, seconds: float) -> None:
        before = self.written
        time.sleep(seconds)
        while self.written == before < self.rounds:
            time.sleep(0.001)


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Writer]]:
    """Starts one; it ends with the test."""
    started = []

    def start(write: Callable[[int], None], rounds: int) -> Writer:
        writer = Writer(write, rounds)
        clock = SimpleNamespace(
            sleep=writer.pause, monotonic=time.monotonic, monotonic_ns=time.monotonic_ns
        )
        monkeypatch.setattr(stable_copy, "time", clock)
        writer.start()
        started.append(writer)
        return writer

    yield start
    for writer in started:
        writer.rounds = 0
        writer.join()


def copy(source: Path, target: Path, patience_s: float = 60) -> dict[str, int]:
    target.mkdir(exist_ok=True)
    skip = lambda name: name.endswith(".lock")  # noqa: E731
    return stable_copy.steady_copy(source, target, skip=skip, patience_s=patience_s)


def make(folder: Path) -> Path:
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "a.so").write_bytes(b"a" * 1000)
    (folder / "sub" / "b.py").write_bytes(b"")
    (folder / "sub" / "c.lock").write_bytes(b"")
    (folder / "link").symlink_to("a.so")
    os.utime(folder / "a.so", ns=(5, 1_700_000_000_000_000_007))
    return folder


def test_files_and_inner_links_with_their_times(tmp_path: Path) -> None:
    times = copy(make(tmp_path / "s"), tmp_path / "t")
    assert set(times) == {"a.so", "sub/b.py", "link"}
    assert times["a.so"] == 1_700_000_000_000_000_007
    assert (tmp_path / "t" / "link").read_bytes() == b"a" * 1000
    assert not (tmp_path / "t" / "link").is_symlink()
    assert not (tmp_path / "t" / "sub" / "empty").exists()


def test_it_waits_for_a_writer_to_end(tmp_path: Path, writing: Callable[..., Writer]) -> None:
    source = make(tmp_path / "s")

    def write(number: int) -> None:
        (source / "new.tmp").write_bytes(bytes([number]) * 5000)
        (source / "new.tmp").replace(source / "a.so")
        (source / f"more{number}").write_bytes(b"x")

    writing(write, rounds=12)
    times = copy(source, tmp_path / "t")
    assert (tmp_path / "t" / "a.so").read_bytes() == bytes([11]) * 5000
    assert {f"more{n}" for n in range(12)} <= set(times)
    assert "new.tmp" not in {path.name for path in (tmp_path / "t").iterdir()}


def test_a_writer_that_never_ends(tmp_path: Path, writing: Callable[..., Writer]) -> None:
    source = make(tmp_path / "s")

    def write(_: int) -> None:
        with (source / "a.so").open("ab") as file:
            file.write(b"x")

    writing(write, rounds=1_000_000)
    with pytest.raises(TimedOut, match="idle"):
        copy(source, tmp_path / "t", patience_s=0.5)


def test_directories_that_cant_be_a_cache(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        copy(tmp_path / "missing", tmp_path / "t")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no files"):
        copy(tmp_path / "empty", tmp_path / "t")
    secret = tmp_path / "secret"
    secret.write_text("key")
    source = make(tmp_path / "s")
    (source / "out").symlink_to(secret)
    with pytest.raises(UsageError, match="leads out"):
        copy(source, tmp_path / "t")
    (source / "out").unlink()
    os.mkfifo(source / "pipe")
    with pytest.raises(UsageError, match="neither"):
        copy(source, tmp_path / "t")
