"""Reading leased runs from the origin into the cache, proved chunk by chunk."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import IntegrityError, NotFound, P2PCacheError
from p2pcache.ids import RunIndex
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.retry import Abandoned, never

log = logging.getLogger(__name__)

# Received, hashed and written at once: at most 64 MiB for 64 readers. Half as much costs a tenth more processor time
# (docs/lab/0064): each step of a slice waits for the interpreter's lock.
SLICE_BYTES = 1 << 20

_buffers = threading.local()  # one reused slice buffer per worker thread


class Writer(Protocol):
    """One incoming stream of one chunk (`p2pcache.io.blobs.chunk_writer.ChunkWriter`)."""

    def update(self, data: memoryview) -> None:
        """Hash, in stream order."""

    def put(self, offset: int, data: memoryview) -> None:
        """Write at an offset within the chunk."""

    def finish(self) -> bool:
        """Whether the chunk is proved now."""

    def abort(self) -> None:
        """Give the stream up."""


class Target(Protocol):
    """Takes the chunks (`p2pcache.io.models.model_chunks.ModelStore`)."""

    def missing_chunks(self, run: RunIndex) -> list[int]:
        """Chunks of the run that aren't proved yet, in order."""

    def begin(self, chunk: int) -> Writer | None:
        """A stream for one chunk; None when it is proved already."""


class BlobReader(Protocol):
    """Where the bytes come from (`p2pcache.io.origins.repo.OriginRepo`)."""

    def open_blob(
        self, blob: str, start: int, length: int, cancelled: Callable[[], bool], /
    ) -> Body:
        """Read a range of a blob; retries until it is complete, final or cancelled."""


class Limiter(Protocol):
    """A cap on bandwidth."""

    def take(self, nbytes: int, /) -> None:
        """Count bytes and sleep until they are paid for."""


class _Mismatch(Exception):
    """Becomes MISMATCH in `fetch_runs`."""


class _StoreFailed(Exception):
    """Becomes FAILED in `fetch_runs`."""


@dataclass(slots=True)
class _Read:
    """Arguments of one `fetch_runs`."""

    repo: BlobReader
    layout: Layout
    store: Target
    on_bytes: Callable[[int], None]
    cancelled: Callable[[], bool]  # whether the run that is being read is
    limiter: Limiter | None
    on_begin: Callable[[], None]
    begun: bool = False


def _nothing() -> None:
    """A callback that does nothing."""


def _ignore(_why: object) -> None:
    """A callback that does nothing."""


def fetch_run(
    repo: BlobReader,
    layout: Layout,
    store: Target,
    run: RunIndex,
    *,
    on_bytes: Callable[[int], None],
    cancelled: Callable[[], bool] = never,
    limiter: Limiter | None = None,
    on_wrong: Callable[[str], None] = _ignore,
    on_trouble: Callable[[P2PCacheError], None] = _ignore,
) -> Outcome:
    """Read the missing chunks of one run; returns how it ended. As `fetch_runs`."""
    ended: list[Outcome] = []
    fetch_runs(
        repo, layout, store, [run],
        on_ended=lambda _run, outcome: ended.append(outcome), on_bytes=on_bytes,
        cancelled=lambda _run: cancelled(), limiter=limiter,
        on_wrong=lambda _run, why: on_wrong(why), on_trouble=on_trouble,
    )  # fmt: skip
    return ended[0]


def fetch_runs(
    repo: BlobReader,
    layout: Layout,
    store: Target,
    runs: Sequence[RunIndex],
    *,
    on_ended: Callable[[RunIndex, Outcome], None],
    cancelled: Callable[[RunIndex], bool],
    on_bytes: Callable[[int], None] = _ignore,
    on_begin: Callable[[], None] = _nothing,
    limiter: Limiter | None = None,
    on_wrong: Callable[[RunIndex, str], None],
    on_trouble: Callable[[P2PCacheError], None] = _ignore,
) -> None:
    """Read the missing chunks of some runs: one ranged GET per contiguous piece of a blob. Blocking.

    Each run is proved, and ends, by itself and in order. Truncated bodies, resets, stalls and 503 are tried
    again inside, only for the bytes that are still missing. A chunk that doesn't match is read once more, then
    given up. When storage or the disk fails for good, the runs that remain end like the one that was read.

    Args:
        repo: where from.
        layout: the model's tables.
        store: where to.
        runs: indices of runs; consecutive ones whose chunks lie side by side share a request.
        on_ended: called once for each run with DONE, MISMATCH (the origin's bytes aren't what was pushed, or
            are gone), UNAVAILABLE, CANCELLED, or FAILED (our own disk).
        cancelled: whether a run isn't wanted any more; called between slices and between retries.
        on_bytes: called with bytes read from the origin, as they come.
        on_begin: called once, when the first bytes of the request have come.
        limiter: cap on the origin's bandwidth.
        on_wrong: called with the reason of a MISMATCH, before `on_ended`.
        on_trouble: called with the error behind UNAVAILABLE: a refusal, or a passing one (retryable).
    """
    parts = [(run, store.missing_chunks(run)) for run in runs]
    current = runs[0]
    read = _Read(repo, layout, store, on_bytes, lambda: cancelled(current), limiter, on_begin)
    stream = _Stream(read, [chunk for _, chunks in parts for chunk in chunks])
    last: Outcome | None = None  # of the run that ended it for all
    try:
        for run, chunks in parts:
            current = run
            outcome = last
            if outcome is None:
                outcome = _fetch_part(stream, run, chunks, on_wrong, on_trouble)
            elif cancelled(run):
                outcome = Outcome.CANCELLED
            if outcome in (Outcome.UNAVAILABLE, Outcome.FAILED):
                last = outcome
            on_ended(run, outcome)
    finally:
        stream.close()


