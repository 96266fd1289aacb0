"""Files of removed blobs, kept a while and written over by the next ones.

A fresh page of the page cache costs more than network and hash together where the host has to find
the memory (docs/lab/0009-recycled-files.md); a file that was here a minute ago has its pages
and its blocks. Such a file has lost its name for good and is nobody's data: it lies nameless to all
in `tmp/`, which is emptied at start, until it becomes a partial blob of which nothing is proved.

Never written over is a file that somebody else may look at: one with another hard link, or that
any process has open or mapped (an engine goes on with the weights of a model that was removed).
"""

import fcntl
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from p2pcache.io.disk import Disk, free_bytes

LEAST_BYTES = 1 << 20  # below, making a file costs more than its pages
KEEP_S = 600.0  # one model replaces another within minutes; afterwards the disk is for everybody
_PREFIX = "recycled-"


class _Kept(NamedTuple):
    name: str
    size_bytes: int  # of disk
    since: float  # monotonic


class Recycler:
    """The kept files. Callers hold the pool's lock.

    Invariant: a file in `_ready` had its old names removed durably, so whatever a power cut
    brings back, no old name shows bytes of the next blob.
    """

    def __init__(
        self,
        root: Path,
        tmp: int,
        disk: Disk,
        *,
        limit_bytes: int,
        min_free_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep nothing yet.

        Args:
            root: the cache dir, whose disk it is.
            tmp: its `tmp` directory (fd).
            disk: how to touch the disk.
            limit_bytes: of disk that may be kept; 0: recycle nothing.
            min_free_bytes: of the disk that kept files leave free.
            clock: monotonic seconds.
        """
        self._root = root
        self._tmp = tmp
        self._disk = disk
        self._limit_bytes = limit_bytes
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._fresh: list[_Kept] = []  # their old names may come back after a power cut
        self._ready: list[_Kept] = []  # oldest first
        self._taken = self._flushed = 0  # files ever; the second one durably

    @property
    def held_bytes(self) -> int:
        """Bytes of disk that are kept; all of them are given back when somebody needs them."""
        return sum(k.size_bytes for k in self._fresh + self._ready)

    @property
    def free_bytes(self) -> int:
        """Bytes of disk that a blob may have: the free ones, and the kept ones."""
        return free_bytes(self._root) + self.held_bytes

    # In

    def keep(self, folder: int, name: str) -> bool:
        """Take a removed blob's file over, if it's of use; False: the caller deletes it."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not self._limit_bytes or info.st_nlink != 1 or info.st_blocks * 512 < LEAST_BYTES:
            return False
        ours = f"{_PREFIX}{secrets.token_hex(8)}"
        self._disk.rename(folder, name, self._tmp, ours)
        if not self._only_ours(ours, self._limit_bytes):
            self._disk.unlink(self._tmp, ours)
            return True
        held = os.stat(ours, dir_fd=self._tmp).st_blocks * 512
        self._fresh.append(_Kept(ours, held, self._clock()))
        self._shrink_to(self._limit_bytes)
        self.make_room(0)
        return True

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has to follow."""
        return bool(self._fresh)

    def settle(self) -> None:
        """The old names of what was kept are gone durably now: it may be written over."""
        self._ready += self._fresh
        self._fresh = []

    # Out

    def take(self, size_bytes: int, folder: int, name: str) -> bool:
        """Give a blob that begins a kept file of about its size, under `name` in `folder`.

        Bytes of the blob that it held before lie in it: nothing of it is proved.

        Returns:
            False: there's none.
        """
        while (kept := self._fitting(size_bytes)) is not None:
            self._ready.remove(kept)
            if self._only_ours(kept.name, size_bytes):
                self._disk.rename(self._tmp, kept.name, folder, name)
                self._taken += 1
                return True
            self._disk.unlink(self._tmp, kept.name)
        return False

    def flush(self) -> None:
        """Make it durable that taken files left `tmp/`, before anybody calls their new bytes so."""
        taken = self._taken
        if taken != self._flushed:
            self._disk.sync(self._tmp)
            self._flushed = taken

    def make_room(self, needed_bytes: int) -> None:
        """Give up kept files, oldest first, until so much is free beside what stays free anyway."""
        if not self._ready and not self._fresh:
            return
        short = needed_bytes + self._min_free_bytes - free_bytes(self._root)
        if short > 0:
            self._shrink_to(max(0, self.held_bytes - short))

    def expire(self) -> None:
        """Give up what nobody needed for long, and what the disk lacks now."""
        now = self._clock()
        for kept in [k for k in self._fresh + self._ready if now - k.since >= KEEP_S]:
            self._drop(kept)
        self.make_room(0)

    def clear(self) -> None:
        """Give up all."""
        self._shrink_to(0)

    def _fitting(self, size_bytes: int) -> _Kept | None:
        """The smallest that is large enough, else the largest.

        None far from the size: a large file is not spent on a small blob.
        """
        near = [k for k in self._ready if size_bytes / 2 <= k.size_bytes <= size_bytes * 2]
        enough = [k for k in near if k.size_bytes >= size_bytes]
        if enough:
            return min(enough, key=lambda k: k.size_bytes)
        return max(near, key=lambda k: k.size_bytes, default=None)

    def _shrink_to(self, limit_bytes: int) -> None:
        while self._ready + self._fresh and self.held_bytes > limit_bytes:
            self._drop((self._ready or self._fresh)[0])

    def _drop(self, kept: _Kept) -> None:
        (self._ready if kept in self._ready else self._fresh).remove(kept)
        self._disk.unlink(self._tmp, kept.name)

    def _only_ours(self, name: str, most_bytes: int) -> bool:
        """Whether nobody else can see a kept file; it's then of our mode and cut to a size."""
        with suppress(OSError):
            fd = self._disk.open_read(self._tmp, name)
            try:
                self._disk.chmod(fd, 0o600)
            finally:
                os.close(fd)
            fd = self._disk.open_write(self._tmp, name, create=False)
            try:
                if os.fstat(fd).st_nlink == 1 and _alone(fd):
                    if os.fstat(fd).st_size > most_bytes:
                        self._disk.truncate(fd, most_bytes)
                    return True
            finally:
                os.close(fd)
        return False


def _alone(fd: int) -> bool:
    """Whether no other descriptor or mapping of the file exists: the kernel then grants a lease.

    File systems without leases (NFS) answer no.
    """
    try:
        # An opener in the next microseconds would break the lease, and SIGIO end the process;
        # SIGURG is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True
