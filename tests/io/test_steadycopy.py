"""A copy of a directory that somebody writes to."""

import os
import threading
import time
from pathlib import Path

import pytest

from p2pcache.errors import NotFound, TimedOut, UsageError
from p2pcache.io import steadycopy


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadycopy, "SETTLE_S", 0.1)


def copy(source: Path, target: Path, patience_s: float = 5) -> dict[str, int]:
    target.mkdir(exist_ok=True)
    skip = lambda name: name.endswith(".lock")  # noqa: E731
    return steadycopy.steady_copy(source, target, skip=skip, patience_s=patience_s)


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


def test_it_waits_for_a_writer_to_end(tmp_path: Path) -> None:
    source = make(tmp_path / "s")

    def write() -> None:
        for round_ in range(12):
            (source / "new.tmp").write_bytes(bytes([round_]) * 5000)
            (source / "new.tmp").replace(source / "a.so")
            (source / f"more{round_}").write_bytes(b"x")
            time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.02)
    times = copy(source, tmp_path / "t")
    writer.join()
    assert (tmp_path / "t" / "a.so").read_bytes() == bytes([11]) * 5000
    assert {f"more{n}" for n in range(12)} <= set(times)
    assert "new.tmp" not in {path.name for path in (tmp_path / "t").iterdir()}


def test_a_writer_that_never_ends(tmp_path: Path) -> None:
    source, stop = make(tmp_path / "s"), threading.Event()

    def write() -> None:
        while not stop.wait(0.01):
            with (source / "a.so").open("ab") as file:
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(TimedOut, match="idle"):
            copy(source, tmp_path / "t", patience_s=0.5)
    finally:
        stop.set()
        writer.join()


def test_what_can_not_be_a_cache(tmp_path: Path) -> None:
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
