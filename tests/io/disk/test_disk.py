"""The seam to the disk: errors in our words, names that can't escape."""

import errno
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from p2pcache.errors import NoSpace, NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.io.disk import disk as disk_module
from p2pcache.io.disk.disk import TRIAL_BYTES, Disk, disk_errors, read_small, translate


def test_a_disk_that_became_read_only_is_no_matter_of_owner_and_mode() -> None:
    said = str(translate(OSError(errno.EROFS, os.strerror(errno.EROFS)), "cache dir /c"))
    assert "/c: Read-only file system; mount it writable" in said
    assert "owner" not in said


def test_a_disk_that_calls_itself_writable_and_refuses_writes_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Linux 6.15 on ext4 remounts no more when it finds itself faulty: `statvfs` tells nothing."""
    assert not disk_module.is_read_only(tmp_path)
    assert not list(tmp_path.iterdir()), "the look leaves nothing"
    assert not disk_module.is_read_only(tmp_path / "gone")

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    assert disk_module.is_read_only(tmp_path)
    assert not disk_module.is_read_only(tmp_path, tries=False)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EACCES, NotAllowed),
     (errno.EROFS, NotAllowed), (errno.ELOOP, NotAllowed), (errno.ENOENT, NotFound),
     (errno.EIO, NoSpace), (errno.EINVAL, UsageError), (errno.EBUSY, UsageError), (errno.EEXIST, UsageError),
     (errno.ESTALE, NoSpace), (errno.ENOTCONN, NoSpace), (errno.ETIMEDOUT, NoSpace), (errno.ENOMEM, NotAllowed),
     (errno.EBADF, P2PCacheError)],
)  # fmt: skip
def test_errors_are_translated_with_the_path(number: int, kind: type[P2PCacheError]) -> None:
    with pytest.raises(P2PCacheError) as raised, disk_errors("/cache/x"):
        raise OSError(number, os.strerror(number))
    assert type(raised.value) is kind
    limit = number == errno.ENOMEM  # of the machine, wherever it shows
    assert ("/cache/x: " in str(raised.value)) is not limit
    assert "; " in str(raised.value) or kind in (NotFound, P2PCacheError), "what to do"


def test_directories_and_files_are_never_reached_through_links(tmp_path: Path) -> None:
    disk = Disk()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"keep")
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "name").symlink_to("real/file")
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        reaches: list[Callable[[], int]] = [
            lambda: disk.open_directory(root, "alias"),
            lambda: disk.ensure_directory(root, "alias", 0o755),
            lambda: disk.open_read(root, "name"),
            lambda: disk.open_write(root, "name", create=True),
        ]
        for reach in reaches:
            with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
                reach()
        with pytest.raises(OSError, match="not a regular file"):
            disk.open_read(root, "real")
        assert read_small(root, "name", 100) is None
        disk.remove_tree(root, "alias")
        disk.remove_tree(root, "name")
        disk.remove_tree(root, "missing")
        assert (tmp_path / "real/file").read_bytes() == b"keep"
        disk.remove_tree(root, "real")
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(root)


def test_small_files_have_a_limit(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    root = os.open(tmp_path, os.O_RDONLY)
    assert read_small(root, "small", 5) == b"12345"
    assert read_small(root, "small", 4) is None
    assert read_small(root, "pipe", 5) is None
    assert read_small(root, "missing", 5) is None
    os.close(root)


@pytest.mark.parametrize(("limit_s", "whole"), [(math.inf, True), (-1.0, False)])
def test_space_is_taken_at_once_unless_that_costs_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, *, whole: bool
) -> None:
    monkeypatch.setattr(disk_module, "TRIAL_S", limit_s)
    size = TRIAL_BYTES + 4096
    with (tmp_path / "file").open("wb") as file:
        assert Disk().allocate(file.fileno(), size) is whole
        found = os.fstat(file.fileno())
    assert found.st_size == size
    assert (found.st_blocks * 512 >= size) is whole


def test_pages_in_memory_are_not_made_before_they_are_written() -> None:
    if "/dev/shm tmpfs" not in Path("/proc/mounts").read_text():
        pytest.skip("needs a file system in memory")
    size = 4 * TRIAL_BYTES
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        assert not Disk().allocate(file.fileno(), size)
        found = os.fstat(file.fileno())
    assert found.st_size == size
    assert found.st_blocks * 512 <= TRIAL_BYTES
