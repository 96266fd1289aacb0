"""A session in which another node requests: it proves membership, joins models, gets chunks."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from p2pcache.core.membership.crowded_address import crowd_of
from p2pcache.core.protocol.handshake import (
    NONCE_BYTES,
    VERSIONS,
    Challenge,
    Hello,
    accept,
)
from p2pcache.core.ratelimit import Rate, RateCounter
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError
from p2pcache.ids import RunSet, format_node
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.protocol.wire import Frame, Kind
from p2pcache.io.peers.serve.uploads import Upload, Uploads
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.tls_handshake import peer_host

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stream:
    """One model that the requester joined."""

    number: int
    digest: str
    port: SwarmPort | None  # None: not served here (any more)
    run_count: int


class ServerSession:
    """Serves one requester: proves membership, admits its requests, announces our runs to it."""

    def __init__(self, hub: Hub, uploads: Uploads, connection: Connection) -> None:
        """Challenge the newcomer on a connection that is not yet armed."""
        self.node = -1  # until the handshake is over
        self.connection = connection
        self._hub = hub
        self._uploads = uploads
        self._challenge = Challenge(secrets.token_bytes(NONCE_BYTES), VERSIONS)
        self._streams: dict[int, _Stream] = {}
        self._requests: dict[int, Upload] = {}  # by the requester's number
        limits = hub.limits
        self._unserved = RateCounter(Rate(limits.frames_per_s, limits.frames_burst))
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.HELLO: self._on_hello, Kind.JOIN: self._on_join, Kind.HAVE: self._on_have,
            Kind.REQUEST: self._on_request, Kind.CANCEL: self._on_cancel,
            Kind.LEAVE: self._on_leave, Kind.PING: self._on_ping, Kind.BYE: self._on_bye,
        }  # fmt: skip
        connection.owner = self
        hub.half_open[self] = crowd_of(peer_host(connection.sock))
        connection.send(wire.greeting(Kind.CHALLENGE, self._challenge))

    # -- calls of `net` and `hub` ------------------------------------------------------------------

    def has_joined(self, digest: str) -> bool:
        """See `hub.Session`."""
        return any(s.digest == digest and s.port is not None for s in self._streams.values())

    def send_have(self, digest: str, runs: RunSet, load: int) -> bool:
        """See `hub.Session`."""
        joined = [s for s in self._streams.values() if s.digest == digest and s.port is not None]
        for stream in joined:
            self.connection.send(wire.have(stream.number, runs, stream.run_count, load))
        return bool(joined)

    def close(self, outcome: Outcome, text: str) -> None:
        """See `hub.Session`."""
        self.connection.close(outcome, text)

    def stop_serving(self, digest: str) -> None:
        """See `hub.Serving`."""
        for stream in self._streams.values():
            if stream.digest != digest or stream.port is None:
                continue
            stream.port = None
            for upload in list(self._requests.values()):
                if upload.stream == stream.number:
                    self._uploads.cancel_upload(upload)
            self.connection.send(wire.joined(stream.number, 0, self._hub.load(), None))

    def check_deadlines(self, now: float) -> None:
        """See `hub.Session`: only the handshake has one."""
        if self.node < 0 and now - self.connection.opened_at > self._hub.limits.handshake_s:
            self.connection.close(Outcome.LOST, "the handshake took too long")

    # -- frames ----------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """See `connection.Owner`."""
        self._handlers[frame.kind](frame)

    def _on_hello(self, frame: Frame) -> None:
        hub = self._hub
        said = wire.parse_greeting(frame, Hello)
        welcome = accept(hub.secret, self._challenge, said, node=hub.node, role="peer")
        if said.node == hub.node:
            raise RemoteProtocolError("HELLO with our own node id")
        member = self.connection.channel.member
        if member is not None and not member.owns(said.node):
            _log.warning("refused a peer: node %s is not one of %s", format_node(said.node), member)
            raise NotAllowed(f"node {format_node(said.node)} is not one of {member}")
        if hub.refuses(said.node):
            self.connection.close(Outcome.LOST, "refused for a while after a broken rule")
            return
        self.node = said.node
        before = hub.serving.get(self.node)
        if before is not None:
            before.connection.close(Outcome.LOST, "replaced by a newer connection")
        del hub.half_open[self]
        hub.serving[self.node] = self
        self.connection.accepts = wire.SERVER_HEARS
        self.connection.send(wire.greeting(Kind.WELCOME, welcome))

    def _on_join(self, frame: Frame) -> None:
        said = wire.parse_join(frame)
        if frame.stream in self._streams or len(self._streams) >= self._hub.limits.streams:
            raise RemoteProtocolError("JOIN on a stream in use, or of too many models")
        hub = self._hub
        port = hub.swarms.get(said.digest)
        if port is not None and port.layout.run_count != said.run_count:
            raise RemoteProtocolError("JOIN with another number of runs than the manifest has")
        have = port.have_runs() if port is not None else None
        self.connection.send(wire.joined(frame.stream, said.run_count, hub.load(), have))
        if port is not None:
            hub.on_list(self, said.digest, self.node, said.have)
            port.inbound(self.node, said.address, said.wants)
        self._streams[frame.stream] = _Stream(frame.stream, said.digest, port, said.run_count)

    def _on_have(self, frame: Frame) -> None:
        stream = self._stream(frame)
        runs = wire.parse_have(frame, stream.run_count)
        if stream.port is not None:
            self._hub.heard[stream.digest].on_more(self.node, runs)
            stream.port.peer_has(self.node, runs, frame.a)

    def _on_request(self, frame: Frame) -> None:
        stream = self._stream(frame)
        port, number = stream.port, frame.a
        if number in self._requests or len(self._requests) >= self._hub.limits.requests:
            raise RemoteProtocolError("REQUEST with a number in use, or too many at once")
        if port is None:
            self._refuse(stream.number, number, "not served here")
            return
        layout = port.layout
        chunks = wire.parse_request(frame, layout.chunk_count)
        run = layout.run_of(chunks.start)
        if layout.run_of(chunks.stop - 1) != run:
            raise RemoteProtocolError("REQUEST across runs")
        if not port.have_runs() >> run & 1:
            self._refuse(stream.number, number, "not here")
            return
        upload = Upload(
            self.connection, stream.number, number, chunks, port.store, self._on_upload_ended,
            self._on_recall,
        )  # fmt: skip
        self._requests[number] = upload
        if not self._uploads.offer(upload, wire.priority_of(frame)):
            del self._requests[number]
            self._count_unserved()
            self._hub.totals.busy += 1
            load = self._hub.load()
            self.connection.send(wire.pack(Kind.BUSY, stream=stream.number, a=number, b=load))

    def _on_cancel(self, frame: Frame) -> None:
        upload = self._requests.get(frame.a)
        if upload is not None:  # else it was all sent before the CANCEL came
            self._uploads.cancel_upload(upload)

    def _on_leave(self, frame: Frame) -> None:
        stream = self._stream(frame)
        del self._streams[stream.number]
        for upload in list(self._requests.values()):
            if upload.stream == stream.number:
                self._uploads.cancel_upload(upload)

    def _on_ping(self, frame: Frame) -> None:
        if not frame.flags & wire.FLAG:
            self.connection.send(wire.pack(Kind.PING, flags=wire.FLAG, a=frame.a))

    def _on_bye(self, frame: Frame) -> None:
        self.connection.close(Outcome.LOST, f"it says: {wire.reason_text(frame)}", bye=False)

    def _stream(self, frame: Frame) -> _Stream:
        stream = self._streams.get(frame.stream)
        if stream is None:
            raise RemoteProtocolError("a frame on a stream that was never joined")
        return stream

    # -- answers ---------------------------------------------------------------------------------

    def _refuse(self, stream: int, number: int, text: str) -> None:
        self._count_unserved()
        self.connection.send(wire.reason(Kind.REFUSED, text, stream=stream, a=number))

    def _count_unserved(self) -> None:
        # A served request costs the requester the time of its bytes; a refused one costs it nothing.
        if not self._unserved.allow(time.monotonic()):
            raise RemoteProtocolError("too many requests that can't be served")

    def _on_recall(self, refused: Upload, load: int) -> None:
        """A slot is free after BUSY, or others are served: say so with an empty HAVE."""
        stream = self._streams.get(refused.stream)
        if stream is not None and stream.port is not None:
            self.connection.send(wire.have(stream.number, 0, stream.run_count, load))

    def _on_upload_ended(self, upload: Upload, left: str) -> None:
        self._requests.pop(upload.number, None)
        if left:
            self.connection.send(
                wire.reason(Kind.REFUSED, left, stream=upload.stream, a=upload.number)
            )

    # -- the end ---------------------------------------------------------------------------------

    def on_violation(self, error: P2PCacheError) -> None:
        """See `connection.Owner`."""
        self._hub.on_violation(self.node, str(error))
        self.connection.close(Outcome.LOST, str(error))

    def on_closed(self, outcome: Outcome, text: str) -> None:
        """See `connection.Owner`."""
        hub = self._hub
        if self.node >= 0:
            _log.info("connection from peer %s ended: %s", format_node(self.node), text)
        for upload in self._requests.values():
            upload.cancelled = True
        self._uploads.on_connection_closed(self.connection)
        hub.half_open.pop(self, None)
        if hub.serving.get(self.node) is self:
            del hub.serving[self.node]
        hub.keep_counts(self.connection)
