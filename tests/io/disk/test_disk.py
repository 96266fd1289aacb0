"""The seam to the disk: errors in our words, odd file systems, names that can't escape."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from p2pcache.errors import NoSpace, NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.io.blobs import bitmap
from p2pcache.io.disk.disk import Disk, disk_errors, read_small, translate
from tests.io.models.store_kit import REF, model, open_store


def test_a_disk_that_became_read_only_is_no_matter_of_owner_and_mode() -> None:
    said = str(translate(OSError(errno.EROFS, os.strerror(errno.EROFS)), "cache dir /c"))
    assert "/c: Read-only file system; mount it writable" in said
    assert "owner" not in said


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EACCES, NotAllowed),
     (errno.EROFS, NotAllowed), (errno.ELOOP, NotAllowed), (errno.ENOENT, NotFound),
     (errno.EIO, NoSpace), (errno.EINVAL, UsageError), (errno.EBUSY, P2PCacheError)],
)  # fmt: skip
def test_errors_are_translated_with_the_path(number: int, kind: type[P2PCacheError]) -> None:
    with pytest.raises(P2PCacheError, match="/cache/x: ") as raised, disk_errors("/cache/x"):
        raise OSError(number, os.strerror(number))
    assert type(raised.value) is kind


class FewLinks(Disk):
    """A file system on which no file has room for another link."""

    def link(self, source: int, old: str, target: int, new: str) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))


def test_a_blob_with_too_many_links_is_copied_into_the_tree(tmp_path: Path) -> None:
    wanted = model()
    store = open_store(tmp_path, FewLinks())
    here = wanted.add(store)
    wanted.fill(here)
    tree = tmp_path / "cache/models" / here.publish(REF, 1)
    wanted.assert_tree(tree)
    assert (tree / "config.json").stat().st_mode & 0o777 == 0o444
    store.close()


class NoLinks(Disk):
    def link(self, source: int, old: str, target: int, new: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_without_hard_links_there_is_a_clear_error_and_no_half_tree(tmp_path: Path) -> None:
    wanted = model()
    store = open_store(tmp_path, NoLinks())
    here = wanted.add(store)
    wanted.fill(here)
    with pytest.raises(NotAllowed, match="not permitted"):
        here.publish(REF, 1)
    assert not (tmp_path / "cache/models/team").exists()
    store.close()


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


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000, 1_000_000])
def test_bitmaps_round_trip(count: int) -> None:
    bits = bytearray(count)
    bits[::3] = b"\x01" * len(bits[::3])
    data = bitmap.encode(bits, 77)
    assert bitmap.decode(data) == (bits, 77)
    assert len(data) <= bitmap.MAX_BITMAP_BYTES


def test_a_bitmap_with_one_wrong_bit_is_no_bitmap() -> None:
    data = bitmap.encode(bytearray([1, 0, 1] * 7), 5)
    for position in range(len(data) * 8):
        torn = bytearray(data)
        torn[position // 8] ^= 1 << position % 8
        assert bitmap.decode(bytes(torn)) is None
    assert all(bitmap.decode(data[:n]) is None for n in range(len(data)))
    assert bitmap.decode(None) is None
