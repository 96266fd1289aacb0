"""The frame of a cache dir: its lock, its directories, its node id."""

import contextlib
import errno
import logging
import os
import pwd
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from blake3 import blake3

from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable, UsageError
from p2pcache.ids import format_node, parse_node
from p2pcache.io.disk.disk import NOT_OFFERED, Disk, lock, read_small, translate

MACHINE_ID = Path("/etc/machine-id")
_MACHINE_ID_DIGITS = 32  # any other length: not set yet
_MACHINE_CONTEXT = (
    b"p2pcache.machine.v1 "  # machine-id(5) asks that only hashes of it leave the machine
)

BLOBS, RECORDS = "blobs", "agent.db"  # every cache has this folder and this file
_FILES = ("lock", RECORDS)  # an open cache dir always has them
_MARKS = (*_FILES, "node-id")  # any of them shows that a directory is a cache dir already
_SWEPT = ("partial", "manifests", "tmp")  # what no record names in them is removed at each start
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_PROBE = ".probe"  # no name of a blob or a namespace begins with a dot
_NO_LINKS = (errno.EPERM, *NOT_OFFERED)

_log = logging.getLogger(__name__)


class Folders(NamedTuple):
    """Open directories of a cache dir (fds)."""

    root: int
    blobs: int
    partial: int
    manifests: int
    models: int
    tmp: int


class Cache(Protocol):
    """An open cache dir (`p2pcache.io.blobs.blob_pool.BlobPool`)."""

    root: Path
    folders: Folders
    trouble: P2PCacheError | None  # why the last call that failed did so
    refused: bool  # a write, as a read-only disk does, since the last look at it


def check_owner(path: Path) -> None:
    """Refuse to leave files of this user in another user's cache: its owner couldn't link or remove them.

    Raises:
        NotAllowed: it is another user's.
    """
    owner = _owner(path)
    if owner is None:
        return
    try:
        # A nameless file tells as whom we write; that isn't always who we are (FUSE).
        descriptor = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # Shares (NFS, CIFS) have no such files: caches there aren't looked at. The lock's own error tells of other faults.
    except OSError:
        return
    try:
        ours = os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
    if ours == owner:
        return
    theirs, me = user_name(owner), user_name(ours)
    if owner == 0:  # who can use all files
        raise NotAllowed(
            f"cache directory {path} is {theirs}'s; `chown -R {me} {path}`, or choose another with --cache-dir"
        )
    raise NotAllowed(
        f"cache directory {path} is {theirs}'s, who couldn't use files that {me} leaves in it; run this as {theirs}, "
        f"`chown -R {me} {path}`, or choose another with --cache-dir"
    )


def _owner(path: Path) -> int | None:
    """The user whose cache is in a directory; None: there is none.

    The folder of the blobs says it first: the records may be removed, and made anew by anybody. Volumes are made by
    others than those who use them, so an empty directory is nobody's.
    """
    for part in (path / BLOBS, path / RECORDS):
        with contextlib.suppress(OSError):
            return part.stat().st_uid
    return None


def user_name(uid: int) -> str:
    """A user's name; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def check_ours(root: Path) -> None:
    """Refuse a directory in which an agent would remove files of others.

    Raises:
        UsageError: it isn't a cache dir, and has a folder that is named like one of ours and isn't empty.
    """
    if any((root / name).is_file() for name in _MARKS):
        return
    for name in _SWEPT:
        found = (root / name).iterdir() if (root / name).is_dir() else ()
        # A first start that was cut short leaves its probe.
        if any(one.name != _PROBE for one in found):
            raise UsageError(
                f"{root} is no cache dir, and its folder {name} holds files of others, which an agent would remove; "
                f"choose another --cache-dir, such as {root / 'p2pcache'}"
            )


def take_lock(root: Path) -> int:
    """Make this process the only one that uses the cache dir; the lock goes with the fd.

    Raises:
        UsageError: another process has it, or the file system has no locks.
    """
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        lock(fd, f"cache dir {root}", wait=False)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise UsageError(
            f"cache dir {root} is used by another agent (pid {holder}); stop it, talk to it with "
            "--agent, or choose another --cache-dir"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def open_folders(disk: Disk, root: Path) -> Folders:
    """Create missing directories of the layout, and open all."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [fd]
    try:
        # Containers read models (and blobs through their hard links); the rest is closed to others.
        for name, mode in ((BLOBS, 0o755), ("partial", 0o700), ("manifests", 0o700),
                           ("models", 0o755), ("tmp", 0o700)):  # fmt: skip
            opened.append(disk.ensure_directory(fd, name, mode))
        disk.sync(fd)
    except BaseException:
        for one in opened:
            os.close(one)
        raise
    return Folders(*opened)


def check_links(disk: Disk, folders: Folders, root: Path) -> None:
    """Refuse a cache dir whose parts can't be linked with one another, before gigabytes are fetched into it.

    Raises:
        UsageError: its file system has no hard links, or a part of it lies on another one.
    """
    try:
        os.close(disk.open_write(folders.tmp, _PROBE, create=True))
    except OSError:  # a full disk: that doesn't speak against links
        return
    try:
        for name in (BLOBS, "partial", "models"):
            _try_link(disk, folders.tmp, getattr(folders, name), root / name)
    finally:
        disk.unlink(folders.tmp, _PROBE)


