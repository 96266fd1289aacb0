"""Serving chunks: admitted requests go to upload threads, payload goes out by sendfile."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from math import inf

from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.upload_queue import UploadQueue
from p2pcache.errors import P2PCacheError
from p2pcache.io.disk.region_hash import OF_DISKS
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.peers.protocol.ports import ChunkSource, ChunkStore
from p2pcache.io.peers.protocol.wire import data_header
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import Inbox, Workers

_log = logging.getLogger(__name__)

# Lines at INFO about chunks that can't be served are at least this far apart: while a large file is proved again, all
# neighbours ask for all that it holds, several times a second.
UNSERVED_EACH_S = 10.0


class Upload:
    """One admitted REQUEST."""

    __slots__ = (
        "cancelled",
        "chunks",
        "connection",
        "number",
        "on_ended",
        "on_recall",
        "sent_bytes",
        "store",
        "stream",
    )

    def __init__(
        self,
        connection: Connection,
        stream: int,
        number: int,
        chunks: range,
        store: ChunkStore,
        on_ended: Callable[["Upload", str], None],
        on_recall: Callable[["Upload", int], None],
    ) -> None:
        """Nothing is sent yet.

        Args:
            connection: the requester's.
            stream: its number for the model.
            number: its number for the request.
            chunks: to send, in order.
            store: has the chunks.
            on_ended: called once on the loop's thread; the text says why chunks are left unsent,
                "" if none are.
            on_recall: called on the loop's thread, with the load to tell, when the request was
                answered BUSY and a slot is free, or others are served.
        """
        self.connection = connection
        self.stream = stream
        self.number = number
        self.chunks = chunks
        self.store = store
        self.on_ended = on_ended
        self.on_recall = on_recall
        self.cancelled = False
        self.sent_bytes = 0


class Uploads:
    """The upload slots of this node, over all its connections."""

    def __init__(self, settings: UploadSettings, inbox: Inbox, up: TokenBucket) -> None:
        """Start the threads.

        Args:
            settings: the slots.
            inbox: the way to the loop.
            up: rate of sent bytes.
        """
        self._queue: UploadQueue[Upload] = UploadQueue(settings)
        # One for each upload that the queue may start: a slow peer's upload must not hold another's thread.
        self._workers = Workers(2 * settings.slots, "upload")
        self._inbox = inbox
        self._up = up
        self._unserved_at = -inf  # the last line at INFO
        self.idle = asyncio.Event()  # nothing is active or waiting
        self.idle.set()

    @property
    def load(self) -> int:
        """Uploads active and waiting."""
        return self._queue.load

    @property
    def told_load(self) -> int:
        """The load as neighbours are told it."""
        return self._queue.told_load

    def limit_slots(self, slots: int) -> None:
        """Limit the uploads at once to `slots`, and to the settings."""
        self._queue.limit_slots(slots)
        self._start()
        self._offer_room()

    def offer(self, upload: Upload, priority: Priority = Priority.USUAL) -> bool:
        """Admit a request to the queue; False: answer BUSY. See `UploadQueue.offer`."""
        self._queue.mark_slow_receivers(time.monotonic())
        if not self._queue.offer(upload.connection.serial, upload, priority):
            return False
        self.idle.clear()
        self._start()
        return True

    def cancel_upload(self, upload: Upload) -> None:
        """Stop an upload at the next frame boundary; it still ends."""
        upload.cancelled = True
        if self._queue.cancel_waiting(upload.connection.serial, upload):
            self._over(upload, "cancelled")

    def on_connection_closed(self, connection: Connection) -> None:
        """End the waiting uploads of a connection. Its active ones end by themselves."""
        for upload in self._queue.on_peer_gone(connection.serial):
            self._over(upload, "the connection is gone")

    def close(self) -> None:
        """Answer BUSY from now on."""
        self._queue.close()

    def stop(self) -> None:
        """End the threads (blocks); every connection is closed already."""
        self._workers.stop()

    def _start(self) -> None:
        while (begun := self._queue.start_next()) is not None:
            upload = begun[1]
            upload.connection.uploading = True
            self._workers.submit(lambda upload=upload: self._serve(upload))  # type: ignore[misc]
        self._queue.mark_slow_receivers(time.monotonic())

    def _on_ended(self, upload: Upload, left: str, took_s: float) -> None:
        connection = upload.connection
        connection.uploading = False
        done_s = None if left else took_s
        self._queue.on_upload_ended(connection.serial, upload, done_s, upload.sent_bytes)
        self._queue.mark_slow_receivers(time.monotonic())
        self._over(upload, left)
        if connection.backlog:
            connection.flush()  # frames that were queued while the thread held the write side
        self._start()
        self._offer_room()

    def _offer_room(self) -> None:
        for refused, load in self._queue.recall(time.monotonic()):
            refused.on_recall(refused, load)

    def _over(self, upload: Upload, left: str) -> None:
        if not self._queue.load:
            self.idle.set()
        upload.on_ended(upload, left)

    # -- upload threads --------------------------------------------------------------------------

    def _serve(self, upload: Upload) -> None:
        connection = upload.connection
        left = "the connection is gone"
        began = time.monotonic()
        if connection.hold():
            try:
                with connection.writing:
                    left = self._send_all(upload)
                connection.wait_sent()
            except TimeoutError:
                self._inbox.post(connection.close, Outcome.STALLED, "stalled: it doesn't read")
            except OSError as error:
                self._inbox.post(connection.close, Outcome.LOST, str(error))
            finally:
                connection.release()
        self._inbox.post(self._on_ended, upload, left, time.monotonic() - began)

    def _send_all(self, upload: Upload) -> str:
        connection = upload.connection
        for chunk in upload.chunks:
            connection.drain()  # control frames go between DATA frames
            if upload.cancelled:
                return "cancelled"
            try:
                source = upload.store.source(chunk)
                os.pread(
                    source.fd, 1, source.offset
                )  # after the header a refusal would cost the connection
            except P2PCacheError as error:
                self._log_unserved(chunk, error)
                return "not here any more"
            except OSError as error:
                _doubt(upload, chunk, error)
                return "it can't be read here"
            try:
                self._send(
                    connection, data_header(upload.stream, upload.number, chunk, source.length), source
                )  # fmt: skip
                upload.sent_bytes += source.length
            except OSError as error:
                if error.errno in OF_DISKS:
                    _doubt(upload, chunk, error)
                raise
        connection.drain()
        return ""

    def _log_unserved(self, chunk: int, error: P2PCacheError) -> None:
        now, level = time.monotonic(), logging.DEBUG
        if now - self._unserved_at >= UNSERVED_EACH_S:
            self._unserved_at, level = now, logging.INFO
        _log.log(level, "chunk %d can't be served: %s", chunk, error)

    def _send(self, connection: Connection, header: bytes, source: ChunkSource) -> None:
        sent = 0
        while sent < len(header):
            try:
                sent += connection.channel.send(header[sent:], more=True)
            except BlockingIOError:
                connection.wait_writable()
        at, end = source.offset, source.offset + source.length
        while at < end:
            count = min(end - at, self._up.quantum)
            try:
                moved = connection.channel.send_file(source.fd, at, count)
            except BlockingIOError:
                connection.wait_writable()
                continue
            if not moved:
                raise OSError("our copy of a chunk is shorter than it was when proved")
            at += moved
            connection.bytes_out += moved
            connection.mind_losses()
            self._up.take(moved)


def _doubt(upload: Upload, chunk: int, error: OSError) -> None:
    if upload.store.unreadable(chunk):
        _log.warning(
            "the cache's disk failed to read chunk %d: %s; what its file holds isn't served before it is proved "
            "again (`dmesg` says how the disk fails)", chunk, error.strerror,
        )  # fmt: skip
