"""A model whose files all lie in a directory, as a source."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.io.blobs.blob_file import OPEN_FILES, OpenFile
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.models.published_tree import is_tree_name
from p2pcache.loader.memory.mapping import map_private
from p2pcache.loader.source.base import Range, SourceStats

_READ = (".safetensors", ".safetensors.index.json")  # ends of the names of files that loads read
MAX_FILES = 100_000  # of one directory; a manifest may list no more


class DirectorySource:
    """Implements `Source` for a complete directory, or one file: a pulled model, a Hugging Face snapshot."""

    complete = True

    def __init__(self, path: Path, name: str = "") -> None:
        """List the files. Links to files are followed, links to directories are not.

        Args:
            path: the directory or file.
            name: for messages, such as a ref; "": the path.

        Raises:
            NotFound: there is no such directory or file, or it went while it was listed.
            UsageError: more files than a model may have.
            NotAllowed, P2PCacheError: the disk refused.
        """
        self.name = name or str(path)
        self.path = path
        # Nobody changes the files of a published tree: mended ones are new files.
        self.published = any(is_tree_name(part) for part in path.resolve().parts)
        self._mappings: dict[str, Any] = {}
        self._paths: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}
        self._open: dict[str, OpenFile] = {}
        self._inodes: dict[str, tuple[int, int]] = {}  # (device, inode) of each file ever opened
        self._read_bytes = 0
        self._lock = threading.Lock()
        with disk_errors(str(path)):
            if path.is_file():
                self._add(path.name, path)
            elif path.is_dir():
                self._walk(path)
            else:
                raise NotFound(f"{path}: no such directory or file; pull the model first")

    def _walk(self, root: Path) -> None:
        held = OpenFile(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for folder, folders, names in os.walk(root, onerror=_reraise):
            folders.sort()
            for name in sorted(names):
                full = Path(folder) / name
                if full.is_file():
                    self._add(full.relative_to(root).as_posix(), full)
        # Else files may be missing in the list. While the old one is held open no new one has its inode.
        if not os.path.samestat(os.fstat(held.fd), root.stat()):
            raise NotFound(f"{root} was replaced while it was listed; load the model again")

    def _add(self, name: str, full: Path) -> None:
        if len(self._paths) >= MAX_FILES:
            raise UsageError(f"{self.name}: over {MAX_FILES} files; name the model's own directory")
        self._paths[name] = full
        self._sizes[name] = full.stat().st_size

    def files(self) -> list[tuple[str, int]]:
        """See `Source.files`."""
        return list(self._sizes.items())

    def open_ahead(self) -> None:
        """Open the files of tensors, as many as stay open: those are readable when the directory is removed.

        Raises:
            NotFound: it was removed before.
            P2PCacheError: the disk refused.
        """
        for path in [p for p in self._paths if p.endswith(_READ)][:OPEN_FILES]:
            self._file(path)

    def _file(self, path: str) -> OpenFile:
        """Open a file, or find it open. It stays open while the caller holds it, and usually for the next read.

        A model may have more shards than a process may open files, so the oldest are dropped. There is
        no lock, since the process may fork at any time.
        """
        file = self._open.get(path)
        if file is not None:
            return file
        full = self._paths.get(path)
        if full is None:
            raise NotFound(f"{self.name}: no file {path!r} in it")
        with disk_errors(str(full)):
            file = OpenFile(os.open(full, os.O_RDONLY | os.O_CLOEXEC))
            state = os.fstat(file.fd)
        inode = (state.st_dev, state.st_ino)
        if self._inodes.setdefault(path, inode) != inode:
            raise IntegrityError(f"{full} was replaced while it was read; load the model again")
        self._open[path] = file
        for oldest in list(self._open)[:-OPEN_FILES]:
            self._open.pop(oldest, None)
        return file

    def mapping(self, path: str) -> Any:
        """A private mapping of a whole file, with the buffer protocol; None: it can't be mapped.

        Raises:
            IntegrityError: the file is shorter than it was, or another one.
            NotFound, P2PCacheError: it can't be opened.
        """
        found = self._mappings.get(path)
        if found is None:
            file, size = self._file(path), self._sizes[path]
            if os.fstat(file.fd).st_size < size:
                raise _too_short(str(self._paths[path]), os.fstat(file.fd).st_size)
            if hasattr(os, "posix_fadvise"):
                # The kernel then reads twice as much at once. Linux keeps that with the open file that is mapped.
                with suppress(OSError):
                    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            try:
                found = self._mappings[path] = map_private(file.fd, size)
            except OSError:  # a file system without mappings, or no room in the address space
                return None
        return found

    def available(self, path: str, start: int, end: int) -> bool:
        """See `Source.available`: true for each range inside a file."""
        return 0 <= start <= end <= self._sizes.get(path, -1)

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """See `Source.read`."""
        file = self._file(path)  # while it is held the descriptor stays open
        read_all(file.fd, start, into, str(self._paths[path]))
        with self._lock:
            self._read_bytes += sum(map(len, into))

    def on_planned(self, ranges: Sequence[Range]) -> None:
        """See `Source.on_planned`: nothing to do."""

    def demand(self, path: str, start: int, end: int) -> None:
        """See `Source.demand`: nothing to do."""

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """See `Source.wait`: returns at once, unless a range lies outside its file."""
        found = [i for i, r in enumerate(ranges) if self.available(*r)]
        if not found and ranges:
            time.sleep(timeout_s)
        return found

    def stop(self) -> None:
        """See `Source.stop`: nothing blocks."""

    def stats(self) -> SourceStats:
        """See `Source.stats`: the bytes that were read, all of them from disk."""
        return SourceStats(bytes_disk=self._read_bytes)

    def close(self) -> None:
        """See `Source.close`. Mapped tensors stay valid."""
        self._open.clear()
        self._mappings.clear()


def read_all(fd: int, start: int, into: Sequence[memoryview], what: str) -> None:
    """Fill the buffers from consecutive bytes of an open file.

    Args:
        fd: the open file.
        start: byte offset in the file.
        into: the buffers, filled one after the other.
        what: the file's name, for messages.

    Raises:
        IntegrityError: the file ends too early.
        P2PCacheError: the disk refused.
    """
    left = list(into)
    with disk_errors(what):
        while left:
            got = os.preadv(fd, left, start)  # perhaps fewer bytes than were asked for
            if got == 0 and any(left):
                raise _too_short(what, start)
            start += got
            filled = 0
            while filled < len(left) and got >= len(left[filled]):
                got -= len(left[filled])
                filled += 1
            left = left[filled:]
            if got:
                left[0] = left[0][got:]


def _too_short(what: str, end: int) -> IntegrityError:
    return IntegrityError(f"{what} ends at byte {end}, too early; pull the model again")


def _reraise(error: OSError) -> None:
    raise error
