"""The missing chunks of a model whose agent is gone for good.

They are read from the origin, proved here and kept in a scratch file.
"""

import os
import tempfile
import threading
from array import array
from itertools import accumulate

from blake3 import blake3

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import IntegrityError, NoSpace, OriginChanged, OriginUnavailable, P2PCacheError
from p2pcache.ids import RunIndex, RunSet
from p2pcache.io.blobs.blob_file import OpenFile
from p2pcache.io.disk.disk import Disk, disk_errors
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.fetch import fetch_run
from p2pcache.io.origins.repo import OriginRepo

# Storage limits each connection, and all nodes of a broken cluster may read at once.
THREADS = 4


class OriginFallback:
    """Reads runs of one model from its origin. Thread-safe. Implements `io.origins.fetch.Target`.

    The scratch file has no name, takes as much disk as was read and vanishes with the object.
    """

    def __init__(self, layout: Layout, url: str) -> None:
        """Open the origin; nothing is read yet.

        Args:
            layout: of the model.
            url: of the origin; credentials come from the environment variables of the storage.

        Raises:
            UsageError, NotFound, OriginUnavailable: the origin can't be opened.
            NoSpace, P2PCacheError: no scratch file (TMPDIR says where).
        """
        self.layout = layout
        self.bytes_origin = 0
        self._repo = OriginRepo(open_origin(url))
        self._offsets: array[int] = array("Q", accumulate(layout.lengths, initial=0))
        self._have = bytearray(layout.chunk_count)
        self._disk = Disk()
        with disk_errors(f"scratch file in {tempfile.gettempdir()}"):
            with tempfile.TemporaryFile() as file:
                self._file = OpenFile(os.dup(file.fileno()))
            os.ftruncate(self._file.fd, self._offsets[-1])
        self._requested: RunSet = 0
        self._queue: list[RunIndex] = []
        self._changed = threading.Condition()
        self._closed = False
        self.error: P2PCacheError | None = None
        for number in range(THREADS):
            threading.Thread(
                target=self._work, name=f"p2pcache-origin-{number}", daemon=True
            ).start()

    def request_runs(self, runs: RunSet) -> None:
        """Read these runs; the runs of the last request come first. Returns at once."""
        with self._changed:
            fresh = runs & ~self._requested
            if fresh:
                self._requested |= fresh
                self._queue[:0] = bitset.members(fresh)
                self._changed.notify_all()

    def has_run(self, run: RunIndex) -> bool:
        """Whether the run's chunks are here and proved."""
        return all(self._have[chunk] for chunk in self.layout.run_chunks(run))

    def read_chunk(self, chunk: int, start: int, into: memoryview) -> None:
        """Fill a buffer from a chunk that is here.

        Args:
            chunk: its number in the layout.
            start: byte offset in the chunk.
            into: the buffer.

        Raises:
            IntegrityError, P2PCacheError: the scratch file can't be read.
        """
        with disk_errors("scratch file"):
            done = 0
            while done < len(into):
                got = os.preadv(self._file.fd, [into[done:]], self._offsets[chunk] + start + done)
                if got == 0:
                    raise IntegrityError("the scratch file became shorter")
                done += got

    def close(self) -> None:
        """Stop the threads, each after the read that it is in."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- io.origins.fetch.Target -------------------------------------------------------------------

    def missing_chunks(self, run: RunIndex) -> list[int]:
        """See `Target.missing_chunks`."""
        return [chunk for chunk in self.layout.run_chunks(run) if not self._have[chunk]]

    def begin(self, chunk: int) -> "_Writer | None":
        """See `Target.begin`."""
        return None if self._have[chunk] else _Writer(self, chunk)

    def write(self, chunk: int, offset: int, data: memoryview) -> None:
        """Write bytes at an offset of a chunk that isn't proved yet."""
        self._disk.write_at(self._file.fd, data, self._offsets[chunk] + offset)

    def prove(self, chunk: int, digest: bytes) -> bool:
        """Whether the digest of a written chunk is the manifest's; then the chunk is readable."""
        if digest != self.layout.digest_of_chunk(chunk):
            return False
        self._have[chunk] = 1
        return True

    # -- threads -----------------------------------------------------------------------------------

    def _work(self) -> None:
        while (run := self._next_run()) is not None:
            why: list[P2PCacheError] = []
            outcome = fetch_run(
                self._repo, self.layout, self, run, on_bytes=self._count, cancelled=self._is_ended,
                on_trouble=why.append,
            )  # fmt: skip
            with self._changed:
                if outcome is not Outcome.DONE and self.error is None and not self._closed:
                    self.error = _error(outcome, self._repo.url, why)
                self._changed.notify_all()

    def _next_run(self) -> RunIndex | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_ended())
            return None if self._is_ended() else self._queue.pop(0)

    def _is_ended(self) -> bool:
        return self._closed or self.error is not None

    def _count(self, nbytes: int) -> None:
        with self._changed:
            self.bytes_origin += nbytes


class _Writer:
    """One stream of one chunk. Two streams of one chunk write the same bytes, or fail their proof."""

    def __init__(self, fallback: OriginFallback, chunk: int) -> None:
        self._owner = fallback
        self._chunk = chunk
        self._hasher = blake3()

    def update(self, data: memoryview) -> None:
        self._hasher.update(data)

    def put(self, offset: int, data: memoryview) -> None:
        self._owner.write(self._chunk, offset, data)

    def finish(self) -> bool:
        return self._owner.prove(self._chunk, self._hasher.digest())

    def abort(self) -> None:
        pass


def _error(outcome: Outcome, url: str, why: list[P2PCacheError]) -> P2PCacheError:
    if outcome is Outcome.UNAVAILABLE and why:
        return type(why[-1])(f"{why[-1]}; start the node's agent again and load again")
    if outcome is Outcome.MISMATCH:
        return OriginChanged(
            f"the bytes at {url} aren't what was pushed; push the model again with --repair"
        )
    if outcome is Outcome.FAILED:
        return NoSpace(
            f"the scratch file in {tempfile.gettempdir()} can't be written; free some space, or set TMPDIR"
        )
    return OriginUnavailable(f"{url} doesn't answer; start the node's agent again and load again")
