"""Builds a model's tree of hard links in a fresh directory, before anybody sees it."""

import errno
import os
from collections.abc import Iterable

from p2pcache.io.disk.disk import Disk

MANY_LINKS = 30_000  # file systems stop at 32,000 or 65,000 links: from there trees have copies


class TreeBuilder:
    """Links files into a directory, depth first; each directory is synced when it's done."""

    def __init__(self, disk: Disk, blobs: int, root: int) -> None:
        """Nothing is linked yet.

        Args:
            disk: how to touch the disk.
            blobs: directory of the blobs (fd).
            root: the directory to fill (fd), closed at the end of `build`.
        """
        self._disk = disk
        self._blobs = blobs
        self._open: list[tuple[str, int]] = [("", root)]  # open directories, from the root down

    def build(self, files: Iterable[tuple[str, str]]) -> None:
        """Place files: (path inside the model, blob id)."""
        try:
            # By directory, so that each is entered and synced once ("a-b" sorts before "a/b").
            for path, blob_id in sorted(files, key=lambda f: f[0].split("/")):
                *folders, name = path.split("/")
                self._enter(folders)
                self._place(blob_id, name)
            self._leave(0)
        finally:
            for _, fd in self._open:
                os.close(fd)

    def _enter(self, folders: list[str]) -> None:
        here = [name for name, _ in self._open[1:]]
        common = 0
        while common < min(len(here), len(folders)) and here[common] == folders[common]:
            common += 1
        self._leave(common + 1)
        for name in folders[common:]:
            fd = self._disk.ensure_directory(self._open[-1][1], name, 0o755)
            self._open.append((name, fd))

    def _leave(self, depth: int) -> None:
        while len(self._open) > depth:
            fd = self._open[-1][1]
            self._disk.sync(fd)
            self._open.pop()
            os.close(fd)

    def _place(self, blob_id: str, name: str) -> None:
        folder = self._open[-1][1]
        try:
            self._disk.link(self._blobs, blob_id, folder, name)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            self._copy(blob_id, folder, name)  # ext4 allows 65,000 links to one (empty) file

    def _copy(self, blob_id: str, folder: int, name: str) -> None:
        source = self._disk.open_read(self._blobs, blob_id)
        try:
            target = self._disk.open_write(folder, name, create=True)
            try:
                self._disk.copy_range(source, 0, target, 0, os.fstat(source).st_size)
                self._disk.chmod(target, 0o444)
                self._disk.sync(target)
            finally:
                os.close(target)
        finally:
            os.close(source)
