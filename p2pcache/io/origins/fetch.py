"""Reading one leased run from the origin into the cache, proved chunk by chunk."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import IntegrityError, NotFound, P2PCacheError
from p2pcache.ids import RunIndex
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.retry import Abandoned, never

log = logging.getLogger(__name__)

# Received, hashed and written at once: 32 MiB for 64 readers, and BLAKE3 at its speed.
SLICE_BYTES = 512 * 1024

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


class Limiter(Protocol):
    """A cap on bandwidth."""

    def take(self, nbytes: int, /) -> None:
        """Count bytes and sleep until they are paid for."""


class _Mismatch(Exception):
    """Becomes MISMATCH in `fetch_run`."""


class _StoreFailed(Exception):
    """Becomes FAILED in `fetch_run`."""


@dataclass(slots=True)
class _Read:
    """Arguments of one `fetch_run`."""

    repo: OriginRepo
    layout: Layout
    store: Target
    on_bytes: Callable[[int], None]
    cancelled: Callable[[], bool]
    limiter: Limiter | None


def _ignore(_why: object) -> None:
    """A callback that does nothing."""


def fetch_run(
    repo: OriginRepo,
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
    """Read the missing chunks of one run: one ranged GET per contiguous piece of a blob.

    Truncated bodies, resets, stalls and 503 are tried again inside, only for the bytes that are
    still missing. A chunk that doesn't match is read once more, then given up. Blocking.

    Args:
        repo: where from.
        layout: the model's tables.
        store: where to.
        run: index of the run.
        on_bytes: called with bytes read from the origin, as they come.
        cancelled: called between slices and between retries.
        limiter: cap on the origin's bandwidth.
        on_wrong: called with the reason of a MISMATCH.
        on_trouble: called with the error behind UNAVAILABLE: a refusal, or a passing one (retryable).

    Returns:
        DONE, MISMATCH (the origin's bytes aren't what was pushed, or are gone), UNAVAILABLE,
        CANCELLED, or FAILED (our own disk).
    """
    read = _Read(repo, layout, store, on_bytes, cancelled, limiter)
    try:
        for chunks in _pieces(layout, store.missing_chunks(run)):
            _fetch_piece(read, chunks)
    except Abandoned:
        return Outcome.CANCELLED
    except (_Mismatch, NotFound, IntegrityError) as error:
        log.error("run %d of blake3:%s: the origin changed: %s", run, layout.digest, error)
        on_wrong(str(error))
        return Outcome.MISMATCH
    except _StoreFailed as error:
        log.error("run %d of blake3:%s can't be stored: %s", run, layout.digest, error)
        return Outcome.FAILED
    except P2PCacheError as error:
        log.warning("run %d of blake3:%s can't be read: %s", run, layout.digest, error)
        on_trouble(error)
        return Outcome.UNAVAILABLE
    return Outcome.DONE


def _pieces(layout: Layout, chunks: Iterable[int]) -> Iterator[list[int]]:
    """Chunks whose first places lie one after the other in one blob."""
    piece: list[int] = []
    expected: tuple[int, int] | None = None
    for chunk in chunks:
        place = layout.first_place(chunk)
        if piece and (place.blob, place.offset) != expected:
            yield piece
            piece = []
        piece.append(chunk)
        expected = (place.blob, place.offset + layout.lengths[chunk])
    if piece:
        yield piece


def _fetch_piece(read: _Read, chunks: list[int]) -> None:
    with _open(read, chunks) as body:
        bad = [chunk for chunk in chunks if not _receive(read, body, chunk)]
    for chunk in bad:  # a second read tells damage on the way from damage at the origin
        with _open(read, [chunk]) as body:
            if not _receive(read, body, chunk):
                blob = read.layout.blobs[read.layout.first_place(chunk).blob].id
                raise _Mismatch(f"chunk {chunk} of blob {blob} doesn't match its digest, twice")


def _open(read: _Read, chunks: list[int]) -> Body:
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
