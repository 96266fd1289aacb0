"""A session in which this node requests: it dials one node, proves membership, joins models."""

import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Hello, Welcome, confirm, hello
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import P2PCacheError, RemoteProtocolError
from p2pcache.ids import NodeId, RunSet, format_node
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.protocol.wire import Frame, Kind
from p2pcache.io.peers.request.requests import Requests, TrickleDetector
from p2pcache.io.peers.transport.channel import Channel, Plain
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.dialer import Dialer
from p2pcache.io.peers.transport.secure import Secure
from p2pcache.io.peers.transport.tls_handshake import TlsHandshake

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stream:
    """One model that we joined on this connection."""

    number: int
    port: SwarmPort
    joined: bool = False
    since: float = 0.0  # when JOIN was sent


class ClientSession:
    """Dials one node, joins models there, requests chunks.

    Every `join` ends in `peer_joined` or `dial_failed`; every `request` in one `request_ended`.
    """

    def __init__(self, hub: Hub, node: NodeId, address: str) -> None:
        """Start to connect; `address` is "host:port"."""
        self.node = node
        self.ready = False  # the handshake is over
        self._hub = hub
        self._streams: dict[str, _Stream] = {}
        self._by_number: dict[int, _Stream] = {}
        self._next_stream = 0
        self._trickle = TrickleDetector(hub.limits)
        self._sent: tuple[Challenge, Hello] | None = None
        self._connection: Connection | None = None
        self._requests: Requests | None = None  # stands with the connection
        self._over = False
        self._deadline = time.monotonic() + hub.limits.handshake_s
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.CHALLENGE: self._on_challenge, Kind.WELCOME: self._on_welcome,
            Kind.JOINED: self._on_joined, Kind.HAVE: self._on_have, Kind.BUSY: self._on_busy,
            Kind.REFUSED: self._on_refused, Kind.PING: self._on_ping, Kind.BYE: self._on_bye,
        }  # fmt: skip
        self._dialer: Dialer | TlsHandshake = Dialer(
            hub.loop, address, self._on_connected, lambda text: self.close(Outcome.LOST, text)
        )

    @property
    def connection(self) -> Connection | None:
        """The connection, once TCP stands."""
        return self._connection

    # -- calls of `net` and `hub` ------------------------------------------------------------------

    def join(self, digest: str, port: SwarmPort) -> None:
        """See `hub.Requesting`."""
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
        """See `hub.Requesting`. Leaving the last model ends the connection."""
        stream = self._streams.pop(digest, None)
        if stream is None:
            return
        del self._by_number[stream.number]
        if self._requests is not None:
            self._requests.drop_stream(stream.number, Outcome.CANCELLED)
        if self._connection is not None and self.ready:
            self._connection.send(wire.pack(Kind.LEAVE, stream=stream.number))
        if not self._streams:
            self.close(Outcome.LOST, "nothing more to ask for")

    def request(self, digest: str, request: int, spans: deque[range], priority: Priority) -> bool:
        """See `hub.Requesting`."""
        stream = self._streams.get(digest)
        if stream is None or not stream.joined or self._requests is None:
            return False
        self._requests.start(stream.number, stream.port, request, spans, priority)
        return True

    def cancel(self, digest: str, request: int) -> bool:
        """See `hub.Requesting`; the request ends CANCELLED at once."""
        stream = self._streams.get(digest)
        if stream is None or self._requests is None:
            return False
        return self._requests.cancel(stream.number, request)

    def has_joined(self, digest: str) -> bool:
        """See `hub.Session`."""
        stream = self._streams.get(digest)
        return stream is not None and stream.joined

    def send_have(self, digest: str, runs: RunSet, load: int) -> bool:
        """See `hub.Session`."""
        stream = self._streams.get(digest)
        if stream is None or not self.ready or self._connection is None:
            return False
        self._connection.send(wire.have(stream.number, runs, stream.port.layout.run_count, load))
        return True

    def check_deadlines(self, now: float) -> None:
        """See `hub.Session`: deadlines of the handshake, of joining and of requests."""
        connection, requests = self._connection, self._requests
        if not self.ready or connection is None or requests is None:
            if now > self._deadline:
                self.close(Outcome.LOST, "the handshake took too long")
            return
        for stream in list(self._streams.values()):
            if not stream.joined and now - stream.since > self._hub.limits.handshake_s:
                self._not_served(stream)
        requests.end_stalled(now)
        if self._trickle.is_trickle(connection, now):
            self.close(Outcome.STALLED, "stalled: next to nothing comes")

    def close(self, outcome: Outcome, text: str) -> None:
        """See `hub.Session`; in any state."""
        if self._connection is not None:
            self._connection.close(outcome, text)
        else:
            self.on_closed(outcome, text)

    def _on_connected(self, sock: socket.socket) -> None:
        hub = self._hub
        if hub.tls is None:
            self._on_open(Plain(sock))
            return
        channel = Secure(sock, hub.tls.now.client, server_side=False)
        self._dialer = TlsHandshake(
            hub.loop, channel, hub.limits.handshake_s, self._on_open,
            lambda text: self.close(Outcome.LOST, text),
        )  # fmt: skip

    def _on_open(self, channel: Channel) -> None:
        hub = self._hub
        self._connection = connection = Connection(
            channel, hub.loop, hub.inbox, hub.limits,
            accepts=wire.REQUESTER_GREETS, disarm=hub.receiver.unwatch,
        )  # fmt: skip
        connection.owner = self
        self._requests = Requests(hub, connection, self._on_mismatch)
        hub.receiver.watch(connection)

    # -- frames ----------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """See `connection.Owner`."""
        self._handlers[frame.kind](frame)

    def _on_challenge(self, frame: Frame) -> None:
        connection = self._connection
        if self._sent is not None or connection is None:
            raise RemoteProtocolError("a second CHALLENGE")
        challenge = wire.parse_greeting(frame, Challenge)
        said = hello(
            self._hub.secret, challenge,
            nonce=secrets.token_bytes(NONCE_BYTES), node=self._hub.node, role="peer",
        )  # fmt: skip
        self._sent = challenge, said
        connection.send(wire.greeting(Kind.HELLO, said))

    def _on_welcome(self, frame: Frame) -> None:
        connection = self._connection
        if self._sent is None or self.ready or connection is None:
            raise RemoteProtocolError("WELCOME out of order")
        welcome = wire.parse_greeting(frame, Welcome)
        member = connection.channel.member
        if welcome.node != self.node or (member is not None and not member.owns(self.node)):
            self.close(Outcome.LOST, "another node answers at its address")
            return
        confirm(self._hub.secret, *self._sent, welcome)
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
        known = self._hub.on_list(self, stream.port.layout.digest, self.node, have)
        stream.port.peer_joined(self.node, known, frame.b)

    def _not_served(self, stream: _Stream) -> None:
        was_joined, stream.joined = stream.joined, False
        digest = stream.port.layout.digest
        if self._requests is not None:
            self._requests.drop_stream(stream.number, Outcome.REFUSED)
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
        self._hub.heard[stream.port.layout.digest].on_more(self.node, runs)
        stream.port.peer_has(self.node, runs, frame.a)

    def _on_busy(self, frame: Frame) -> None:
        self._on_answer(frame, Outcome.BUSY)

    def _on_refused(self, frame: Frame) -> None:
        _log.debug("peer %s refused: %s", format_node(self.node), wire.reason_text(frame))
        self._on_answer(frame, Outcome.REFUSED)

    def _on_answer(self, frame: Frame, outcome: Outcome) -> None:
        assert self._requests is not None
        self._requests.on_answer(frame, outcome)

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
        return stream  # None: we left it, and the frame was sent before the server knew

    # -- the end ---------------------------------------------------------------------------------

    def _on_mismatch(self) -> None:
        self._hub.ban(self.node)
        self.close(Outcome.LOST, "sent bytes that don't match the manifest")

    def on_violation(self, error: P2PCacheError) -> None:
        """See `connection.Owner`."""
        if self._connection is not None:
            self._hub.on_violation(self.node if self.ready else -1, str(error))
            self._connection.close(Outcome.LOST, str(error))

    def on_closed(self, outcome: Outcome, text: str) -> None:
        """See `connection.Owner`; also called when the connection never stood."""
        if self._over:
            return
        self._over = True
        _log.info("connection to peer %s ended: %s", format_node(self.node), text)
        self._dialer.abandon()
        if self._connection is not None:
            self._hub.keep_counts(self._connection)
        if self._hub.requesting.get(self.node) is self:
            del self._hub.requesting[self.node]
        streams, self._streams, self._by_number = self._streams, {}, {}
        for digest, stream in streams.items():
            if self._requests is not None:
                self._requests.end_stream(stream.number, outcome)
            end = stream.port.peer_left if stream.joined else stream.port.dial_failed
            self._hub.inbox.post(end, self.node)
            # Our last HAVE here may be lost: repeat all of them on the other connection.
            serving = self._hub.serving.get(self.node)
            if serving is not None and stream.port.have_runs():
                serving.send_have(digest, stream.port.have_runs(), self._hub.load())
