"""The loop-side logic of a connection whose other end requests from this node."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from p2pcache.core.membership.crowded_address import crowd_of
from p2pcache.core.protocol.handshake import (
    NONCE_BYTES,
    VERSIONS,
    Challenge,
    Hello,
    accept,
    is_node,
)
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError
from p2pcache.ids import format_node
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.limits import FrameRate
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.protocol.wire import Frame, Kind
from p2pcache.io.peers.serve.uploads import Upload
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.tls_accept import where

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    """One model that the requester joined."""

    number: int
    digest: str
    port: SwarmPort | None  # None: not served here (any more)
    run_count: int
    have: int


class Serving:
    """Answers one requester: proves membership, admits its requests, tells it what we have."""

    def __init__(self, hub: Hub, connection: Connection) -> None:
        """Challenge the newcomer on a connection that is not yet armed."""
        self.node = -1  # until the handshake is over
        self.connection = connection
        self._hub = hub
        self._challenge = Challenge(secrets.token_bytes(NONCE_BYTES), VERSIONS)
        self._sessions: dict[int, _Session] = {}
        self._uploads: dict[int, Upload] = {}  # by the requester's number
        limits = hub.limits
        self._unserved = FrameRate(limits.frames_per_s, limits.frames_burst)
        self._handlers: dict[int, Callable[[Frame], None]] = {
            Kind.HELLO: self._on_hello, Kind.JOIN: self._on_join, Kind.HAVE: self._on_have,
            Kind.REQUEST: self._on_request, Kind.CANCEL: self._on_cancel,
            Kind.LEAVE: self._on_leave, Kind.PING: self._on_ping, Kind.BYE: self._on_bye,
        }  # fmt: skip
        connection.owner = self
        hub.half_open[self] = crowd_of(where(connection.sock))
        connection.send(wire.greeting(Kind.CHALLENGE, self._challenge))

    # -- what the facade asks --------------------------------------------------------------------

    def peer_have(self, digest: str) -> int:
        """What the node said it has, on this connection."""
        return next((s.have for s in self._sessions.values() if s.digest == digest), 0)

    def tell(self, digest: str, runs: int) -> None:
        """Say HAVE, if the node joined the model here."""
        for session in self._sessions.values():
            if session.digest == digest and session.port is not None:
                load = self._hub.uploads.load
                self.connection.send(wire.have(session.number, runs, session.run_count, load))

    def unserve(self, digest: str) -> None:
        """The model is not served any more."""
        for session in self._sessions.values():
            if session.digest != digest or session.port is None:
                continue
            session.port = None
            for upload in list(self._uploads.values()):
                if upload.stream == session.number:
                    self._hub.uploads.cancel(upload)
            self.connection.send(wire.joined(session.number, 0, self._hub.uploads.load, None))

    def tick(self, now: float) -> None:
        """The deadline of the handshake."""
        if self.node < 0 and now - self.connection.opened_at > self._hub.limits.handshake_s:
            self.connection.close(Outcome.LOST, "the handshake took too long")

    # -- frames ----------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """One control frame (see `connection.Owner`)."""
        self._handlers[frame.kind](frame)

    def _on_hello(self, frame: Frame) -> None:
        hub = self._hub
        said = wire.parse_greeting(frame, Hello)
        welcome = accept(hub.secret, self._challenge, said, node=hub.node, role="peer")
        if not is_node(said.node) or said.node == hub.node:
            raise RemoteProtocolError("HELLO with an impossible node id")
        member = self.connection.channel.member
        if member is not None and not member.owns(said.node):
            _log.warning("refused a peer: node %s is not one of %s", format_node(said.node), member)
            raise NotAllowed(f"node {format_node(said.node)} is not one of {member}")
        if hub.banned(said.node):
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
        if frame.stream in self._sessions or len(self._sessions) >= self._hub.limits.streams:
            raise RemoteProtocolError("JOIN on a stream in use, or of too many models")
        hub = self._hub
        port = hub.swarms.get(said.digest)
        if port is not None and port.layout.run_count != said.run_count:
            raise RemoteProtocolError("JOIN with another number of runs than the manifest has")
        session = _Session(frame.stream, said.digest, port, said.run_count, said.have)
        self._sessions[frame.stream] = session
        have = port.have_runs() if port is not None else None
        self.connection.send(wire.joined(frame.stream, said.run_count, hub.uploads.load, have))
        if port is not None:
            port.inbound(self.node, said.address, said.wants, said.have)

    def _on_have(self, frame: Frame) -> None:
        session = self._session(frame)
        runs = wire.parse_have(frame, session.run_count)
        session.have |= runs
        if session.port is not None:
            session.port.peer_has(self.node, runs, frame.a)

    def _on_request(self, frame: Frame) -> None:
        session = self._session(frame)
        port, number = session.port, frame.a
        if number in self._uploads or len(self._uploads) >= self._hub.limits.requests:
            raise RemoteProtocolError("REQUEST with a number in use, or too many at once")
        if port is None:
            self._refuse(session.number, number, "not served here")
            return
        layout = port.layout
        chunks = wire.parse_request(frame, layout.chunk_count)
        run = layout.run_of(chunks.start)
        if layout.run_of(chunks.stop - 1) != run:
            raise RemoteProtocolError("REQUEST across runs")
        if not port.have_runs() >> run & 1:
            self._refuse(session.number, number, "not here")
            return
        upload = Upload(
            self.connection, session.number, number, chunks, port.store, self._upload_ended,
            self._room, port.pace_s,
        )  # fmt: skip
        self._uploads[number] = upload
        if not self._hub.uploads.offer(upload, wire.turn_of(frame)):
            del self._uploads[number]
            self._count_unserved()
            self._hub.totals.busy += 1
            load = self._hub.uploads.load
            self.connection.send(wire.pack(Kind.BUSY, stream=session.number, a=number, b=load))

    def _on_cancel(self, frame: Frame) -> None:
        upload = self._uploads.get(frame.a)
        if upload is not None:  # else it was all sent before the CANCEL came
            self._hub.uploads.cancel(upload)

    def _on_leave(self, frame: Frame) -> None:
        session = self._session(frame)
        del self._sessions[session.number]
        for upload in list(self._uploads.values()):
            if upload.stream == session.number:
                self._hub.uploads.cancel(upload)

    def _on_ping(self, frame: Frame) -> None:
        if not frame.flags & wire.FLAG:
            self.connection.send(wire.pack(Kind.PING, flags=wire.FLAG, a=frame.a))

    def _on_bye(self, frame: Frame) -> None:
        self.connection.close(Outcome.LOST, f"it says: {wire.reason_text(frame)}", bye=False)

    def _session(self, frame: Frame) -> _Session:
        session = self._sessions.get(frame.stream)
        if session is None:
            raise RemoteProtocolError("a frame on a stream that was never joined")
        return session

    # -- answers ---------------------------------------------------------------------------------

    def _refuse(self, stream: int, number: int, text: str) -> None:
        self._count_unserved()
        self.connection.send(wire.reason(Kind.REFUSED, text, stream=stream, a=number))

    def _count_unserved(self) -> None:
        # Served requests are paid for with the time their bytes take; these others cost nothing.
        if not self._unserved.allow():
            raise RemoteProtocolError("too many requests that can't be served")

    def _room(self, refused: Upload) -> None:
        """It was told BUSY, and a slot is free: it hears that before the others come for it."""
        session = self._sessions.get(refused.stream)
        if session is not None and session.port is not None:
            load = self._hub.uploads.load
            self.connection.send(wire.have(session.number, 0, session.run_count, load))

    def _upload_ended(self, upload: Upload, left: str) -> None:
        self._uploads.pop(upload.number, None)
        if left:
            self.connection.send(
                wire.reason(Kind.REFUSED, left, stream=upload.stream, a=upload.number)
            )

    # -- the end ---------------------------------------------------------------------------------

    def wronged(self, error: P2PCacheError) -> None:
        """The peer broke a rule (see `connection.Owner`)."""
        self._hub.wronged(self.node, str(error))
        self.connection.close(Outcome.LOST, str(error))

    def closed(self, outcome: Outcome, text: str) -> None:
        """The connection is gone (see `connection.Owner`)."""
        hub = self._hub
        if self.node >= 0:
            _log.info("connection from peer %s ended: %s", format_node(self.node), text)
        for upload in self._uploads.values():
            upload.cancelled = True
        hub.uploads.leave(self.connection)
        hub.half_open.pop(self, None)
        if hub.serving.get(self.node) is self:
            del hub.serving[self.node]
        hub.folded(self.connection)
