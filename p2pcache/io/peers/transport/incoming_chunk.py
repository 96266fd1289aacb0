"""Incoming chunks: received by one thread, hashed and written by another, then proved."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import P2PCacheError
from p2pcache.io.peers.protocol.ports import ChunkStore, ChunkWriter
from p2pcache.io.peers.transport.workers import Slice, Workers

INLINE_BYTES = 64 << 10  # below this, handing bytes to another thread costs more than storing them
# A whole chunk up to this size is stored by the receiving thread: it costs less CPU and is quicker
# (docs/lab/0017-hash-beside-the-receiver.md).
INLINE_CHUNK_BYTES = 256 << 10

_log = logging.getLogger(__name__)


class ExpectedChunks:
    """The chunks that a REQUEST on the wire will bring, as the receiving thread sees it."""

    __slots__ = ("began", "dropped", "end", "layout", "next", "on_chunk", "store", "stream")

    def __init__(
        self,
        stream: int,
        chunks: range,
        layout: Layout,
        store: ChunkStore,
        on_chunk: Callable[[Outcome, int], None],
    ) -> None:
        """Expect `chunks` in order.

        Args:
            stream: the requester's number for the model on this connection.
            chunks: the requested chunks.
            layout: of the model.
            store: takes the chunks.
            on_chunk: called on a worker thread with how each chunk ended, and its bytes.
        """
        self.stream = stream
        self.next = chunks.start
        self.end = chunks.stop
        self.layout = layout
        self.store = store
        self.on_chunk = on_chunk
        self.began = 0.0  # when the answer began, monotonic seconds
        self.dropped = False  # cancelled: DATA that still comes is read and discarded


class IncomingChunk:
    """One DATA frame being received.

    The receiving thread only receives, unless there is very little to store. Another thread hashes and
    writes, one at a time and in stream order. So a single connection uses two cores, and the next chunk
    is on its way meanwhile. The thread that finishes last proves the chunk.
    """

    __slots__ = (
        "_incoming", "_length", "_lock", "_offset", "_parts", "_shares", "_small", "_verdict", "_working",
        "_writer", "_writers", "remaining",
    )  # fmt: skip

    def __init__(self, incoming: ExpectedChunks, chunk: int, length: int, writers: Workers) -> None:
        self.remaining = length
        self._incoming = incoming
        self._length = length
        self._small = length <= INLINE_CHUNK_BYTES
        self._writers = writers
        self._offset = 0
        self._parts: deque[tuple[int, memoryview, Slice]] = deque()  # received, not yet stored
        self._lock = threading.Lock()
        self._working = False  # a writing thread works at the parts, or is about to
        self._shares = 1  # the receiving thread's own, and one while `_working`
        self._verdict = Outcome.DONE
        self._writer: ChunkWriter | None = None
        if not incoming.began:
            incoming.began = time.monotonic()
        if incoming.dropped:
            return
        try:
            self._writer = incoming.store.begin(chunk)
        except (P2PCacheError, OSError) as error:
            self._fail(error)

    def feed(self, part: memoryview, held: Slice) -> None:
        """The next bytes of the payload, which lie in `held`; never more than `remaining`."""
        if self._incoming.dropped and self._verdict is Outcome.DONE:
            self._verdict = Outcome.CANCELLED
        if self._writer is not None:
            self._take(part, held)
        self._offset += len(part)
        self.remaining -= len(part)
        if not self.remaining:
            self._share_done()

    def abandon(self) -> None:
        """The connection is gone in the middle of the payload."""
        self._verdict = Outcome.CANCELLED
        self._share_done()

    def _take(self, part: memoryview, held: Slice) -> None:
        with self._lock:
            idle = not self._working
            inline = idle and (self._small or len(part) < INLINE_BYTES)
            if not inline:
                held.hold()
                self._parts.append((self._offset, part, held))
                if idle:
                    self._working = True
                    self._shares += 1
        if inline:
            self._store(self._offset, part)
        elif idle:
            self._writers.submit(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._parts:
                    self._working = False
                    break
                offset, part, held = self._parts.popleft()
            try:
                self._store(offset, part)
            finally:
                held.release()
        self._share_done()

    def _store(self, offset: int, part: memoryview) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            if self._verdict is Outcome.DONE:
                writer.update(part)
                writer.put(offset, part)
            else:  # release the chunk now: the rest of the payload may take long
                self._writer = None
                writer.abort()
        except (P2PCacheError, OSError) as error:
            self._fail(error)

    def _share_done(self) -> None:
        with self._lock:
            self._shares -= 1
            if self._shares:
                return
        verdict = self._settle()
        self._incoming.on_chunk(verdict, self._length)

    def _settle(self) -> Outcome:
        writer, self._writer = self._writer, None
        if writer is None:  # proved before it came, or never begun
            return self._verdict
        try:
            if self._verdict is not Outcome.DONE:
                writer.abort()
            elif not writer.finish():
                self._verdict = Outcome.MISMATCH
        except (P2PCacheError, OSError) as error:
            self._fail(error)
        return self._verdict

    def _fail(self, error: Exception) -> None:
        _log.warning("a received chunk can't be stored: %s", error)
        self._verdict = Outcome.FAILED
