"""The requests of this node on one connection, each from its first REQUEST frame to its one end."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import LocalProtocolError, RemoteProtocolError
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.protocol.wire import Frame, Kind
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.incoming_chunk import ExpectedChunks

_NUMBERS = 1 << 32


@dataclass(slots=True)
class PeerRequest:
    """One request of the scheduler, until its end is reported."""

    request: int  # the scheduler's number
    stream: int
    port: SwarmPort
    spans: deque[range]  # of missing chunks; one REQUEST on the wire at a time
    priority: Priority  # its priority at the server
    left: int = 0  # chunks of the span under way that have not ended
    nbytes: int = 0
    number: int = -1  # of the REQUEST under way
    incoming: ExpectedChunks | None = None  # the same, as the receiving threads see it
    since: float = 0.0  # when it was sent
    ended: bool = False


class Requests:
    """Sends REQUESTs on one connection and reports how they end (loop's thread)."""

    def __init__(self, hub: Hub, connection: Connection, on_mismatch: Callable[[], None]) -> None:
        """Nothing is requested yet.

        Args:
            hub: of this node.
            connection: with the server; its handshake is over.
            on_mismatch: called when bytes didn't match the manifest, after the request's end.
        """
        self._hub = hub
        self._connection = connection
        self._on_mismatch = on_mismatch
        self._streams: dict[int, dict[int, PeerRequest]] = {}
        self._next_number = 0

    def start(
        self, stream: int, port: SwarmPort, request: int, spans: deque[range], priority: Priority
    ) -> None:
        """Request spans of chunks, one after the other; BUSY if too many requests are under way.

        Args:
            stream: number of the model on this connection.
            port: the model's swarm.
            request: the scheduler's number.
            spans: missing chunks, at least one span.
            priority: priority at the server.
        """
        requests = self._streams.setdefault(stream, {})
        if request in requests:
            raise LocalProtocolError(f"request {request} is under way already")
        started = requests[request] = PeerRequest(request, stream, port, spans, priority)
        if len(self._connection.expected) < self._hub.limits.requests:
            self._next_span(started)
        else:
            self._end(started, Outcome.BUSY)

    def cancel(self, stream: int, request: int) -> bool:
        """End a request CANCELLED; False: it isn't under way."""
        found = self._streams.get(stream, {}).get(request)
        if found is not None:
            self._drop(found, Outcome.CANCELLED)
        return found is not None

    def drop_stream(self, stream: int, outcome: Outcome) -> None:
        """End all requests of a stream, and tell the server."""
        for request in list(self._streams.get(stream, {}).values()):
            self._drop(request, outcome)

    def end_stream(self, stream: int, outcome: Outcome) -> None:
        """End all requests of a stream whose connection is gone."""
        for request in list(self._streams.get(stream, {}).values()):
            self._end(request, outcome)

    def end_stalled(self, now: float) -> None:
        """End requests for which no byte of DATA came for too long."""
        silent_s = self._hub.silent_s
        for requests in list(self._streams.values()):
            for request in list(requests.values()):
                if now - max(request.since, self._connection.heard_data_at) > silent_s:
                    self._drop(request, Outcome.STALLED)

    def on_answer(self, frame: Frame, outcome: Outcome) -> None:
        """BUSY or REFUSED came.

        Raises:
            RemoteProtocolError: no such REQUEST is on the wire.
        """
        incoming = self._connection.expected.pop(frame.a, None)
        if incoming is None or incoming.stream != frame.stream:
            raise RemoteProtocolError(f"{outcome.name} for a request that isn't")
        incoming.began = time.monotonic()
        for request in list(self._streams.get(frame.stream, {}).values()):
            if request.number == frame.a:
                self._end(request, outcome)

    def _next_span(self, request: PeerRequest) -> None:
        span = request.spans.popleft()
        number, self._next_number = self._next_number, (self._next_number + 1) % _NUMBERS
        request.left = len(span)
        request.number = number
        request.since = time.monotonic()

        def on_chunk(outcome: Outcome, nbytes: int) -> None:  # on a worker thread
            self._hub.inbox.post(self._on_chunk_ended, request, outcome, nbytes)

        request.incoming = self._connection.expected[number] = ExpectedChunks(
            request.stream, span, request.port.layout, request.port.store, on_chunk
        )
        self._connection.send(
            wire.request(request.stream, number, span.start, len(span), request.priority)
        )

    def _on_chunk_ended(self, request: PeerRequest, outcome: Outcome, nbytes: int) -> None:
        if request.ended:
            if outcome is Outcome.DONE:
                self._on_late_chunk(request, nbytes)
            return
        request.nbytes += nbytes
        request.left -= 1
        if outcome is Outcome.MISMATCH:
            self._hub.totals.mismatches += 1
            self._end(request, outcome)
            self._on_mismatch()
        elif outcome is not Outcome.DONE:
            self._drop(request, outcome)
        elif request.left == 0 and request.spans:
            self._next_span(request)
        elif request.left == 0:
            self._hub.on_request_done(time.monotonic() - request.since)
            self._end(request, Outcome.DONE)

    def _on_late_chunk(self, request: PeerRequest, nbytes: int) -> None:
        """A chunk was nearly stored when its request was cancelled: it may have been its run's last one.

        The request's end has told the bytes of the chunks before it.
        """
        port, incoming = request.port, request.incoming
        assert incoming is not None
        run = port.layout.run_of(incoming.end - 1)
        whole = 0 if port.store.missing_chunks(run) else 1 << run
        port.on_proved(whole, Source.PEER, nbytes)

    def _drop(self, request: PeerRequest, outcome: Outcome) -> None:
        """End a request whose DATA may still come, or be on its way."""
        if request.incoming is not None:
            request.incoming.dropped = True
        if request.number in self._connection.expected:
            self._connection.send(wire.pack(Kind.CANCEL, stream=request.stream, a=request.number))
        self._end(request, outcome)

    def _end(self, request: PeerRequest, outcome: Outcome) -> None:
        request.ended = True
        requests = self._streams[request.stream]
        del requests[request.request]
        if not requests:
            del self._streams[request.stream]
        began = request.incoming.began if request.incoming is not None else 0.0
        waited_s = began - request.since if began else 0.0
        self._hub.inbox.post(
            request.port.request_ended, request.request, outcome, request.nbytes, waited_s
        )


class TrickleDetector:
    """Finds a connection that brings next to nothing: a trickle must not keep its requests alive."""

    def __init__(self, limits: PeerLimits) -> None:
        """Nothing is requested yet."""
        self._limits = limits
        self._since = time.monotonic()  # start of the measurement
        self._bytes_in = 0  # that had come by then

    def is_trickle(self, connection: Connection, now: float) -> bool:
        """Whether less than `least_bytes_per_s` came, but something, in `stall_s` of waiting.

        Args:
            connection: the same each time.
            now: monotonic seconds.
        """
        if not connection.open:
            return False
        unread = tcp_info.unread(connection.fd)
        came = connection.bytes_in + unread - self._bytes_in
        # Bytes in the kernel that are worth a wake-up wait for this node, not for the peer.
        ours = connection.paused or connection.reading.locked() or unread > connection.lowat
        seconds = now - self._since
        waiting = bool(connection.expected) and not ours
        if waiting and seconds < self._limits.stall_s:
            return False
        few = came < self._limits.least_bytes_per_s * seconds
        self._since, self._bytes_in = now, connection.bytes_in + unread
        return waiting and few and came > 0  # silence has its own limits
