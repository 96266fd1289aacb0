"""The receiving side of connections that bring no payload: peers that request from us, on the loop's thread.

Most frames of a swarm come here: HAVE and REQUEST. Each is small and is handled by the loop, so a thread in between
would only cost two changes of threads. Payload comes on the connections that we opened (`receive_loop`).
"""

import asyncio

from p2pcache.errors import RemoteProtocolError
from p2pcache.io.peers.receive.frame_parser import FrameParser, hand_over
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import SlicePool

# Read from one connection before the loop serves another. So a flood fills the peer's buffers, not ours.
TURN_BYTES = 64 << 10


class ControlReader:
    """Reads on the loop's thread, from `watch` to `unwatch`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, parser: FrameParser) -> None:
        """Nothing is watched yet."""
        self._loop = loop
        self._parser = parser
        self._slice = SlicePool(1).take()

    def watch(self, connection: Connection) -> None:
        """Begin to receive."""
        self._loop.add_reader(connection.fd, self._turn, connection)

    def unwatch(self, connection: Connection) -> None:
        """Receive no more; called by the connection before its socket closes."""
        self._loop.remove_reader(connection.fd)

    def _turn(self, connection: Connection) -> None:
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
