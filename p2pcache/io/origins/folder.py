"""A directory tree that no name inside leads out of, for `file://` origins.

Every path is walked with `O_NOFOLLOW` from the descriptor of the directory above. So neither a key nor
a link planted inside leads out of the tree, also while entries are renamed.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from p2pcache.errors import NotFound, OriginUnavailable, UsageError
from p2pcache.io.disk.disk import NOT_OFFERED, USE_LOCKS

_STAGING = ".staging"  # begins with a dot: never a key, never listed
_LOCK = ".lock"
_LOCK_WAIT_S = 10.0  # holders need milliseconds; longer means a dead NFS lock server
_LOCK_POLL_S = 0.01
_STALE_S = 7 * 86400.0  # no upload lasts a week: such a temporary file was left by a crash
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# NFS locks belong to a process, so threads of one process need a lock of their own.
_in_process = threading.Lock()


def directory_of(url: str) -> str:
    """The path that `file:///ABSOLUTE/DIRECTORY` names.

    Raises:
        UsageError: another form of URL.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise UsageError(f"not a directory URL: {url!r}; expected file:///ABSOLUTE/DIRECTORY")
    return path


class Folder:
    """Opens, stages, renames and walks below one root. Raises `OSError` as the system does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._swept = False

    def open_file(self, segments: Sequence[str]) -> int:
        """A descriptor (the caller's to close) of the regular file at `segments`."""
        with self.parent(segments, create=False) as parent:
            # O_NONBLOCK: a planted fifo must not hang the open
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(segments[-1], flags, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotFound(f"{self.root}/{'/'.join(segments)} is not a regular file")
        return fd

    @contextlib.contextmanager
    def parent(self, segments: Sequence[str], *, create: bool) -> Iterator[int]:
        """A descriptor of the directory that holds `segments[-1]`."""
        with contextlib.ExitStack() as cleanup:
            yield self._descend(cleanup, segments[:-1], create=create)

    @contextlib.contextmanager
    def staged(self) -> Iterator[tuple[int, str, int]]:
        """A fresh temporary file as (directory, name, fd); removed unless renamed away."""
        with contextlib.ExitStack() as cleanup:
            staging = self._descend(cleanup, [_STAGING], create=True)
            self._sweep(staging)
            name = secrets.token_hex(12)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o644, dir_fd=staging)
            cleanup.callback(os.close, fd)
            try:
                yield staging, name, fd
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=staging)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The root's write lock, against other threads, processes and (on NFS) hosts.

        Raises:
            OriginUnavailable: the lock is held for too long.
        """
        deadline = time.monotonic() + _LOCK_WAIT_S
        with _in_process, contextlib.ExitStack() as cleanup:
            root = self._descend(cleanup, [], create=False)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(_LOCK, flags, 0o666, dir_fd=root)
            cleanup.callback(os.close, fd)
            while not self._try_lock(fd):
                if time.monotonic() > deadline:
                    raise OriginUnavailable(
                        f"the lock {self.root}/{_LOCK} is held for too long; does NFS locking work?"
                    )
                time.sleep(_LOCK_POLL_S)
            yield

    def walk(self, segments: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Regular files below the directory at `segments`: (path from there, stat), by path."""
        with contextlib.ExitStack() as cleanup:
            try:
                top = self._descend(cleanup, segments, create=False)
            except FileNotFoundError:
                return
            yield from self._walk(top, "")

    def _walk(self, folder: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
        found: list[tuple[str, os.stat_result]] = []
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                # a directory sorts with its slash, so that whole paths come out in order
                found.append((name + "/" * stat.S_ISDIR(info.st_mode), info))
        for name, info in sorted(found, key=lambda entry: entry[0]):
            if name.startswith("."):
                continue
            if stat.S_ISREG(info.st_mode):
                yield path + name, info
            elif stat.S_ISDIR(info.st_mode):
                with contextlib.suppress(FileNotFoundError):
                    below = os.open(name[:-1], _DIRECTORY, dir_fd=folder)
                    try:
                        yield from self._walk(below, path + name)
                    finally:
                        os.close(below)

    def _descend(
        self, cleanup: contextlib.ExitStack, segments: Sequence[str], *, create: bool
    ) -> int:
        try:
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise OriginUnavailable(
                f"the origin directory {self.root} is gone: is the share still mounted?"
            ) from None
        cleanup.callback(os.close, fd)
        for segment in segments:
            try:
                below = os.open(segment, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                if not create:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(segment, 0o755, dir_fd=fd)
                    os.fsync(fd)
                below = os.open(segment, _DIRECTORY, dir_fd=fd)
            cleanup.callback(os.close, below)
            fd = below
        return fd

    def _sweep(self, staging: int) -> None:
        if self._swept:
            return
        self._swept = True
        newest = time.time() - _STALE_S
        for name in os.listdir(staging):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime < newest:
                    os.unlink(name, dir_fd=staging)

    @staticmethod
    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno in NOT_OFFERED:
                raise UsageError(
                    f"the origin directory's file system has no file locks ({error.strerror}), without which a push "
                    f"can't move tags safely; {USE_LOCKS}"
                ) from None
            raise
        return True
