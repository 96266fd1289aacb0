"""Received bytes become control frames for the loop, and payload for the writing threads."""

import time

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import P2PCacheError, RemoteProtocolError
from p2pcache.io.peers.protocol.wire import HEADER, HEADER_BYTES, Frame, Kind, check_header
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.incoming_chunk import IncomingChunk
from p2pcache.io.peers.transport.workers import Slice, Workers

# Frames without a rate limit here. BUSY and REFUSED each end a request of ours, which limits them already. A
# REQUEST that is served costs the peer the time of its bytes; `serve.server_session` counts the others.
UNCOUNTED = frozenset({Kind.BUSY, Kind.REFUSED, Kind.REQUEST})


class FrameParser:
    """Parses what comes on any connection; the state of each is its own. Called while its `reading` is held."""

    def __init__(self, writers: Workers) -> None:
        """`writers`: threads that hash and write received payload."""
        self._writers = writers

    def parse_received(self, connection: Connection, view: memoryview, held: Slice) -> None:
        """Take in received bytes, which lie in `held`. Whole frames gather in the connection's state.

        Raises:
            RemoteProtocolError: the peer broke a rule.
        """
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
                _finish_frame(connection)
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
        _finish_frame(connection)

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


def _finish_frame(connection: Connection) -> None:
    state = connection.state
    if state.frame is None or len(state.body) < state.frame[5]:
        return
    kind, flags, stream, a, b, _ = state.frame
    state.frames.append(Frame(kind, flags, stream, a, b, bytes(state.body)))
    state.frame = None
    state.body.clear()


def hand_over(connection: Connection, frames: list[Frame], error: Exception | None) -> bool:
    """Let a connection's owner handle frames, then what went wrong behind them (loop's thread).

    Returns:
        Whether the connection goes on.
    """
    owner = connection.owner
    try:
        for frame in frames:
            if not connection.open or owner is None:
                return False
            owner.handle(frame)
    except P2PCacheError as wrong:
        error = wrong
    if not connection.open:
        return False
    if isinstance(error, P2PCacheError) and owner is not None:
        owner.on_violation(error)
    elif error is not None:
        connection.close(Outcome.LOST, str(error), bye=False)
    else:
        return True
    return False
