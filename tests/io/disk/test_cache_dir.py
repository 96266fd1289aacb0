"""A cache keeps its node id for life, a copy draws another; unfit file systems and missing parts are named."""

import contextlib
import errno
import logging
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable, UsageError
from p2pcache.io.blobs import reservation
from p2pcache.io.disk.cache_dir import BLOBS, cache_errors, check_owner, node_id, user_name
from p2pcache.io.disk.disk import Disk
from p2pcache.io.models.store import Store
from tests.io.disk.owner_kit import give_away, needs_root
from tests.io.models.store_kit import small_file_system

MACHINE, OTHER = "0123456789abcdef0123456789abcdef\n", "fedcba9876543210fedcba9876543210\n"


def drawn(cache: Path, machine: Path) -> int:
    fd = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return node_id(Disk(), fd, machine)
    finally:
        os.close(fd)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "machine-id"
    path.write_text(MACHINE)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


def test_it_is_kept(cache: Path, machine: Path) -> None:
    first = drawn(cache, machine)
    assert drawn(cache, machine) == first
    moved = cache.rename(cache.with_name("elsewhere"))
    assert drawn(moved, machine) == first


def test_a_copy_draws_another(cache: Path, machine: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = drawn(cache, machine)
    copy = Path(shutil.copytree(cache, cache.with_name("copy")))
    with caplog.at_level(logging.WARNING):
        second = drawn(copy, machine)
    assert second != first
    assert "cloned" in caplog.text
    assert drawn(copy, machine) == second
    assert drawn(cache, machine) == first


def test_a_disk_that_was_copied_to_another_machine_draws_another(
    cache: Path, machine: Path
) -> None:
    first = drawn(cache, machine)
    machine.write_text(OTHER)
    second = drawn(cache, machine)
    assert second != first
    assert drawn(cache, machine) == second


@pytest.mark.parametrize("text", ["", "uninitialized\n", None])
def test_a_machine_without_an_id_says_nothing(cache: Path, machine: Path, text: str | None) -> None:
    first = drawn(cache, machine)
    machine.unlink()
    if text is not None:
        machine.write_text(text)
    assert drawn(cache, machine) == first
    machine.write_text(MACHINE)
    assert drawn(cache, machine) == first


@pytest.mark.parametrize("note", [b"", b"nonsense\n", b"\xff\xfe", b"12x 3\n", None])
def test_the_id_of_an_older_release_is_kept(cache: Path, machine: Path, note: bytes | None) -> None:
    (cache / "node-id").write_text("00000000000000ff\n")
    if note is not None:
        (cache / "node-home").write_bytes(note)
    assert drawn(cache, machine) == drawn(cache, machine) == 255


def test_a_full_disk_keeps_no_node_out(cache: Path, machine: Path) -> None:
    class Full(Disk):
        def replace_file(self, *_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

    first = drawn(cache, machine)
    copy = shutil.copytree(cache, cache.with_name("copy"))
    fd = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
    assert node_id(Full(), fd, machine) != first
    os.close(fd)


NOT_OFFERED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@pytest.mark.parametrize("number", NOT_OFFERED)
def test_a_file_system_without_locks_is_refused_with_a_remedy(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_fd: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UsageError, match=r"no file locks .*; use a local disk, or mount"):
        Store.open(cache)


class _Unlinkable(Disk):
    def __init__(self, number: int) -> None:
        self.number = number

    def link(self, source: int, old: str, target: int, new: str) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [*NOT_OFFERED, errno.EPERM])
def test_a_file_system_without_hard_links_is_refused_with_a_remedy(
    cache: Path, number: int
) -> None:
    with pytest.raises(UsageError, match=r"no hard links .*; choose a cache dir on a local disk"):
        Store.open(cache, disk=_Unlinkable(number))


def test_a_full_disk_is_not_taken_for_one_without_hard_links(cache: Path) -> None:
    Store.open(cache, disk=_Unlinkable(errno.ENOSPC)).close()


@pytest.mark.parametrize("name", ["blobs", "partial", "manifests", "models", "tmp", "lock", "agent.db"])  # fmt: skip
def test_a_part_that_was_removed_under_the_process_is_named(cache: Path, name: str) -> None:
    with contextlib.closing(Store.open(cache)) as store:
        gone = cache / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        with pytest.raises(Unreachable, match=rf"{name} was deleted .* restart it"):
            store.usage()


def test_a_disk_that_refused_a_write_is_read_only_until_it_takes_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fault of the same disk hid it, and after any missing right each look made an inode."""
    tried: list[bool] = []
    answers = [True, True, False]

    def look(_: Path, *, tries: bool) -> bool:
        tried.append(tries)
        return tries and answers.pop(0)

    monkeypatch.setattr(reservation, "is_read_only", look)
    with contextlib.closing(Store.open(cache)) as store:
        for number, says in [
            (errno.EACCES, False), (errno.EROFS, True), (errno.EIO, True), (errno.EACCES, False),
            (errno.EACCES, False),
        ]:  # fmt: skip
            with pytest.raises(P2PCacheError), cache_errors(store._blobs, "x"):
                raise OSError(number, os.strerror(number))
            assert store.usage().read_only is says
    assert tried == [False, True, True, True, False]


@pytest.mark.parametrize("name", ["blobs", "models"])
def test_a_mount_below_the_cache_dir_is_refused_at_the_start(cache: Path, name: str) -> None:
    with (
        small_file_system(cache / name, 20 << 20),
        pytest.raises(UsageError, match=rf"{name}: .*; .* mount nothing below it"),
    ):
        Store.open(cache)


def test_the_look_for_hard_links_leaves_nothing_behind(cache: Path) -> None:
    Store.open(cache).close()
    (cache / "models/.probe").touch()  # an agent was killed while it looked
    Store.open(cache).close()
    assert not [path for path in cache.rglob("*") if "probe" in path.name]


@pytest.mark.parametrize("name", ["tmp", "partial", "manifests"])
def test_a_directory_of_others_is_refused_and_left_alone(cache: Path, name: str) -> None:
    """With the root of a disk as cache dir, everything in its folder tmp was removed."""
    theirs = cache / name / "job.part"
    theirs.mkdir(parents=True)
    (theirs / "data").write_text("of somebody else")
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{name} holds files of others"):
            Store.open(cache)
    assert (theirs / "data").read_text() == "of somebody else"
    assert [path.name for path in cache.iterdir()] == [name]


def test_empty_folders_of_the_layout_are_taken(cache: Path) -> None:
    for name in ("tmp", "models", "blobs"):  # as a container's bind mount makes them
        (cache / name).mkdir()
    Store.open(cache).close()


@pytest.mark.parametrize("kept", ["lock", "agent.db", "node-id"])
def test_a_cache_that_lost_parts_of_its_frame_is_still_one(cache: Path, kept: str) -> None:
    Store.open(cache).close()
    for path in cache.iterdir():
        if path.is_file() and path.name != kept:
            path.unlink()
    (cache / "tmp/left over").write_text("x")
    Store.open(cache).close()
    assert list((cache / "tmp").iterdir()) == []


@needs_root
def test_a_cache_of_another_user_is_not_opened(cache: Path) -> None:
    """An agent that was run as root left files in it, with which its owner's agent couldn't start again."""
    Store.open(cache, min_free_bytes=0).close()
    give_away(cache)
    (cache / "lock").unlink()
    with pytest.raises(NotAllowed, match="4321's, who couldn't use files that root leaves in it"):
        Store.open(cache, min_free_bytes=0)
    assert not (cache / "lock").exists(), "nothing of ours is in it"


@needs_root
def test_what_root_left_in_a_cache_is_said_to_be_roots() -> None:
    # Others can't enter `tmp_path`.
    with TemporaryDirectory() as name:
        cache = Path(name)
        cache.chmod(0o777)
        (cache / BLOBS).mkdir()
        os.seteuid(4321)
        try:
            with pytest.raises(NotAllowed, match=f"{cache} is root's; `chown -R 4321 {cache}`"):
                check_owner(cache)
        finally:
            os.seteuid(0)


def test_a_directory_of_root_is_no_cache_of_roots(tmp_path: Path) -> None:
    check_owner(tmp_path)
    check_owner(tmp_path / "none")


def test_a_user_without_a_name_is_a_number() -> None:
    assert user_name(54321) == "54321"
    assert user_name(0) == "root"
