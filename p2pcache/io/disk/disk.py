"""Every change that the store makes to the disk goes through a `Disk`.

One narrow seam, for three reasons: names are always relative to an open directory and never
follow links (no path leaves its directory, even while somebody races); foreign errors are
translated in one place; and the tests put a `Disk` here that dies at the n-th operation or
records a trace that is replayed with unsynced writes dropped.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2pcache.errors import NoSpace, NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.io.disk import syscalls
from p2pcache.io.process_limits import limit_reached

OF_FILE_SYSTEMS = ("lost+found", ".snapshot")
"""Entries at the root of a volume that its file system makes: ext4's repairs, NFS servers' snapshots."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.ELOOP)
_BROKEN = (errno.EIO, errno.EREMOTEIO, errno.EUCLEAN, errno.ENODEV, errno.ENXIO)
NOT_OFFERED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # by file systems without such a call
_UNFIT = (errno.EINVAL, *NOT_OFFERED)
_NO_PATH = (
    errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.ETXTBSY,
)  # fmt: skip
_AWAY = (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH)
TRIAL_BYTES = 32 << 20  # of a file: its space is taken first, to see what that costs
TRIAL_S = 0.002  # of processor time: extents take microseconds at any length, pages 8 ms
USE_LOCKS = "use a local disk, or mount the share with locks (NFS with lockd, Lustre with -o flock)"
FEW_INODES = 100  # a small model needs as many files
MAKE_WRITABLE = "mount it writable (did its disk fail? `dmesg` says), or use another"
MAKE_INODES = (
    "its disk may have room for bytes and can't hold more files (`df -i` shows it): remove files there, also with "
    "`p2pcache rm` or `p2pcache prune --all`, and try again"
)


def translate(error: OSError, what: str, where: Path | int | None = None) -> P2PCacheError:
    """The error of our own tree for an error of the operating system.

    Args:
        error: from a system call.
        what: the path or the act, for the message.
        where: a path, or an open file, of the disk in question; None: it isn't known.
    """
    if limited := limit_reached(error):
        return limited
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC and where is not None and no_inodes(where):
        return NoSpace(f"{what}: no inodes left; {MAKE_INODES}")
    if error.errno in _NO_SPACE:
        return NoSpace(
            f"{what}: {reason}; make room (`p2pcache rm` or `p2pcache prune --all`) and try again"
        )
    if error.errno == errno.EROFS:  # the kernel does that by itself to a disk that fails
        return NotAllowed(f"{what}: {reason}; {MAKE_WRITABLE}")
    if error.errno in _NOT_ALLOWED:
        return NotAllowed(f"{what}: {reason}; check the owner and mode of this path")
    if error.errno == errno.ENOENT:
        return NotFound(f"{what}: {reason}")
    if error.errno in _NO_PATH:
        return UsageError(f"{what}: {reason}; choose another path")
    if error.errno in _BROKEN:
        return NoSpace(
            f"{what}: {reason}; its disk fails (`dmesg` says how): choose a cache dir on another disk"
        )
    if error.errno in _AWAY:  # of network file systems, and of those whose program ended
        return NoSpace(f"{what}: {reason}; mount it again, or choose a path on another disk")
    if error.errno == errno.EXDEV:
        return UsageError(
            f"{what}: {reason}; a cache dir lies on one file system as a whole: mount nothing below it, or choose "
            "another"
        )
    if error.errno in _UNFIT:
        return UsageError(
            f"{what}: {reason}; this file system can't do what a cache needs: choose a cache dir on another"
        )
    return P2PCacheError(f"{what}: {reason}")


@contextmanager
def disk_errors(what: str, where: Path | int | None = None) -> Iterator[None]:
    """Translate errors of the block; the arguments are those of `translate`."""
    try:
        yield
    except OSError as error:
        raise translate(error, what, where) from error


