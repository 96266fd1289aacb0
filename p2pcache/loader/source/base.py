"""Where a load's bytes come from: the seam between the loader and a directory or a swarm.

A source knows files and which of their bytes are proved and readable; it never hands out others.
The loader reads by `Source.read`, from several threads: a source whose bytes still move (an agent
that died, a chunk that failed a later check) must be able to look again before a read counts.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from p2pcache.errors import IntegrityError, NotFound, UsageError
from p2pcache.io.blobs.blob_file import OPEN_FILES, OpenFile
from p2pcache.io.disk.disk import disk_errors

MAX_FILES = 100_000  # as many as a manifest may list


class Range(NamedTuple):
    """Bytes [start, end) of one file."""

    path: str
    start: int
    end: int


@dataclass(slots=True)
class SourceStats:
    """Where the bytes of this load came from, as far as the source knows when asked."""

    bytes_peers: int = 0
    bytes_origin: int = 0
    bytes_disk: int = 0  # lay on this node when the load began
    verified_chunks: int = 0  # proved with BLAKE3, by whoever wrote them here
    digest: str = ""  # the model's identity; a plain directory has none
    notes: list[str] = field(default_factory=list)  # such as "agent lost, went on by itself"


class Source(Protocol):
    """One model for one load. All methods may be called from any thread until `close`.

    Errors are of our own tree; an error of `wait` or `read` ends the load.
    """

    @property
    def name(self) -> str:
        """What messages call it: the ref or the directory."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every byte is available now; once true it stays true."""
        ...

    def files(self) -> list[tuple[str, int]]:
        """(relative path with '/', size in bytes) of each file, also of those that still arrive."""
        ...

    def available(self, path: str, start: int, end: int) -> bool:
        """Whether all bytes of [start, end) are proved and readable. Cheap: asked in loops."""
        ...

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """Fill the buffers, one after the other, with the available bytes from `start` on, proved ones only.

        It waits and reads again where the bytes were withdrawn meanwhile, and finds them where an agent that
        died has left them.

        Raises:
            IntegrityError: the file is shorter than it was, or another one.
            P2PCacheError: they can't be had any more.
        """
        ...

    def want(self, ranges: Sequence[Range]) -> None:
        """Called once the headers are read: all that this load will need, in its order.

        With `fetch="needed"` nothing else is fetched.
        """
        ...

    def demand(self, path: str, start: int, end: int) -> None:
        """Somebody waits for these bytes now: let them come first. Returns at once."""
        ...

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """Block until at least one of the ranges is available, raising demand for the first ones.

        Args:
            ranges: what could be read next, the most welcome first.
            timeout_s: how long to block at most.

        Returns:
            Indices of the ranges that are available; [] when the time is up.

        Raises:
            P2PCacheError: these bytes will not come.
        """
        ...

    def stop(self) -> None:
        """The load is over: a `read` or `wait` that blocks ends with an error. Before `close`, at any time."""
        ...

    def stats(self) -> SourceStats:
        """Bytes by their origin; may be asked at any time, also after `close`."""
        ...

    def close(self) -> None:
        """Let go of descriptors and of the interest in the model. More than once does no harm."""
        ...


class DirectorySource:
    """A directory (or one file) whose bytes all lie there: a pulled model, a Hugging Face snapshot."""

    complete = True

    def __init__(self, path: Path, name: str = "") -> None:
        """List the files; links to files are followed, links to directories are not.

        Args:
            path: the directory or file.
            name: by which its user knows it, such as a ref; else the path.

        Raises:
            NotFound: there is no such directory or file.
            UsageError: more files than a model may have.
            NotAllowed, P2PCacheError: the disk refused.
        """
        self.name = name or str(path)
        self._paths: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}
        self._open: dict[str, OpenFile] = {}
        self._inodes: dict[str, tuple[int, int]] = {}  # of all that were opened
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
        for folder, folders, names in os.walk(root, onerror=_reraise):
            folders.sort()
            for name in sorted(names):
                full = Path(folder) / name
                if full.is_file():
                    self._add(full.relative_to(root).as_posix(), full)

    def _add(self, name: str, full: Path) -> None:
        if len(self._paths) >= MAX_FILES:
            raise UsageError(f"{self.name}: over {MAX_FILES} files; name the model's own directory")
        self._paths[name] = full
        self._sizes[name] = full.stat().st_size

    def files(self) -> list[tuple[str, int]]:
        """See `Source.files`."""
        return list(self._sizes.items())

    def _file(self, path: str) -> OpenFile:
        """One of the files, open: for as long as it's held, and a while longer for the next read.

        A model may have more shards than a process may open files. No lock: a fork may happen at any time.
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

    def available(self, path: str, start: int, end: int) -> bool:
        """See `Source.available`: always, inside the file."""
        return 0 <= start <= end <= self._sizes.get(path, -1)

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """See `Source.read`."""
        file = self._file(path)  # held: the descriptor stays open
        read_all(file.fd, start, into, str(self._paths[path]))
        with self._lock:
            self._read_bytes += sum(map(len, into))

    def want(self, ranges: Sequence[Range]) -> None:
        """See `Source.want`: nothing to do, all is there."""

    def demand(self, path: str, start: int, end: int) -> None:
        """See `Source.demand`: nothing to do, all is there."""

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """See `Source.wait`: returns at once, unless a range lies outside its file."""
        there = [i for i, r in enumerate(ranges) if self.available(*r)]
        if not there and ranges:
            time.sleep(timeout_s)
        return there

    def stop(self) -> None:
        """See `Source.stop`: nothing blocks."""

    def stats(self) -> SourceStats:
        """See `Source.stats`: what was read, all of it from disk."""
        return SourceStats(bytes_disk=self._read_bytes)

    def close(self) -> None:
        """See `Source.close`."""
        self._open.clear()


def read_all(fd: int, start: int, into: Sequence[memoryview], what: str) -> None:
    """Fill the buffers from consecutive bytes of an open file; `preadv` may bring less than it's asked for.

    Raises:
        IntegrityError: the file ends before that; `what` names it.
        P2PCacheError: the disk refused.
    """
    left = list(into)
    with disk_errors(what):
        while left:
            got = os.preadv(fd, left, start)
            if got == 0 and any(left):
                raise IntegrityError(
                    f"{what} ends at byte {start}, too early; pull the model again"
                )
            start += got
            filled = 0
            while filled < len(left) and got >= len(left[filled]):
                got -= len(left[filled])
                filled += 1
            left = left[filled:]
            if got:
                left[0] = left[0][got:]


def _reraise(error: OSError) -> None:
    raise error
