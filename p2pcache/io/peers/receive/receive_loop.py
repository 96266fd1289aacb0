"""The receiving side of all connections: a few threads over one epoll.

A readable connection wakes one thread (EPOLLONESHOT). The thread reads, parses, hands payload to the
writing threads, and arms the connection again. The event loop gets whole control frames and ends of
chunks, never payload. A connection that sent control frames is armed only after the loop has handled
them, so a flood fills the peer's buffers, not ours.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import P2PCacheError, RemoteProtocolError
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.peers.protocol.wire import HEADER, HEADER_BYTES, Frame, Kind, check_header
from p2pcache.io.peers.transport.connection import Connection, ParseState
from p2pcache.io.peers.transport.incoming_chunk import IncomingChunk
from p2pcache.io.peers.transport.workers import MAX_WAITING, Inbox, Slice, SlicePool, Workers

TURN_BYTES = 8 << 20  # read from one connection before the thread serves another
# Frames without a rate limit here. BUSY and REFUSED each end a request of ours, which limits them already. A
# REQUEST that is served costs the peer the time of its bytes; `serve.server_session` counts the others.
UNCOUNTED = frozenset({Kind.BUSY, Kind.REFUSED, Kind.REQUEST})
# Inside DATA a thread is woken for no less. Fewer bytes cost more CPU (docs/lab/0006-receive-threads.md), more are no
# quicker, and on a slow link every connection would hold them in the kernel.
LOWAT_BYTES = 512 << 10
# On a connection with a long round trip at most 1/FAR_SHARE of the receive buffer. The kernel grows the buffer by
# the bytes that are read in a round trip. If the reader always waits for a full buffer it never grows.
FAR_SHARE = 8

_log = logging.getLogger(__name__)


class ReceiveLoop:
    """The receiving threads and their epoll."""

    def __init__(
        self, inbox: Inbox, *, threads: int, writers: Workers, down: TokenBucket, disk: TokenBucket
    ) -> None:
        """Start the threads.

        Args:
            inbox: the way to the loop.
            threads: how many.
            writers: threads that hash and write received bytes.
            down: rate of received bytes.
            disk: rate of writes to the cache, shared with the reads of the origin.
        """
        self._inbox = inbox
        self._writers = writers
        self._down = down
        self._disk = disk
        self._slices = SlicePool(threads + MAX_WAITING)
        self._connections: dict[int, Connection] = {}
        self._stopped = False
        self._epoll = select.epoll()
        self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._alarm, select.EPOLLIN)
        self._threads = [
            threading.Thread(target=self._run, name=f"receive-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def watch(self, connection: Connection) -> None:
        """Begin to receive (loop's thread)."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN | select.EPOLLONESHOT)

    def unwatch(self, connection: Connection) -> None:
        """Receive no more; called by the connection, under its gate, before the socket closes."""
        if self._connections.pop(connection.fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(connection.fd)

    def stop(self) -> None:
        """End the threads (blocks); every connection is closed already."""
        self._stopped = True
        os.eventfd_write(self._alarm, 1)  # level-triggered and never read: wakes all threads
        for thread in self._threads:
            thread.join()
        self._epoll.close()
        os.close(self._alarm)

    # -- threads ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped:
            for fd, _ in self._epoll.poll(maxevents=1):
                connection = self._connections.get(fd)
                if connection is None or not connection.hold():
                    continue
                try:
                    self._turn(connection)
                except Exception:  # noqa: BLE001 - a thread that died would take every connection with it
                    _log.exception("receiving from a peer failed")
                    self._inbox.post(connection.close, Outcome.LOST, "internal error")
                finally:
                    connection.release()

    def _turn(self, connection: Connection) -> None:
        # A stale event may name a new connection with the same descriptor while another thread reads
        # it. Skipping is safe: the reader arms after it has released.
        if not connection.reading.acquire(blocking=False):
            return
        error: Exception | None = None
        before = connection.bytes_in
        try:
            self._receive(connection)
        except (RemoteProtocolError, OSError) as caught:
            error = caught
        finally:
            frames, connection.state.frames = connection.state.frames, []
            connection.reading.release()
        came = connection.bytes_in - before
        pause = max(self._down.spend(came), self._disk.spend(came))
        if frames or error is not None or pause:
            self._inbox.post(self._report, connection, frames, error, pause)
        else:
            self._arm(connection)

    def _receive(self, connection: Connection) -> None:
        state, channel = connection.state, connection.channel
        left = min(TURN_BYTES, self._down.quantum, self._disk.quantum)
        held = self._slices.take()
        try:
            while left > 0 and not state.frames:
                if held.shared:
                    held.release()
                    held = self._slices.take()
                want = min(state.want, len(held.view), left + HEADER_BYTES)
                try:
                    count = channel.receive(held.view, want)
                except BlockingIOError:
                    break
                connection.heard = True
                self._parse(connection, held.view[:count], held)
                left -= count
                if count < want and channel.short_is_empty:
                    break  # most likely drained; if not, arming wakes us again
        finally:
            held.release()
        set_lowat(connection)

    def _parse(self, connection: Connection, view: memoryview, held: Slice) -> None:
        state = connection.state
        at, end = 0, len(view)
        while at < end:
            if state.data is not None:
                count = min(state.data.remaining, end - at)
                connection.bytes_in += count
                connection.heard_data_at = time.monotonic()
                state.data.feed(view[at : at + count], held)
                if not state.data.remaining:
                    state.data = None
            elif state.frame is not None:
                count = min(state.frame[5] - len(state.body), end - at)
                state.body += view[at : at + count]
                _finish_frame(state)
            else:
                count = min(HEADER_BYTES - len(state.head), end - at)
                state.head += view[at : at + count]
                if len(state.head) == HEADER_BYTES:
                    self._header(connection)
            at += count

    def _header(self, connection: Connection) -> None:
        state = connection.state
        header = HEADER.unpack(state.head)
        state.head.clear()
        kind, _flags, stream, number, chunk, length = header
        check_header(kind, length, connection.accepts)
        if kind == Kind.DATA:
            state.data = self._reception(connection, stream, number, chunk, length)
            return
        if kind not in UNCOUNTED and not state.frame_rate.allow(time.monotonic()):
            raise RemoteProtocolError("too many control frames")
        state.frame = header
        _finish_frame(state)

    def _reception(
        self, connection: Connection, stream: int, number: int, chunk: int, length: int
    ) -> IncomingChunk:
        incoming = connection.expected.get(number)
        if incoming is None or incoming.stream != stream or incoming.next != chunk:
            raise RemoteProtocolError("DATA that nobody asked for")
        if length != incoming.layout.lengths[chunk]:
            raise RemoteProtocolError(f"DATA of {length} bytes for a chunk of another length")
        incoming.next += 1
        if incoming.next == incoming.end:
            connection.expected.pop(number, None)
        return IncomingChunk(incoming, chunk, length, self._writers)

    def _arm(self, connection: Connection) -> None:
        with connection.gate:
            if connection.open:
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLONESHOT)

    # -- the loop's thread -----------------------------------------------------------------------

    def _report(
        self, connection: Connection, frames: list[Frame], error: Exception | None, pause: float
    ) -> None:
        owner = connection.owner
        try:
            for frame in frames:
                if not connection.open or owner is None:
                    return
                owner.handle(frame)
        except P2PCacheError as wrong:
            error = wrong
        if not connection.open:
            return
        if isinstance(error, P2PCacheError) and owner is not None:
            owner.on_violation(error)
        elif error is not None:
            connection.close(Outcome.LOST, str(error), bye=False)
        elif pause:
            connection.paused = True
            self._inbox.loop.call_later(pause, self._resume, connection)
        else:
            self._arm(connection)

    def _resume(self, connection: Connection) -> None:
        connection.paused = False
        connection.heard = True  # the silence was ours
        self._arm(connection)


def _finish_frame(state: ParseState) -> None:
    if state.frame is None or len(state.body) < state.frame[5]:
        return
    kind, flags, stream, a, b, _ = state.frame
    state.frames.append(Frame(kind, flags, stream, a, b, bytes(state.body)))
    state.frame = None
    state.body.clear()


def set_lowat(connection: Connection) -> None:
    """Set how many bytes wake a thread (SO_RCVLOWAT). Called while `reading` is held."""
    data = connection.state.data
    least = min(data.remaining, LOWAT_BYTES) if data is not None else 1
    if data is not None and connection.far:
        buffer = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        least = min(least, buffer // FAR_SHARE)
    lowat = max(1, least - connection.channel.hidden)
    if lowat != connection.lowat:
        connection.lowat = lowat
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowat)
