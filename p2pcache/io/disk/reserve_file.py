"""A little disk space that is kept back, so that a full disk can still be emptied.

To delete a row SQLite writes to its log first, and to open the records it makes the log's index. With
not one block left both fail, and with them every command that would free something.
"""

import contextlib
import os

from p2pcache.io.disk.disk import Disk

# Deleting the records of a tag takes 4 KiB, those of a model of 1,500 files 800 KiB.
SPARE_BYTES = 1 << 20
OPENING_BYTES = 128 << 10  # given up to open the database, whose log's index takes 32 KiB
NAME = "spare"


class Spare:
    """A file of our own in the cache dir that holds the space."""

    def __init__(self, disk: Disk, folder: int) -> None:
        """The space that an earlier process kept back is still held.

        Args:
            disk: how to touch the disk.
            folder: the cache dir (fd).
        """
        self._disk = disk
        self._folder = folder

    def keep(self) -> None:
        """Allocate the space if it isn't held and the disk has it; else a later call does."""
        if self._held_bytes() >= SPARE_BYTES:
            return
        with contextlib.suppress(OSError):
            fd = self._disk.open_write(self._folder, NAME, create=True)
            try:
                if not self._disk.allocate(fd, SPARE_BYTES):
                    self._disk.write_at(fd, bytes(SPARE_BYTES), 0)
            finally:
                os.close(fd)

    def give_up(self, size_bytes: int = SPARE_BYTES) -> bool:
        """Free `size_bytes` of the space; False: none was held."""
        held = self._held_bytes()
        if not held:
            return False
        with contextlib.suppress(OSError):
            fd = self._disk.open_write(self._folder, NAME, create=False)
            try:
                self._disk.truncate(fd, max(0, held - size_bytes))
            finally:
                os.close(fd)
            return True
        return False

    def _held_bytes(self) -> int:
        try:
            return os.stat(NAME, dir_fd=self._folder, follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return 0
