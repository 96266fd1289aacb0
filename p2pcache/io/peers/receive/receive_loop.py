"""The receiving side of the connections that bring payload: a few threads over one epoll.

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

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import RemoteProtocolError
from p2pcache.io.peers.protocol.limits import TokenBucket
from p2pcache.io.peers.protocol.wire import HEADER_BYTES, Frame
from p2pcache.io.peers.receive.frame_parser import FrameParser, hand_over
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import MAX_WAITING, Inbox, SlicePool

TURN_BYTES = 8 << 20  # read from one connection before the thread serves another
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
        self,
        inbox: Inbox,
        parser: FrameParser,
        *,
        threads: int,
        down: TokenBucket,
        disk: TokenBucket,
    ) -> None:
        """Start the threads.

        Args:
            inbox: the way to the loop.
            parser: takes received bytes.
            threads: how many.
            down: rate of received bytes.
            disk: rate of writes to the cache, shared with the reads of the origin.
        """
        self._inbox = inbox
        self._parser = parser
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
                self._parser.parse_received(connection, held.view[:count], held)
                left -= count
                if count < want and channel.short_is_empty:
                    break  # most likely drained; if not, arming wakes us again
        finally:
            held.release()
        set_lowat(connection)

    def _arm(self, connection: Connection) -> None:
        with connection.gate:
            if connection.open:
                self._epoll.modify(connection.fd, select.EPOLLIN | select.EPOLLONESHOT)

    # -- the loop's thread -----------------------------------------------------------------------

    def _report(
        self, connection: Connection, frames: list[Frame], error: Exception | None, pause: float
    ) -> None:
        if not hand_over(connection, frames, error):
            return
        if pause:
            connection.paused = True
            self._inbox.loop.call_later(pause, self._resume, connection)
        else:
            self._arm(connection)

    def _resume(self, connection: Connection) -> None:
        connection.paused = False
        connection.heard = True  # the silence was ours
        self._arm(connection)


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