class Disk:
    """System calls on names relative to open directories. Raises OSError as it comes."""

    def open_directory(self, parent: int | None, name: str) -> int:
        """Open a directory (not through a link) and return its fd."""
        return os.open(name, _DIRECTORY, dir_fd=parent)

    def ensure_directory(self, parent: int, name: str, mode: int) -> int:
        """Create the directory where it's missing and open it. A fresh one gets exactly `mode`."""
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            return self.open_directory(parent, name)
        fd = self.open_directory(parent, name)
        os.fchmod(fd, mode)  # the umask of a service must not hide models from containers
        return fd

    def open_read(self, parent: int, name: str) -> int:
        """Open an existing regular file for reading."""
        return _regular(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent))

    def open_write(self, parent: int, name: str, *, create: bool) -> int:
        """Open a regular file for reading and writing, creating it with mode 0600 if asked."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _regular(os.open(name, flags, 0o600, dir_fd=parent))

    def open_scratch(self, parent: int) -> int:
        """A nameless file that is gone when its fd is closed (not every file system has O_TMPFILE)."""
        name = f"scratch-{secrets.token_hex(8)}"
        fd = self.open_write(parent, name, create=True)
        self.unlink(parent, name)
        return fd

    def write_at(self, fd: int, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        while view:
            n = os.pwrite(fd, view, offset)
            offset += n
            view = view[n:]

    def copy_range(self, source: int, start: int, target: int, offset: int, length: int) -> None:
        """Copy bytes between open files inside the kernel."""
        syscalls.copy_range(source, start, target, offset, length)

    def allocate(self, fd: int, size_bytes: int) -> bool:
        """Reserve blocks and set the size; where that isn't possible, or takes long, only the size (False).

        Writing into preallocated extents costs less CPU than into a sparse file. A file system in memory has no
        extents: it would make every page now, one after the other, while whoever wants to write waits.
        """
        trial = min(size_bytes, TRIAL_BYTES)
        began = time.thread_time()
        taken = syscalls.fallocate(fd, trial)
        dear = trial < size_bytes and time.thread_time() - began > TRIAL_S
        if taken and not dear and syscalls.fallocate(fd, size_bytes):
            return True
        os.ftruncate(fd, size_bytes)
        return False

    def punch(self, fd: int, offset: int, length: int) -> bool:
        """Give back the disk space of a region; where that isn't possible it stays as it is (False)."""
        return syscalls.punch_hole(fd, offset, length)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Set a file's size, leaving a hole where it grows."""
        os.ftruncate(fd, size_bytes)

    def chmod(self, fd: int, mode: int) -> None:
        """Set the permission bits of an open file."""
        os.fchmod(fd, mode)

    def rename(self, source: int, old: str, target: int, new: str) -> None:
        """Atomically move a name, replacing a file that had the new one."""
        os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)

    def link(self, source: int, old: str, target: int, new: str) -> None:
        """Add a hard link."""
        os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def symlink(self, text: str, parent: int, name: str) -> None:
        """Create a symbolic link."""
        os.symlink(text, name, dir_fd=parent)

    def unlink(self, parent: int, name: str) -> None:
        """Remove a file's name; one that isn't there is no error."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return

    def rmdir(self, parent: int, name: str) -> None:
        """Remove an empty directory."""
        os.rmdir(name, dir_fd=parent)

    def sync(self, fd: int) -> None:
        """Make one file, or one directory's names, durable."""
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """Make one file's bytes durable."""
        os.fdatasync(fd)

    def sync_all(self, fd: int) -> None:
        """Make the whole file system of `fd` durable."""
        syscalls.syncfs(fd)

    def replace_file(self, parent: int, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a small file so that a reader sees the old or the new one, never a torn one."""
        temporary = f"{name}.tmp"
        fd = self.open_write(parent, temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write_at(fd, data, 0)
            if durable:
                self.sync_data(fd)
        finally:
            os.close(fd)
        self.rename(parent, temporary, parent, name)

    def remove_tree(self, parent: int, name: str) -> None:
        """Remove a file or a whole directory, never following a link."""
        try:
            fd = self.open_directory(parent, name)
        except (NotADirectoryError, FileNotFoundError):
            self.unlink(parent, name)
            return
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link: remove the link itself
                raise
            self.unlink(parent, name)
            return
        try:
            for entry in names(fd):
                self.remove_tree(fd, entry)
        finally:
            os.close(fd)
        self.rmdir(parent, name)


def _regular(fd: int) -> int:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file")


def read_small(parent: int, name: str, limit_bytes: int) -> bytes | None:
    """A small file's bytes; None where it's missing, no regular file, or over the limit."""
    path_fd: int
    try:
        path_fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                          dir_fd=parent)  # fmt: skip
    except OSError:
        return None
    with os.fdopen(path_fd, "rb") as file:
        info = os.fstat(path_fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit_bytes:
            return None
        return file.read(limit_bytes + 1)


def lock(fd: int, what: str, *, wait: bool) -> None:
    """Lock an open file or directory for this process alone.

    Args:
        fd: the open file.
        what: names it in messages.
        wait: until another process lets it go.

    Raises:
        BlockingIOError: another process has it, and we don't wait.
        UsageError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
        raise UsageError(
            f"{what}: its file system has no file locks ({error.strerror}), and without one two processes could "
            f"harm it; {USE_LOCKS}"
        ) from None


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary process may still write on this file system."""
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize


def disk_bytes(path: Path) -> int:
    """Bytes of the whole file system."""
    info = os.statvfs(path)
    return info.f_blocks * info.f_frsize


def is_read_only(where: Path, *, tries: bool = True) -> bool:
    """Whether a file system takes no writes, such as one that the kernel found faulty.

    False also if it is gone, which the caller's own error tells.

    Args:
        where: a directory of it.
        tries: to write, too; else it is believed what it calls itself.
    """
    try:
        calls_itself_so = bool(os.statvfs(where).f_flag & os.ST_RDONLY)
        if calls_itself_so or not tries:
            return calls_itself_so
        # From Linux 6.15 on a faulty ext4 is still called writable: only a write tells. This file has no name.
        os.close(os.open(where, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def free_inodes(where: Path | int) -> int | None:
    """How many files an ordinary process may still make on this file system; None: it doesn't count them."""
    info = os.statvfs(where)
    return info.f_favail if info.f_files else None


def no_inodes(where: Path | int) -> bool:
    """Whether a file system can hold no more files, however many bytes are free; `where` may be yet to be made."""
    while isinstance(where, Path) and not where.exists() and where != where.parent:
        where = where.parent
    try:
        return free_inodes(where) == 0
    except OSError:
        return False


def names(folder: int) -> list[str]:
    """Names in an open directory, sorted."""
    return sorted(os.listdir(folder))
