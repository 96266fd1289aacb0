"""A little disk space that is kept back, so that a full disk can still be made emptier.

To forget a row SQLite has to write, to its log first; to open the records it has to make the log's
index. Where not one block is left both fail, and with them every command that would free something.
"""

import contextlib
import os

from p2pcache.io.disk.disk import Disk

# To forget a tag takes 4 KiB, a model of 1,500 files 800 KiB (measured; its own files are gone by then, so this is
# for those that it shares with others).
SPARE_BYTES = 1 << 20
OPENING_BYTES = (
    128 << 10
)  # the log's index has 32 KiB; the rest is still kept back for what follows
NAME = "spare"


class Spare:
    """A file of our own in the cache dir that holds the space."""

    def __init__(self, disk: Disk, folder: int) -> None:
        """What an earlier life kept back still is.

        Args:
            disk: how to touch the disk.
            folder: the cache dir (fd).
        """
        self._disk = disk
        self._folder = folder

    def keep(self) -> None:
        """Keep the space back, if it isn't and the disk has it; else the next one who makes room does."""
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
        """Give so much of it to whoever is quickest to take it; False: there was none."""
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
