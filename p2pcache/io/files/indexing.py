"""Indexing: a directory becomes a manifest, each byte read once.

Files are cut into units of work that two threads hash side by side through one reused buffer
each, so memory stays flat whatever the sizes. Holes of sparse files aren't read at all: their
chunks have the digest of zeros, which is computed once per length.

Left out silently, because they are no part of the model: `.git` (anywhere), and at the top
`.cache/huggingface` (`hf download --local-dir` leaves it) and what a file system keeps there.
"""

import errno
import hashlib
import os
import stat
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from p2pcache.core.format.chunking import cut, safetensors_header_bytes, safetensors_starts
from p2pcache.core.format.manifest import MAX_FILES, File, Manifest, check_path, make_manifest
from p2pcache.errors import InvalidManifest, NotFound, UsageError
from p2pcache.ids import DIGEST_BYTES
from p2pcache.io.disk.disk import OF_FILE_SYSTEMS, disk_errors
from p2pcache.io.disk.region_hash import hash_region
from p2pcache.io.disk.syscalls import is_hole

_UNIT_BYTES = 64 << 20  # one unit of work: enough to share a large file, progress twice a second
_LEFT_OUT = {".cache/huggingface", *OF_FILE_SYSTEMS}
_AHEAD = 64  # units in the pool at once: a bounded number of open files
_SECTOR = 512  # st_blocks counts these


class Progress(NamedTuple):
    """How far an indexing is."""

    bytes_done: int
    bytes_total: int
    files_total: int


class _Found(NamedTuple):
    path: str  # inside the model
    source: Path  # the regular file behind it
    info: os.stat_result


class _Unit(NamedTuple):
    """Consecutive chunks of one file, or the whole file."""

    file: int  # index into the found files
    first: int  # chunk index
    chunks: int  # 0: the whole file, for its SHA-256
    offset: int
    nbytes: int


class _Reading:
    """A file that is being hashed: open until its last unit is done."""

    def __init__(self, found: _Found) -> None:
        self.found = found
        self.fd = os.open(found.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.sparse = found.info.st_blocks * _SECTOR < found.info.st_size
        self.lengths: array[int] = array("I")
        self.digests = bytearray()
        self.sha256 = b""
        self.units_left = 0

    def check_unchanged(self) -> None:
        """Refuse a file that changed.

        Raises:
            UsageError: it isn't the file that was found.
        """
        now, before = os.fstat(self.fd), self.found.info
        if _stamp(now) != _stamp(before):
            raise UsageError(
                f"{self.found.path} changed while it was read; run the command again when nothing "
                "writes to it"
            )


def index_directory(
    path: Path,
    *,
    workers: int = 2,
    sha256: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Manifest, dict[str, Path]]:
    """Hash a directory.

    Links to regular files are followed (a Hugging Face snapshot is made of them); empty
    directories leave no trace. Anything else that isn't a regular file is refused by name.

    Args:
        path: the directory.
        workers: hashing threads.
        sha256: compute each file's SHA-256, too. A file is read once more for it, by one thread, since
            SHA-256 knows no order but the file's.
        progress: called in this thread, several times a second for large files.

    Returns:
        The manifest, and for each of its paths the absolute file that holds the bytes.

    Raises:
        UsageError: not a directory, no files, a file of a kind or name that can't be in a
            model, or one that changed while it was read.
        NotFound, NotAllowed: a file can't be opened or read.
    """
    found = sorted(_walk(path), key=lambda f: f.path.encode())
    if not found:
        raise UsageError(f"{path} holds no files; a model needs at least one")
    files = _Indexing(found, progress, sha256=sha256).hash_files(workers)
    try:
        manifest = make_manifest(files)
    except InvalidManifest as error:
        raise UsageError(f"{path} can't be a model: {error}") from None
    return manifest, {f.path: f.source for f in found}


def find_files(path: Path) -> dict[str, Path]:
    """The files that would be hashed: for each path of the model, the file that holds the bytes.

    Raises:
        UsageError, NotFound, NotAllowed: as `index_directory`.
    """
    return {f.path: f.source for f in _walk(path)}


def _walk(root: Path) -> Iterator[_Found]:
    with disk_errors(str(root)):
        if not root.exists():
            raise NotFound(f"{root}: no such directory")
        if not root.is_dir():
            raise UsageError(f"{root} is not a directory; give the directory that holds the model")
        root = root.resolve()
    pending = [""]
    seen = 0
    while pending:
        folder = pending.pop()
        with disk_errors(f"{root / folder}"), os.scandir(root / folder) as entries:
            for entry in entries:
                inside = folder + entry.name
                if entry.name == ".git" or inside in _LEFT_OUT:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{inside}/")
                    continue
                seen += 1
                if seen > MAX_FILES:
                    raise UsageError(f"{root} holds more than {MAX_FILES:,} files")
                yield _file(root, inside, entry)


def _file(root: Path, inside: str, entry: "os.DirEntry[str]") -> _Found:
    try:
        check_path(inside)
    except InvalidManifest as error:
        raise UsageError(f"{error} (in {root}); rename the file") from None
    try:
        info = entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        raise UsageError(
            f"{inside} is a link to nothing; remove it or restore its target"
        ) from None
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"{inside} is {_kind(info.st_mode)}; a model holds only regular files")
    source = Path(entry.path)
    return _Found(inside, source.resolve() if entry.is_symlink() else source, info)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a link to a directory", stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device", stat.S_IFCHR: "a device",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def _stamp(info: os.stat_result) -> tuple[int, int, int, int]:
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


