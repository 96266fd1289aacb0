"""The few calls of Linux and its C library that Python 3.11 doesn't wrap. Standard library only."""

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator

_FICLONE = 0x40049409  # _IOW(0x94, 9, int), <linux/fs.h>
_PUNCH_HOLE = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, <linux/falloc.h>
_M_MMAP_THRESHOLD = -3  # <malloc.h>
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syncfs.argtypes = [ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def give_back_blocks_of(least_bytes: int) -> None:
    """Blocks of memory of this size and more go back to the system as soon as they are free.

    glibc would raise its own limit to 32 MiB with the first large block that is freed; from then on every
    thread's heap keeps up to twice its largest one. Other C libraries are left as they are.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, least_bytes)


def syncfs(fd: int) -> None:
    """Make everything on the file system of `fd` durable: one call instead of one per file.

    Raises:
        OSError: the write-back failed.
    """
    if _libc.syncfs(fd) != 0:
        raise _last_error()


def fallocate(fd: int, size_bytes: int) -> bool:
    """Give the file `size_bytes` of space and size; False where the file system can't.

    Unlike `os.posix_fallocate` it never falls back to writing each block.

    Raises:
        OSError: ENOSPC above all.
    """
    if size_bytes == 0 or _libc.fallocate(fd, 0, 0, size_bytes) == 0:
        return True
    error = _last_error()
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise error


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Give back the disk space of a region, which then reads as zeros; False where the file system can't.

    Raises:
        OSError: the disk refused.
    """
    if length == 0 or _libc.fallocate(fd, _PUNCH_HOLE, offset, length) == 0:
        return True
    error = _last_error()
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise error


def reflink(source_fd: int, target_fd: int) -> bool:
    """Let the target share the source's blocks (FICLONE); False where that isn't possible."""
    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY,
                           errno.ENOSYS, errno.EPERM, errno.EACCES):  # fmt: skip
            return False
        raise
    return True


def copy_range(
    source_fd: int, source_offset: int, target_fd: int, target_offset: int, length: int
) -> None:
    """Copy bytes inside the kernel; file systems that can share blocks do.

    Raises:
        OSError: a read or write failed, or the source ends early (EIO).
    """
    done = 0
    while done < length:
        n = _copy_some(
            source_fd, source_offset + done, target_fd, target_offset + done, length - done
        )
        if n == 0:
            raise OSError(errno.EIO, "the source file is shorter than it was")
        done += n


def _copy_some(
    source_fd: int, source_offset: int, target_fd: int, target_offset: int, length: int
) -> int:
    try:
        return os.copy_file_range(source_fd, target_fd, length, source_offset, target_offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS,
                               errno.EPERM):  # fmt: skip
            raise
    data = os.pread(source_fd, min(length, 1 << 20), source_offset)
    return os.pwrite(target_fd, data, target_offset) if data else 0


def data_regions(fd: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each region that holds data, in order; none where the file system doesn't know holes."""
    end = 0
    try:
        while end < size_bytes:
            begin = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
            yield begin, end
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EINVAL):  # ENXIO: no data from here to the end
            raise


def is_hole(fd: int, offset: int, length: int) -> bool:
    """Whether a region holds no data at all (it then reads as zeros). Moves no file position that matters."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data from here to the end
            return True
        if error.errno == errno.EINVAL:  # the file system doesn't know holes
            return False
        raise


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
