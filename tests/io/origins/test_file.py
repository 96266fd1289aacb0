"""What is special about directories: links, fifos, leftovers, full and vanished mounts."""

import errno
import io
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import NoSpace, NotAllowed, NotFound, OriginUnavailable, UsageError
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.base import ABSENT

ONCE = OriginSettings(retry_for_s=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def files(root: Path) -> Retrying:
    return open_origin(root.as_uri(), ONCE)


def test_urls(root: Path) -> None:
    spaced = root / "a b%c"
    spaced.mkdir()
    open_origin(spaced.as_uri(), ONCE).put("x", b"1")
    assert (spaced / "x").read_bytes() == b"1"
    assert open_origin(f"file://localhost{root}/", ONCE).url == f"file://{root}"
    for url in ("file://host/dir", "file://relative", "file:///a%00b", "file:", "file://"):
        with pytest.raises(UsageError):
            open_origin(url, ONCE)


def test_unknown_scheme_lists_the_known_ones() -> None:
    for url in ("gs://bucket", "/mnt/models", "", "S3://bucket"):
        with pytest.raises(UsageError, match=r"s3://.*file://"):
            open_origin(url)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        open_origin("https://me:hush@host/x")
    assert "hush" not in str(caught.value)


def test_directory_must_exist(root: Path) -> None:
    with pytest.raises(NotFound, match="mkdir"):
        open_origin(f"file://{root}/missing", ONCE)


def test_a_directory_that_cannot_be_looked_at_is_no_bug(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.is_dir` says no for a missing directory, and raises for all else."""
    with pytest.raises(UsageError, match="name too long"):
        open_origin(f"file:///{'n' * 300}")
    for number, kind in ((errno.EACCES, NotAllowed), (errno.ENOTCONN, OriginUnavailable)):

        def look(path: Path, number: int = number) -> bool:
            raise OSError(number, os.strerror(number), str(path))

        monkeypatch.setattr(Path, "is_dir", look)
        with pytest.raises(kind, match=os.strerror(number)):
            open_origin(root.as_uri())


def test_vanished_mount_is_not_an_empty_origin(root: Path, files: Retrying) -> None:
    root.rename(root.with_name("elsewhere"))
    for action in (
        lambda: files.stat("x"),
        lambda: list(files.list("")),
        lambda: files.put("x", b""),
    ):
        with pytest.raises(OriginUnavailable, match="mounted"):
            action()


def test_links_lead_nowhere(root: Path, files: Retrying, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for key in ("file", "dir/secret"):
        with pytest.raises((NotAllowed, NotFound)):
            files.get(key, limit=100)
    with pytest.raises((NotAllowed, NotFound)):
        files.put("dir/new", b"x")
    assert list(files.list("")) == []
    assert [p.name for p in outside.iterdir()] == ["secret"]
    files.put("file", b"mine")  # replaces the link itself
    assert (outside / "secret").read_bytes() == b"secret"
    assert files.get("file", limit=10)[0] == b"mine"


def test_fifo_and_directory_are_no_objects(root: Path, files: Retrying) -> None:
    os.mkfifo(root / "fifo")
    (root / "dir").mkdir()
    for key in ("fifo", "dir"):
        assert files.stat(key) is None
        with pytest.raises(NotFound):
            files.get(key, limit=10)
    assert list(files.list("")) == []


def test_leftovers_of_a_crash(root: Path) -> None:
    staging = root / ".staging"
    staging.mkdir()
    old, young = staging / "old", staging / "young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    week = time.time() - 8 * 86400
    os.utime(old, (week, week))
    files = open_origin(root.as_uri(), ONCE)
    files.put("x", b"1", expect=ABSENT)
    assert [p.name for p in staging.iterdir()] == ["young"]
    assert [i.key for i in files.list("")] == ["x"]


def test_a_replaced_file_is_read_to_its_end(files: Retrying) -> None:
    files.put("x", b"old" * 1000)
    buffer = memoryview(bytearray(1000))
    with files.open("x", 0, 3000) as body:
        assert body.readinto(buffer[:1]) == 1
        files.put("x", b"new")
        rest = b""
        while count := body.readinto(buffer):
            rest += buffer[:count]
    assert b"o" + rest == b"old" * 1000


def test_written_files_are_readable_by_others(root: Path, files: Retrying) -> None:
    files.put("a/b", b"x")
    files.put_file("a/c", io.BytesIO(b"x"), 1)
    assert all((root / k).stat().st_mode & 0o444 == 0o444 for k in ("a/b", "a/c"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_full_disk(small_disk: Path) -> None:
    files = open_origin(small_disk.as_uri(), ONCE)
    with pytest.raises(NoSpace, match="full"):
        files.put("x", bytes(2 << 20))
    with pytest.raises(NoSpace, match="full"):
        files.put_file("y", io.BytesIO(bytes(2 << 20)), 2 << 20)
    files.put("z", b"fits")
    assert [i.key for i in files.list("")] == ["z"]


def test_read_only_mount(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(NotAllowed, match="mount"):
        open_origin(small_disk.as_uri(), ONCE).put("x", b"")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_share_without_locks_can_be_read_and_a_write_says_what_it_lacks(
    files: Retrying, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    files.put("a", b"1", expect=ABSENT)

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UsageError, match=r"no file locks .*mount the share with locks"):
        files.put("b", b"2", expect=ABSENT)
    assert [found.key for found in files.list("")] == ["a"]