def _fetch_part(
    stream: "_Stream",
    run: RunIndex,
    chunks: Sequence[int],
    on_wrong: Callable[[RunIndex, str], None],
    on_trouble: Callable[[P2PCacheError], None],
) -> Outcome:
    """Read one run of a stream."""
    digest = stream.read.layout.digest
    try:
        stream.receive(chunks)
    except Abandoned:
        return Outcome.CANCELLED
    except (_Mismatch, NotFound, IntegrityError) as error:
        log.error("run %d of blake3:%s: the origin changed: %s", run, digest, error)
        on_wrong(run, str(error))
        return Outcome.MISMATCH
    except _StoreFailed as error:
        log.error("run %d of blake3:%s can't be stored: %s", run, digest, error)
        return Outcome.FAILED
    except P2PCacheError as error:
        log.warning("run %d of blake3:%s can't be read: %s", run, digest, error)
        on_trouble(error)
        return Outcome.UNAVAILABLE
    return Outcome.DONE


class _Stream:
    """Chunks in order, and the open request that brings the next ones."""

    def __init__(self, read: _Read, chunks: Sequence[int]) -> None:
        self.read = read
        self._chunks = chunks
        self._next = 0  # index of the chunk that comes next
        self._body: Body | None = None
        self._body_next = 0  # index of the chunk at which the body stands ..
        self._body_end = 0  # .. and of the one behind its last

    def receive(self, chunks: Sequence[int]) -> None:
        """Move the next chunks, which are these, to the store; after an error none of them comes any more."""
        first, self._next = self._next, self._next + len(chunks)
        try:
            bad = [
                self._chunks[index] for index in range(first, self._next) if not self._one(index)
            ]
            for chunk in bad:  # a second read tells damage on the way from damage at the origin
                with _open(self.read, [chunk]) as body:
                    if not _receive(self.read, body, chunk):
                        blob = self.read.layout.blobs[self.read.layout.first_place(chunk).blob].id
                        raise _Mismatch(
                            f"chunk {chunk} of blob {blob} doesn't match its digest, twice"
                        )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the open request."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def _one(self, index: int) -> bool:
        if self._body is None or self._body_next != index or index == self._body_end:
            self.close()
            self._body_end = self._piece_end(index)
            self._body = _open(self.read, self._chunks[index : self._body_end])
        self._body_next = index + 1
        good = _receive(self.read, self._body, self._chunks[index])
        if self._body_next == self._body_end:
            self.close()
        return good

    def _piece_end(self, index: int) -> int:
        """Behind the last chunk whose first place lies right behind those before it, in one blob."""
        layout = self.read.layout
        blob, offset = layout.first_place(self._chunks[index])
        while index < len(self._chunks) and layout.first_place(self._chunks[index]) == (
            blob,
            offset,
        ):
            offset += layout.lengths[self._chunks[index]]
            index += 1
        return index


def _open(read: _Read, chunks: Sequence[int]) -> Body:
    place = read.layout.first_place(chunks[0])
    length = sum(read.layout.lengths[chunk] for chunk in chunks)
    blob = read.layout.blobs[place.blob].id
    return read.repo.open_blob(blob, place.offset, length, read.cancelled)


def _receive(read: _Read, body: Body, chunk: int) -> bool:
    """Move one chunk from the body to the store; False: its bytes don't match."""
    stored = _Stored(read.store, chunk)
    length = read.layout.lengths[chunk]
    buffer = _slice_buffer()
    offset = 0
    try:
        while offset < length:
            view = buffer[: min(SLICE_BYTES, length - offset)]
            _fill(read, body, view)
            stored.put(offset, view)
            offset += len(view)
        return stored.finish()
    finally:
        stored.abort()


def _fill(read: _Read, body: Body, view: memoryview) -> None:
    """Fill the whole view: hashing and writing small short reads costs more than waiting."""
    done = 0
    while done < len(view):
        if read.cancelled():
            raise Abandoned("cancelled")
        count = body.readinto(view[done:])
        if not read.begun:
            read.begun = True
            read.on_begin()
        assert count > 0, "a body ends when its range does"
        done += count
    read.on_bytes(done)
    if read.limiter is not None:
        read.limiter.take(done)


class _Stored:
    """A chunk's writer, whose errors are kept apart from the origin's."""

    def __init__(self, store: Target, chunk: int) -> None:
        self._writer: Writer | None = None
        try:
            self._writer = store.begin(chunk)
        except (OSError, P2PCacheError) as error:
            raise _StoreFailed(str(error)) from error

    def put(self, offset: int, view: memoryview) -> None:
        if self._writer is not None:  # None: proved meanwhile by another writer
            self._writer.update(view)
            try:
                self._writer.put(offset, view)
            except (OSError, P2PCacheError) as error:
                raise _StoreFailed(str(error)) from error

    def finish(self) -> bool:
        if self._writer is None:
            return True
        writer, self._writer = self._writer, None
        try:
            return writer.finish()
        except (OSError, P2PCacheError) as error:
            raise _StoreFailed(str(error)) from error

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def _slice_buffer() -> memoryview:
    buffer: memoryview | None = getattr(_buffers, "slice", None)
    if buffer is None:
        buffer = _buffers.slice = memoryview(bytearray(SLICE_BYTES))
    return buffer