def _try_link(disk: Disk, source: int, target: int, path: Path) -> None:
    try:
        disk.unlink(target, _PROBE)  # of an agent that was killed
        disk.link(source, _PROBE, target, _PROBE)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise translate(error, str(path)) from None
        if error.errno in _NO_LINKS:
            raise UsageError(
                f"{path}: its file system has no hard links ({error.strerror}), which a cache is built of; choose a "
                "cache dir on a local disk (ext4, xfs)"
            ) from None
    finally:
        disk.unlink(target, _PROBE)


def check_present(root: Path, folders: Folders) -> None:
    """Refuse to go on in a cache dir that was deleted, emptied or replaced, as a whole or in part.

    Raises:
        Unreachable: it isn't the one that this process has open.
    """
    below = zip(Folders._fields[1:], folders[1:], strict=True)
    for path, fd in ((root, folders.root), *((root / name, fd) for name, fd in below)):
        if not _is_still(path, fd):
            raise _gone(path)
    for name in _FILES:  # without the lock another agent could use the cache dir, too
        if not (root / name).exists():
            raise _gone(root / name)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False


def _gone(path: Path) -> Unreachable:
    return Unreachable(
        f"cache dir: {path} was deleted or replaced under this agent; restart it: it makes what is missing"
    )


@contextlib.contextmanager
def cache_errors(cache: Cache, what: str) -> Iterator[None]:
    """As `disk_errors`, within a cache dir: if that was deleted, the error says so.

    Raises:
        Unreachable: as `check_present`.
    """
    try:
        yield
    except OSError as error:
        cache.refused |= error.errno == errno.EROFS
        if error.errno in _GONE:
            with contextlib.suppress(OSError):
                check_present(cache.root, cache.folders)
        raise _noted(cache, translate(error, what, cache.folders.root)) from error


def _noted(cache: Cache, error: P2PCacheError) -> P2PCacheError:
    # A copy of the error: the frames of the original have files open.
    cache.trouble = type(error)(str(error))
    return error


def close_all(folders: Folders) -> None:
    """Close the directories."""
    for fd in folders:
        os.close(fd)


def node_id(disk: Disk, root: int, machine_id: Path = MACHINE_ID) -> int:
    """This cache's node id, drawn once. A copy of the cache draws another: ids of members are unique.

    Args:
        disk: how to touch the disk.
        root: the open cache dir.
        machine_id: file with this machine's id, if it has one.
    """
    data = read_small(root, "node-id", 64)
    try:
        node = parse_node((data or b"").decode("ascii").strip())
    except (UsageError, UnicodeDecodeError):
        node = 0
    home = _Home.read(root)
    if node and home is not None and (why := home.difference(_Home.now(root, machine_id))):
        fresh = _draw()
        _log.warning(
            "this cache was cloned (%s): it is node %s from now on, as %s may be another node",
            why, format_node(fresh), format_node(node),
        )  # fmt: skip
        # A full disk must not keep this node out. Without the note it draws another id at the next start.
        with _despite_a_full_disk():
            _write_id(disk, root, fresh)
        node = fresh
    elif not node:
        node = _draw()
        _write_id(disk, root, node)
    here = _Home.now(root, machine_id)
    if here != home:
        with _despite_a_full_disk():
            disk.replace_file(root, "node-home", f"{here.inode} {here.machine}\n".encode())
    return node


class _Home(NamedTuple):
    """Where a node id was drawn.

    A copy of the cache has another inode; a renamed or remounted directory has the same. A disk that was
    copied as a whole has the same inode on another machine.
    """

    inode: int
    machine: str  # hash of its id; empty: it has none, as most containers

    @classmethod
    def now(cls, root: int, machine_id: Path) -> Self:
        """This place."""
        inode = os.stat("node-id", dir_fd=root, follow_symlinks=False).st_ino
        try:
            text = machine_id.read_bytes()[:64].strip()
        except OSError:
            text = b""
        known = len(text) == _MACHINE_ID_DIGITS
        return cls(inode, blake3(_MACHINE_CONTEXT + text).hexdigest()[:16] if known else "")

    @classmethod
    def read(cls, root: int) -> Self | None:
        """The recorded place; None: not recorded (by an older release), or unreadable."""
        inode, _, machine = (read_small(root, "node-home", 64) or b"").strip().partition(b" ")
        return cls(int(inode), machine.decode("ascii", "replace")) if inode.isdigit() else None

    def difference(self, here: Self) -> str:
        """How the place `here` differs, for people; empty: it is this one."""
        if here.inode != self.inode:
            return "its files are copies"
        if here.machine and self.machine and here.machine != self.machine:
            return "it was made on another machine"
        return ""


def _draw() -> int:
    return secrets.randbits(63) or 1


def _write_id(disk: Disk, root: int, node: int) -> None:
    disk.replace_file(root, "node-id", f"{format_node(node)}\n".encode())


@contextlib.contextmanager
def _despite_a_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _log.warning("can't note this cache's node id: %s", error.strerror)
