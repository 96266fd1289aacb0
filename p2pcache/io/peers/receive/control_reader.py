"""The receiving side of connections that bring no payload: peers that request from us, on the loop's thread.

Most frames of a swarm come here: HAVE and REQUEST. Each is small and is handled by the loop, so a thread in between
would only cost two changes of threads. Payload comes on the connections that we opened (`receive_loop`).
"""

import logging
import select

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import RemoteProtocolError
from p2pcache.io.peers.receive.frame_parser import FrameParser, hand_over
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import Inbox, SlicePool

_log = logging.getLogger(__name__)

# Read from one connection before the loop serves another. So a flood fills the peer's buffers, not ours.
TURN_BYTES = 64 << 10


class ControlReader:
    """Reads on the loop's thread, from `watch` to `unwatch`, whenever the inbox says so."""

    def __init__(self, inbox: Inbox, parser: FrameParser) -> None:
        """Nothing is watched yet."""
        self._inbox = inbox
        self._parser = parser
        self._slice = SlicePool(1).take()
        self._connections: dict[int, Connection] = {}
        self._epoll = select.epoll()
        self._wakes_loop = False
        inbox.frames = self
        self.wake_loop(on=True)

    def watch(self, connection: Connection) -> None:
        """Begin to receive."""
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)

    def unwatch(self, connection: Connection) -> None:
        """Receive no more; called by the connection before its socket closes."""
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)

    def stop(self) -> None:
        """Every connection is closed already."""
        self.wake_loop(on=False)
        self._inbox.frames = None
        self._epoll.close()

    def wake_loop(self, *, on: bool) -> None:
        """See `workers.Frames`."""
        if on and not self._wakes_loop:
            self._inbox.loop.add_reader(self._epoll.fileno(), self._inbox.drain)
        elif self._wakes_loop and not on:
            self._inbox.loop.remove_reader(self._epoll.fileno())
        self._wakes_loop = on

    def receive_all(self) -> bool:
        """See `workers.Frames`."""
        ready = self._epoll.poll(0)
        for fd, _ in ready:
            if (connection := self._connections.get(fd)) is None:
                continue
            try:
                self._receive(connection)
            except Exception:  # noqa: BLE001 - one bad frame must not keep the loop from all others
                _log.exception("a frame of a peer can't be handled")
                connection.close(Outcome.LOST, "internal error")
        return bool(ready)

    def _receive(self, connection: Connection) -> None:
        error: Exception | None = None
        view, state = self._slice.view, connection.state
        try:
            with connection.reading:
                count = connection.channel.receive(view, TURN_BYTES)
                connection.heard = True
                self._parser.parse_received(connection, view[:count], self._slice)
        except BlockingIOError:
            return
        except (RemoteProtocolError, OSError) as caught:
            error = caught
        frames, state.frames = state.frames, []
        if frames or error is not None:
            hand_over(connection, frames, error)
