"""The loop-side logic of a connection on which this node requests."""

import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Hello, Welcome, confirm, hello
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import LocalProtocolError, P2PCacheError, RemoteProtocolError
from p2pcache.ids import format_node
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.protocol.wire import Frame, Kind
from p2pcache.io.peers.request.drips import Drips
from p2pcache.io.peers.transport.channel import Channel, Plain
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.dialer import Dialer
from p2pcache.io.peers.transport.incoming_chunk import Incoming
from p2pcache.io.peers.transport.secure import Secure
from p2pcache.io.peers.transport.tls_accept import Opening

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Asked:
    """One request of the scheduler, until its end is told."""

    request: int
    digest: str
    port: SwarmPort
    spans: deque[range]  # of missing chunks; one REQUEST on the wire at a time
    turn: Priority  # as its server is told
    left: int = 0  # chunks of the span under way that have not ended
    nbytes: int = 0
    number: int = -1  # of the REQUEST under way
    incoming: Incoming | None = None  # the same, as the receiving threads see it
    since: float = 0.0
    ended: bool = False


@dataclass(slots=True)
class _Stream:
    """One model that we joined on this connection."""

    number: int
    port: SwarmPort
    joined: bool = False
    since: float = 0.0  # when it was asked whether we may join
    have: int = 0
    asked: dict[int, Asked] = field(default_factory=dict)  # by the scheduler's request number


