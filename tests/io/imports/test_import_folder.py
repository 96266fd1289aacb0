"""Folders of imports are deleted only while nobody has them, and as a whole."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from p2pcache.errors import Conflict
from p2pcache.io.disk.store_info import Pruned
from p2pcache.io.imports.import_folder import ImportFolder, remove_parts, sweep
from p2pcache.io.sources.base import SourceFile

FILE = SourceFile("0.bin", "m/0.bin", 200_000, "v1")
NOTHING = Pruned([], 0, [])
RUNNING, INTERRUPTED, JOURNAL, GONE = (digit * 32 for digit in "0123")


def begun(path: Path) -> ImportFolder:
    """An import that has read half of a file."""
    folder = ImportFolder(path)
    folder.part(FILE.path).write_bytes(bytes(100_000))
    folder.on_durable(FILE, 100_000)
    return folder


def interrupted(path: Path) -> Path:
    begun(path).close()
    return path


def first(act: Callable[[], object], function: Callable[..., object]) -> Callable[..., object]:
    """A function that does something else first, once."""
    acts = [act]

    def both(*args: object, **options: object) -> object:
        if acts:
            acts.pop()()
        return function(*args, **options)

    return both


def test_parts_of_an_interrupted_import_can_be_removed(tmp_path: Path) -> None:
    """Those of one that runs, and a journal alone, which saves reading and takes no space, stay."""
    running, journal = begun(tmp_path / RUNNING), begun(tmp_path / JOURNAL)
    journal.drop_parts([FILE.path])
    journal.close()
    interrupted(tmp_path / INTERRUPTED)
    planned = remove_parts(tmp_path, dry_run=True)
    assert (tmp_path / INTERRUPTED).exists()
    assert planned == remove_parts(tmp_path, dry_run=False)
    names, freed, kept, _ = planned
    assert names == [f"interrupted import {INTERRUPTED} (1 file, from m/0.bin)"]
    assert kept == []
    assert freed >= 100_000
    assert {folder.name for folder in tmp_path.iterdir()} == {RUNNING, JOURNAL}
    assert remove_parts(tmp_path / "nothing", dry_run=False) == NOTHING
    running.close()


def test_folders_that_are_not_ours_stay(tmp_path: Path) -> None:
    theirs = interrupted(tmp_path / "holiday")
    assert remove_parts(tmp_path, dry_run=False) == NOTHING
    sweep(tmp_path, now=time.time() + 8 * 86400)
    assert len(list(theirs.iterdir())) == 3


def test_an_import_that_nobody_goes_on_with_is_swept(tmp_path: Path) -> None:
    interrupted(tmp_path / INTERRUPTED)
    running = begun(tmp_path / RUNNING)
    sweep(tmp_path, now=time.time() + 8 * 86400)
    assert [folder.name for folder in tmp_path.iterdir()] == [RUNNING]
    running.close()


@pytest.mark.parametrize("how", ["sweep", "prune"])
def test_a_deletion_that_was_killed_is_ended(tmp_path: Path, how: str) -> None:
    half = interrupted(tmp_path / f"{GONE}.01234567.gone")
    (half / "lock").unlink()
    if how == "sweep":
        sweep(tmp_path)
    else:
        planned = remove_parts(tmp_path, dry_run=True)
        assert planned.removed == [f"interrupted import {GONE} (1 file, from m/0.bin)"]
        assert half.exists()
        assert remove_parts(tmp_path, dry_run=False).bytes_freed >= 100_000
    assert not half.exists()


@pytest.mark.parametrize("call", ["open", "rename"])
def test_what_the_disk_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The lock of another user's import, for example."""
    interrupted(tmp_path / INTERRUPTED)
    (tmp_path / JOURNAL).touch()
    (tmp_path / GONE).mkdir()
    plain = getattr(os, call)

    def refused(path: str, *rest: int, **more: int) -> object:
        if INTERRUPTED in str(path) and "jsonl" not in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refused)
        told = remove_parts(tmp_path, dry_run=False)
    assert told == Pruned([], 0, [f"interrupted import {INTERRUPTED} (permission denied)"])
    assert remove_parts(tmp_path, dry_run=False).bytes_freed >= 100_000


@pytest.mark.parametrize("how", ["sweep", "prune", "import"])
def test_an_import_ends_and_the_next_begins_before_its_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A lock that was opened before is that of a folder that is gone."""
    path = tmp_path / RUNNING
    old = begun(path)
    began: list[ImportFolder] = []

    def turn() -> None:
        old.discard()
        began.append(begun(path))

    monkeypatch.setattr(fcntl, "flock", first(turn, fcntl.flock))
    if how == "import":
        with pytest.raises(Conflict):
            ImportFolder(path)
    elif how == "sweep":
        sweep(tmp_path, now=time.time() + 8 * 86400)
    else:
        assert remove_parts(tmp_path, dry_run=False) == NOTHING
    assert began[0].part(FILE.path).stat().st_size == 100_000
    began[0].on_durable(FILE, 100_000)
    began[0].close()


@pytest.mark.parametrize("how", ["sweep", "prune", "discard"])
def test_an_import_that_begins_during_a_deletion_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / INTERRUPTED
    old = begun(path)
    if how != "discard":
        old.close()
    began: list[ImportFolder] = []

    def begin_in(folder: Path) -> None:
        (folder / "lock").unlink()
        began.append(ImportFolder(path))
        assert began[0].durable(FILE) == 0, "it took the dying journal for its own"
        began[0].part(FILE.path).write_bytes(bytes(100_000))

    rmtree = shutil.rmtree

    def dying(folder: Path, ignore_errors: bool = False) -> None:
        begin_in(folder)
        rmtree(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", dying)
    if how == "discard":
        old.discard()
    elif how == "sweep":
        sweep(tmp_path, now=time.time() + 8 * 86400)
    else:
        names, freed, _, _ = remove_parts(tmp_path, dry_run=False)
        assert len(names) == 1
        assert freed >= 100_000
    assert [folder.name for folder in tmp_path.iterdir()] == [INTERRUPTED]
    assert began[0].part(FILE.path).stat().st_size == 100_000
    began[0].close()
