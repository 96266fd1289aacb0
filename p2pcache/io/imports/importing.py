"""Reading the files of a source once: hashed, compared with what the source states, and kept if they are wanted.

Files are read side by side, each in order and by one thread with one reused buffer, so memory stays flat whatever the
sizes. An import that was killed goes on with the files that it lacks, and in the middle of those whose bytes it keeps.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.format.chunking import MiB
from p2pcache.core.format.manifest import File
from p2pcache.core.format.source_record import BlobPlace, SourceRecord, make_record
from p2pcache.errors import IntegrityError, OriginUnavailable
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.imports.file_hasher import FileHasher
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.fetch import Limiter
from p2pcache.io.origins.retry import Abandoned, never
from p2pcache.io.sources.base import NoRanges, SourceFile
from p2pcache.io.sources.source import Source

READERS = 8  # files at once: one connection to storage is slow, and hubs dislike more
PIECE_BYTES = 1 * MiB  # received, hashed and written at once
SLOW_S = 300.0  # for a piece: a source that sends 3.5 KB/s would hold the others up for days
# What a kill costs at most, of each file: so many bytes, or what comes in so long from a slow source.
DURABLE_BYTES = 256 * MiB
DURABLE_S = 10.0


class Progress(NamedTuple):
    """How far an import is."""

    bytes_done: int  # hashed, by this try or an earlier one
    bytes_read: int  # from the source, by this try
    bytes_total: int
    files_total: int


class Importing:
    """One try of an import. `read_files` may be called once."""

    def __init__(
        self,
        source: Source,
        files: Sequence[SourceFile],
        folder: ImportFolder,
        *,
        keep: bool,
        limiter: Limiter | None = None,
        cancelled: Callable[[], bool] = never,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: where from.
            files: which, as the source listed them.
            folder: what is done already, and where the bytes are kept.
            keep: keep the bytes.
            limiter: cap on the bandwidth.
            cancelled: whether nobody wants it any more; called on threads.
        """
        self._source = source
        self._files = files
        self._folder = folder
        self._keep = keep
        self._limiter = limiter
        self._cancelled = cancelled
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._done = self._read = 0

    @property
    def progress(self) -> Progress:
        """How far it is; on any thread."""
        total = sum(file.size for file in self._files)
        return Progress(self._done, self._read, total, len(self._files))

    def read_files(self) -> list[File]:
        """Read what is missing; the hashes of all files, in the order of `files`.

        Raises:
            OriginChanged: a file isn't any more what was listed.
            IntegrityError: a file's bytes aren't those that the source states.
            Abandoned: it was cancelled.
            P2PCacheError: the source or the disk failed.
        """
        with ThreadPoolExecutor(READERS, thread_name_prefix="import") as pool:
            buffers = threading.local()
            futures = [pool.submit(self._one, file, buffers) for file in self._files]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            finally:
                self._failed.set()
                pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]

    def _one(self, file: SourceFile, buffers: threading.local) -> File:
        known = self._folder.whole(file)
        part = self._folder.part(file.path)
        if known is not None and (not self._keep or _has(part, file.size)):
            self._count(file.size, 0)
            return known
        if self._stopped():
            raise Abandoned("the import was cancelled")
        if not hasattr(buffers, "piece"):
            buffers.piece = memoryview(bytearray(PIECE_BYTES))
        if self._keep:
            with disk_errors(str(part)):
                fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                hashed = self._receive(file, buffers.piece, fd)
            finally:
                os.close(fd)
        else:
            hashed = self._receive(file, buffers.piece, None)
        if file.sha256 and hashed.sha256 != file.sha256:
            self._folder.begin_anew(file)
            raise IntegrityError(
                f"{file.key}: the bytes that came have another SHA-256 than {self._source.reader.url} states; import "
                "again, and if it stays so, ask who keeps the source"
            )
        self._folder.on_whole(file, hashed)
        return hashed

    def _receive(self, file: SourceFile, piece: memoryview, fd: int | None) -> File:
        """Bring a file's bytes to the hasher and the part, those first that an earlier try made durable."""
        hasher = FileHasher(file.path, file.size, sha256=bool(file.sha256))
        offset = 0 if fd is None else self._again(file, hasher, piece, fd)
        self._count(offset, 0)
        try:
            self._receive_rest(file, hasher, piece, fd, offset)
        except NoRanges as error:
            if not offset:  # the whole file was asked for first, and then its rest
                raise OriginUnavailable(
                    f"{error}, and the connection broke in its middle; import again: this file begins anew"
                ) from None
            # The durable bytes are of no use where a file comes from its begin on.
            self._count(-offset, 0)
            self._folder.on_durable(file, 0)
            return self._receive(file, piece, fd)
        return hasher.file()

    def _receive_rest(
        self, file: SourceFile, hasher: FileHasher, piece: memoryview, fd: int | None, offset: int
    ) -> None:
        """Bring a file's bytes from `offset` on, in order."""
        if offset == file.size:
            return
        noted, noted_at = offset, time.monotonic()
        with self._source.open_file(file, offset, file.size - offset, self._stopped) as body:
            while offset < file.size:
                view = piece[: min(len(piece), file.size - offset)]
                self._fill(body, view)
                hasher.update(view)
                if fd is not None:
                    _write(fd, view, offset)
                offset += len(view)
                self._count(len(view), len(view))
                due = offset - noted >= DURABLE_BYTES or time.monotonic() - noted_at >= DURABLE_S
                if fd is not None and due and offset < file.size:
                    _sync(fd)
                    self._folder.on_durable(file, offset)
                    noted, noted_at = offset, time.monotonic()
        if fd is not None:
            _sync(fd)

    def _again(self, file: SourceFile, hasher: FileHasher, piece: memoryview, fd: int) -> int:
        """Hash what an earlier try made durable; returns how many bytes that were."""
        durable = self._folder.durable(file)
        with disk_errors(file.path):
            if durable > os.fstat(fd).st_size:
                durable = 0
            os.ftruncate(fd, durable)
            offset = 0
            while offset < durable:
                if self._stopped():
                    raise Abandoned("the import was cancelled")
                count = os.preadv(fd, [piece[: min(len(piece), durable - offset)]], offset)
                if not count:
                    raise OriginUnavailable(f"the kept part of {file.path} ended; import again")
                hasher.update(piece[:count])
                offset += count
        return durable

    def _fill(self, body: Body, view: memoryview) -> None:
        done, end = 0, time.monotonic() + SLOW_S
        while done < len(view):
            if self._stopped():
                raise Abandoned("the import was cancelled")
            if time.monotonic() > end:
                raise OriginUnavailable(
                    f"{self._source.reader.url} sends less than 1 MiB in {SLOW_S:.0f} s; import again later"
                )
            count = body.readinto(view[done:])
            if not count:
                raise OriginUnavailable(f"a file of {self._source.reader.url} ended early")
            done += count
        if self._limiter is not None:
            self._limiter.take(done)

    def _stopped(self) -> bool:
        return self._failed.is_set() or self._cancelled()

    def _count(self, done: int, read: int) -> None:
        with self._lock:
            self._done += done
            self._read += read


def record_of(source: Source, files: Sequence[SourceFile], hashed: Sequence[File]) -> SourceRecord:
    """Where the blobs of an imported model lie; empty files are nowhere, since nobody reads them."""
    places: dict[str, list[BlobPlace]] = {}
    for file, one in zip(files, hashed, strict=True):
        if one.size:
            places.setdefault(one.blob_id, [BlobPlace(source.name, file.key, file.validator)])
    return make_record(places)


def _has(part: Path, size: int) -> bool:
    try:
        return part.stat().st_size == size
    except OSError:
        return False


def _write(fd: int, view: memoryview, offset: int) -> None:
    with disk_errors("the kept part of an import"):
        while view:
            count = os.pwrite(fd, view, offset)
            view, offset = view[count:], offset + count


def _sync(fd: int) -> None:
    with disk_errors("the kept part of an import"):
        os.fdatasync(fd)
