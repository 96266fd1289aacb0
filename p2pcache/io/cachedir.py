"""The frame of a cache dir: its lock, its directories, its node id."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from p2pcache.errors import Unreachable, UsageError
from p2pcache.ids import format_node, parse_node
from p2pcache.io.disk import Disk, read_small, translate


class Folders(NamedTuple):
    """Open directories of a cache dir (fds)."""

    root: int
    blobs: int
    partial: int
    manifests: int
    models: int
    tmp: int


class Cache(Protocol):
    """An open cache dir (`p2pcache.io.blobs.Blobs`)."""

    root: Path
    folders: Folders


def take_lock(root: Path) -> int:
    """Make this process the only one that uses the cache dir; the lock goes with the fd.

    Raises:
        UsageError: another process has it.
    """
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise UsageError(
            f"cache dir {root} is used by another agent (pid {holder}); stop it, talk to it with "
            "--agent, or choose another --cache-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def open_folders(disk: Disk, root: Path) -> Folders:
    """Create what is missing of the layout and open its directories."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [fd]
    try:
        # Containers read models (and through its hard links, blobs); the rest is ours alone.
        for name, mode in (("blobs", 0o755), ("partial", 0o700), ("manifests", 0o700),
                           ("models", 0o755), ("tmp", 0o700)):  # fmt: skip
            opened.append(disk.ensure_directory(fd, name, mode))
        disk.sync(fd)
    except BaseException:
        for one in opened:
            os.close(one)
        raise
    return Folders(*opened)


def check_present(root: Path, fd: int) -> None:
    """Refuse to go on in a cache dir that nobody sees any more.

    Raises:
        Unreachable: `root` isn't the directory that `fd` has open.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if os.path.samestat(root.stat(), os.fstat(fd)):
            return
    raise Unreachable(
        f"cache dir {root} was deleted or replaced under this agent; restart it: it makes a new one"
    )


@contextlib.contextmanager
def cache_errors(cache: Cache, what: str) -> Iterator[None]:
    """As `disk_errors`, within a cache dir: when that was deleted, nothing else is worth saying.

    Raises:
        Unreachable: as `check_present`; it may be said before the janitor looks.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            with contextlib.suppress(OSError):
                check_present(cache.root, cache.folders.root)
        raise translate(error, what) from error


def close_all(folders: Folders) -> None:
    """Close the directories."""
    for fd in folders:
        os.close(fd)


def node_id(disk: Disk, root: int) -> int:
    """This cache's node id, drawn once."""
    data = read_small(root, "node-id", 64)
    try:
        node = parse_node((data or b"").decode("ascii").strip())
    except (UsageError, UnicodeDecodeError):
        node = 0
    if not node:
        node = secrets.randbits(63) or 1
        disk.replace_file(root, "node-id", f"{format_node(node)}\n".encode())
    return node