class _Indexing:
    """One run over all files; the calling thread plans, two or more threads hash."""

    def __init__(
        self, found: list[_Found], progress: Callable[[Progress], None] | None, *, sha256: bool
    ) -> None:
        self._found = found
        self._sha256 = sha256
        self._progress = progress
        self._total = sum(f.info.st_size for f in found) * (2 if sha256 else 1)
        self._done = 0
        self._reading: dict[int, _Reading] = {}
        self._files: list[File | None] = [None] * len(found)
        self._zeros: dict[int, bytes] = {}
        self._stop = threading.Event()

    def hash_files(self, workers: int) -> list[File]:
        """Hash all files; in the order found."""
        pending: deque[tuple[_Unit, Future[None]]] = deque()
        with ThreadPoolExecutor(workers, "hash") as pool:
            try:
                for unit in self._units():
                    hashing = self._hash if unit.chunks else self._hash_whole
                    pending.append((unit, pool.submit(hashing, unit)))
                    if len(pending) >= _AHEAD:
                        self._collect(*pending.popleft())
                while pending:
                    self._collect(*pending.popleft())
            finally:
                self._stop.set()
                for _, future in pending:
                    future.cancel()
                pool.shutdown()
                for reading in self._reading.values():
                    os.close(reading.fd)
                self._reading.clear()
        return [f for f in self._files if f is not None]

    def _units(self) -> Iterator[_Unit]:
        for number, found in enumerate(self._found):
            with disk_errors(found.path):
                reading = self._reading[number] = _Reading(found)
                reading.check_unchanged()
                reading.lengths = array("I", _cuts(reading.fd, found))
            reading.digests = bytearray(DIGEST_BYTES * len(reading.lengths))
            units = list(_split(number, reading.lengths))
            if self._sha256:  # first, as it takes longest
                units.insert(0, _Unit(number, 0, 0, 0, found.info.st_size))
            reading.units_left = len(units)
            if not units:
                self._close(number)
            yield from units

    def _hash(self, unit: _Unit) -> None:
        reading = self._reading[unit.file]
        offset = unit.offset
        with disk_errors(reading.found.path):
            for chunk in range(unit.first, unit.first + unit.chunks):
                if self._stop.is_set():
                    return
                length = reading.lengths[chunk]
                if reading.sparse and is_hole(reading.fd, offset, length):
                    digest = self._zero(length)
                else:
                    digest = hash_region(reading.fd, offset, length, blake3()).digest()
                reading.digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES] = digest
                offset += length

    def _hash_whole(self, unit: _Unit) -> None:
        reading, hasher = self._reading[unit.file], hashlib.sha256()
        with disk_errors(reading.found.path):
            for offset in range(0, unit.nbytes, _UNIT_BYTES):
                if self._stop.is_set():
                    return
                length = min(_UNIT_BYTES, unit.nbytes - offset)
                hash_region(reading.fd, offset, length, hasher)
        reading.sha256 = hasher.digest()

    def _zero(self, length: int) -> bytes:
        digest = self._zeros.get(length)
        if digest is None:  # two threads may both compute it: the same value
            digest = self._zeros[length] = blake3(bytes(length)).digest()
        return digest

    def _collect(self, unit: _Unit, future: Future[None]) -> None:
        future.result()
        self._done += unit.nbytes
        reading = self._reading[unit.file]
        reading.units_left -= 1
        if not reading.units_left:
            self._close(unit.file)
        if self._progress is not None:
            self._progress(Progress(self._done, self._total, len(self._found)))

    def _close(self, number: int) -> None:
        reading = self._reading[number]
        with disk_errors(reading.found.path):
            reading.check_unchanged()
        del self._reading[number]
        os.close(reading.fd)
        found = reading.found
        self._files[number] = File(
            found.path,
            found.info.st_size,
            reading.lengths,
            bytes(reading.digests),
            reading.sha256,
        )


def _cuts(fd: int, found: _Found) -> list[int]:
    size = found.info.st_size
    if not found.path.endswith(".safetensors"):
        return cut(size)
    length = safetensors_header_bytes(os.pread(fd, 8, 0), size)
    if length is None:
        return cut(size)
    return cut(size, safetensors_starts(os.pread(fd, length, 8), size))


def _split(number: int, lengths: "array[int]") -> Iterator[_Unit]:
    first, offset, nbytes = 0, 0, 0
    for chunk, length in enumerate(lengths):
        if nbytes and nbytes + length > _UNIT_BYTES:
            yield _Unit(number, first, chunk - first, offset, nbytes)
            first, offset, nbytes = chunk, offset + nbytes, 0
        nbytes += length
    if nbytes:
        yield _Unit(number, first, len(lengths) - first, offset, nbytes)