class Requester:
    """Dials one node, joins models there, requests chunks.

    Every `join` ends in `peer_joined` or `dial_failed`; every `ask` in one `request_ended`.
    """

    def __init__(self, hub: Hub, node: int, address: str) -> None:
        """Start to connect; `address` is "host:port"."""
        self.node = node
        self.ready = False  # the handshake is over
        self._hub = hub
        self._streams: dict[str, _Stream] = {}
        self._by_number: dict[int, _Stream] = {}
        self._next_stream = 0
        self._next_number = 0
        self._drips = Drips(hub.limits)
        self._said: tuple[Challenge, Hello] | None = None
        self._connection: Connection | None = None
        self._over = False
        self._deadline = time.monotonic() + hub.limits.handshake_s
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.CHALLENGE: self._on_challenge, Kind.WELCOME: self._on_welcome,
            Kind.JOINED: self._on_joined, Kind.HAVE: self._on_have, Kind.BUSY: self._on_busy,
            Kind.REFUSED: self._on_refused, Kind.PING: self._on_ping, Kind.BYE: self._on_bye,
        }  # fmt: skip
        self._dialer: Dialer | Opening = Dialer(
            hub.loop, address, self._on_connected, lambda text: self.close(Outcome.LOST, text)
        )

    @property
    def connection(self) -> Connection | None:
        """The connection, once TCP stands."""
        return self._connection

    # -- what the facade asks --------------------------------------------------------------------

    def join(self, digest: str, port: SwarmPort) -> None:
        """Join a model; does nothing if that is done or under way."""
        if digest in self._streams:
            return
        if len(self._streams) >= self._hub.limits.streams or self._next_stream > wire.MAX_STREAM:
            self._hub.inbox.post(port.dial_failed, self.node)
            return
        stream = _Stream(self._next_stream, port)
        self._next_stream += 1
        self._streams[digest] = self._by_number[stream.number] = stream
        if self.ready:
            self._send_join(digest, stream)

    def leave(self, digest: str) -> None:
        """Leave a model; its requests end CANCELLED. The last one ends the connection."""
        stream = self._streams.pop(digest, None)
        if stream is None:
            return
        del self._by_number[stream.number]
        for asked in list(stream.asked.values()):
            self._drop(stream, asked, Outcome.CANCELLED)
        if self._connection is not None and self.ready:
            self._connection.send(wire.pack(Kind.LEAVE, stream=stream.number))
        if not self._streams:
            self.close(Outcome.LOST, "nothing more to ask for")

    def ask(self, digest: str, request: int, spans: deque[range], turn: Priority) -> bool:
        """Ask for spans of chunks, one after the other; False: the model isn't joined here."""
        stream = self._streams.get(digest)
        if stream is None or not stream.joined or self._connection is None:
            return False
        if request in stream.asked:
            raise LocalProtocolError(f"request {request} is under way already")
        asked = stream.asked[request] = Asked(request, digest, stream.port, spans, turn)
        if len(self._connection.expected) < self._hub.limits.requests:
            self._next_span(stream, asked)
        else:
            self._end(stream, asked, Outcome.BUSY)
        return True

    def cancel(self, digest: str, request: int) -> bool:
        """Take a request back; it ends CANCELLED at once. False: not (any more) asked here."""
        stream = self._streams.get(digest)
        asked = stream.asked.get(request) if stream is not None else None
        if stream is None or asked is None:
            return False
        self._drop(stream, asked, Outcome.CANCELLED)
        return True

    def peer_have(self, digest: str) -> int:
        """What the node said it has, on this connection."""
        stream = self._streams.get(digest)
        return stream.have if stream is not None else 0

    def tell(self, digest: str, runs: int) -> bool:
        """Say HAVE; False if this connection isn't the one for it."""
        stream = self._streams.get(digest)
        if stream is None or not self.ready or self._connection is None:
            return False
        count = stream.port.layout.run_count
        self._connection.send(wire.have(stream.number, runs, count, self._hub.uploads.load))
        return True

    def tick(self, now: float) -> None:
        """Deadlines: of the handshake, of joining, and of requests that next to nothing comes for."""
        connection = self._connection
        if not self.ready or connection is None:
            if now > self._deadline:
                self.close(Outcome.LOST, "the handshake took too long")
            return
        silent_s = self._hub.silent_s
        for stream in list(self._streams.values()):
            if not stream.joined and now - stream.since > self._hub.limits.handshake_s:
                self._not_served(stream)
            for asked in list(stream.asked.values()):
                quiet_since = max(asked.since, connection.heard_data_at)
                if now - quiet_since > silent_s:
                    self._drop(stream, asked, Outcome.STALLED)
        if self._drips.look(connection, now):
            self.close(Outcome.STALLED, "stalled: next to nothing comes")

    def close(self, outcome: Outcome, text: str) -> None:
        """End it, in whatever state."""
        if self._connection is not None:
            self._connection.close(outcome, text)
        else:
            self.closed(outcome, text)

    def _on_connected(self, sock: socket.socket) -> None:
        hub = self._hub
        if hub.tls is None:
            self._on_open(Plain(sock))
            return
        channel = Secure(sock, hub.tls.now.client, server_side=False)
        self._dialer = Opening(
            hub.loop, channel, hub.limits.handshake_s, self._on_open,
            lambda text: self.close(Outcome.LOST, text),
        )  # fmt: skip

    def _on_open(self, channel: Channel) -> None:
        hub = self._hub
        self._connection = connection = Connection(
            channel, hub.loop, hub.inbox, hub.limits,
            accepts=wire.REQUESTER_GREETS, disarm=hub.pump.remove,
        )  # fmt: skip
        connection.owner = self
        hub.pump.add(connection)

    # -- frames ----------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """One control frame (see `connection.Owner`)."""
        self._handlers[frame.kind](frame)

    def _on_challenge(self, frame: Frame) -> None:
        connection = self._connection
        if self._said is not None or connection is None:
            raise RemoteProtocolError("a second CHALLENGE")
        challenge = wire.parse_greeting(frame, Challenge)
        said = hello(
            self._hub.secret, challenge,
            nonce=secrets.token_bytes(NONCE_BYTES), node=self._hub.node, role="peer",
        )  # fmt: skip
        self._said = challenge, said
        connection.send(wire.greeting(Kind.HELLO, said))

    def _on_welcome(self, frame: Frame) -> None:
        connection = self._connection
        if self._said is None or self.ready or connection is None:
            raise RemoteProtocolError("WELCOME out of order")
        welcome = wire.parse_greeting(frame, Welcome)
        member = connection.channel.member
        if welcome.node != self.node or (member is not None and not member.owns(self.node)):
            self.close(Outcome.LOST, "another node answers at its address")
            return
        confirm(self._hub.secret, *self._said, welcome)
        self.ready = True
        connection.accepts = wire.REQUESTER_HEARS
        for digest, stream in list(self._streams.items()):
            self._send_join(digest, stream)

    def _send_join(self, digest: str, stream: _Stream) -> None:
        port, connection = stream.port, self._connection
        assert connection is not None
        said = wire.Join(
            digest, self._hub.advertise, port.layout.run_count, port.have_runs(), port.wants()
        )
        stream.since = time.monotonic()
        connection.send(wire.join(stream.number, said))

    def _on_joined(self, frame: Frame) -> None:
        stream = self._stream(frame)
        if stream is None:
            return
        have = wire.parse_joined(frame, stream.port.layout.run_count)
        if have is None:
            self._not_served(stream)
            return
        if stream.joined:
            raise RemoteProtocolError("a second JOINED")
        stream.joined = True
        stream.have |= have
        known = self._hub.known_have(stream.port.layout.digest, self.node)
        stream.port.peer_joined(self.node, known, frame.b)

    def _not_served(self, stream: _Stream) -> None:
        was_joined, stream.joined = stream.joined, False
        digest = stream.port.layout.digest
        for asked in list(stream.asked.values()):
            self._drop(stream, asked, Outcome.REFUSED)
        self._streams.pop(digest, None)
        self._by_number.pop(stream.number, None)
        if was_joined:
            stream.port.peer_left(self.node)
        else:
            stream.port.dial_failed(self.node)
        if self._connection is not None:
            self._connection.send(wire.pack(Kind.LEAVE, stream=stream.number))

    def _on_have(self, frame: Frame) -> None:
        stream = self._stream(frame)
        if stream is None:
            return
        runs = wire.parse_have(frame, stream.port.layout.run_count)
        stream.have |= runs
        stream.port.peer_has(self.node, runs, frame.a)

    def _on_busy(self, frame: Frame) -> None:
        self._answered(frame, Outcome.BUSY)

    def _on_refused(self, frame: Frame) -> None:
        _log.debug("peer %s refused: %s", format_node(self.node), wire.reason_text(frame))
        self._answered(frame, Outcome.REFUSED)

    def _answered(self, frame: Frame, outcome: Outcome) -> None:
        connection = self._connection
        incoming = connection.expected.pop(frame.a, None) if connection is not None else None
        if incoming is None or incoming.stream != frame.stream:
            raise RemoteProtocolError(f"{outcome.name} for a request that isn't")
        incoming.began = time.monotonic()
        stream = self._by_number.get(frame.stream)
        for asked in list(stream.asked.values()) if stream is not None else ():
            if stream is not None and asked.number == frame.a:
                self._end(stream, asked, outcome)

    def _on_ping(self, frame: Frame) -> None:
        if not frame.flags & wire.FLAG and self._connection is not None:
            self._connection.send(wire.pack(Kind.PING, flags=wire.FLAG, a=frame.a))

    def _on_bye(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.close(Outcome.LOST, f"it says: {wire.reason_text(frame)}", bye=False)

    def _stream(self, frame: Frame) -> _Stream | None:
        stream = self._by_number.get(frame.stream)
        if stream is None and frame.stream >= self._next_stream:
            raise RemoteProtocolError("a frame on a stream that was never joined")
        return stream  # None: we have left it, and the peer didn't know yet

    # -- requests --------------------------------------------------------------------------------

    def _next_span(self, stream: _Stream, asked: Asked) -> None:
        connection = self._connection
        assert connection is not None
        span = asked.spans.popleft()
        number, self._next_number = self._next_number, (self._next_number + 1) & 0xFFFFFFFF
        asked.left = len(span)
        asked.number = number
        asked.since = time.monotonic()

        def on_chunk(outcome: Outcome, nbytes: int) -> None:  # on a worker thread
            self._hub.inbox.post(self._chunk_ended, asked, outcome, nbytes)

        layout = asked.port.layout
        asked.incoming = connection.expected[number] = Incoming(
            stream.number, span, layout, asked.port.store, on_chunk
        )
        connection.send(wire.request(stream.number, number, span.start, len(span), asked.turn))

    def _chunk_ended(self, asked: Asked, outcome: Outcome, nbytes: int) -> None:
        stream = self._streams.get(asked.digest)
        if asked.ended or stream is None:
            return
        asked.nbytes += nbytes
        asked.left -= 1
        if outcome is Outcome.MISMATCH:
            self._hub.totals.mismatches += 1
            self._end(stream, asked, outcome)
            self._hub.ban(self.node)
            self.close(Outcome.LOST, "sent bytes that don't match the manifest")
        elif outcome is not Outcome.DONE:
            self._drop(stream, asked, outcome)
        elif asked.left == 0 and asked.spans:
            self._next_span(stream, asked)
        elif asked.left == 0:
            self._hub.took(time.monotonic() - asked.since)
            self._end(stream, asked, Outcome.DONE)

    def _drop(self, stream: _Stream, asked: Asked, outcome: Outcome) -> None:
        """End a request whose DATA may still come, or be on its way."""
        connection = self._connection
        if asked.incoming is not None:
            asked.incoming.dropped = True
        if connection is not None and asked.number in connection.expected:
            connection.send(wire.pack(Kind.CANCEL, stream=stream.number, a=asked.number))
        self._end(stream, asked, outcome)

    def _end(self, stream: _Stream, asked: Asked, outcome: Outcome) -> None:
        asked.ended = True
        del stream.asked[asked.request]
        began = asked.incoming.began if asked.incoming is not None else 0.0
        waited_s = began - asked.since if began else 0.0
        self._hub.inbox.post(
            asked.port.request_ended, asked.request, outcome, asked.nbytes, waited_s
        )

    # -- the end ---------------------------------------------------------------------------------

    def wronged(self, error: P2PCacheError) -> None:
        """The peer broke a rule (see `connection.Owner`)."""
        if self._connection is not None:
            self._hub.wronged(self.node if self.ready else -1, str(error))
            self._connection.close(Outcome.LOST, str(error))

    def closed(self, outcome: Outcome, text: str) -> None:
        """The connection is gone, or never stood (see `connection.Owner`)."""
        if self._over:
            return
        self._over = True
        _log.info("connection to peer %s ended: %s", format_node(self.node), text)
        self._dialer.cancel()
        if self._connection is not None:
            self._hub.folded(self._connection)
        if self._hub.requesters.get(self.node) is self:
            del self._hub.requesters[self.node]
        streams, self._streams, self._by_number = self._streams, {}, {}
        for digest, stream in streams.items():
            for asked in list(stream.asked.values()):
                self._end(stream, asked, outcome)
            told = stream.port.peer_left if stream.joined else stream.port.dial_failed
            self._hub.inbox.post(told, self.node)
            # What we said here last may be lost; say all of it on the other connection.
            serving = self._hub.serving.get(self.node)
            if serving is not None and stream.port.have_runs():
                serving.tell(digest, stream.port.have_runs())
