"""Shared by all connections of one node: the parts they use, and the tables of sessions.

The hub knows sessions by what it asks of them (`Requesting`, `Serving`), so that the modules of the
sessions can import it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from p2pcache.core.peers.timing import pulse_s
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.stats import RollingMedian
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.ids import NodeId, RunSet, format_node
from p2pcache.io.peers.heard import Heard
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.receive.control_reader import ControlReader
from p2pcache.io.peers.receive.receive_loop import ReceiveLoop
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import Inbox
from p2pcache.io.security.tls import Tls

_log = logging.getLogger(__name__)

REQUESTS = 31  # the latest ones, whose median is the usual time of a request


class Session(Protocol):
    """One connection with a node, and the models that are joined on it."""

    @property
    def connection(self) -> Connection | None:
        """None until TCP and TLS stand."""

    def has_joined(self, digest: str) -> bool:
        """Whether the node says on this connection what it has of a model."""
        ...

    def send_have(self, digest: str, runs: RunSet, load: int) -> bool:
        """Send HAVE with our load; False if the model wasn't joined on this connection."""
        ...

    def close(self, outcome: Outcome, text: str) -> None:
        """End the session; requests of ours on it end with `outcome`, and `text` says why."""

    def check_deadlines(self, now: float) -> None:
        """End handshakes and requests that took too long; called several times a second.

        Args:
            now: monotonic seconds.
        """


class Requesting(Session, Protocol):
    """A session in which this node requests (`request.client_session.ClientSession`)."""

    ready: bool  # the handshake is over

    def join(self, digest: str, port: SwarmPort) -> None:
        """Join a model; does nothing if that is done or under way."""

    def leave(self, digest: str) -> None:
        """Leave a model; its requests end CANCELLED."""

    def request(self, digest: str, request: int, spans: deque[range], priority: Priority) -> bool:
        """Request spans of chunks, one after the other; False: the model isn't joined here."""
        ...

    def cancel(self, digest: str, request: int) -> bool:
        """Take a request back; False: it isn't under way here."""
        ...


class Serving(Session, Protocol):
    """A session in which the other node requests (`serve.server_session.ServerSession`)."""

    node: NodeId  # -1 until the handshake is over

    @property
    def connection(self) -> Connection:
        """Stands from the beginning."""
        ...

    def stop_serving(self, digest: str) -> None:
        """Tell the node that a model is served here no longer."""


@dataclass(slots=True)
class Totals:
    """Counters since start; payload bytes of closed connections are added here."""

    bytes_received: int = 0
    bytes_served: int = 0
    mismatches: int = 0  # chunks whose bytes didn't match the manifest
    violations: int = 0  # peers dropped for breaking a rule
    busy: int = 0  # requests that we answered BUSY


class Hub:
    """Tables by node and model; used on the loop's thread only."""

    def __init__(
        self,
        *,
        node: NodeId,
        secret: Secret,
        advertise: str,
        limits: PeerLimits,
        loop: asyncio.AbstractEventLoop,
        inbox: Inbox,
        receiver: ReceiveLoop,
        reader: ControlReader,
        load: Callable[[], int],
        tls: Tls | None,
    ) -> None:
        """Nobody is connected yet.

        Args:
            node: our id.
            secret: the cluster key.
            advertise: "host:port" at which peers may dial us back.
            limits: what peers may do.
            loop: the loop whose thread uses the hub.
            inbox: the way to that loop.
            receiver: receives on the connections that we opened.
            reader: receives on those that peers opened.
            load: as HAVE messages say it.
            tls: our certificate; None: connections are plain TCP.
        """
        self.node = node
        self.secret = secret
        self.advertise = advertise
        self.limits = limits
        self.loop = loop
        self.inbox = inbox
        self.receiver = receiver
        self.reader = reader
        self.load = load
        self.tls = tls
        inbox.wanted_pulse_s = self.pulse_s
        self.swarms: dict[str, SwarmPort] = {}
        self.heard: dict[str, Heard] = {}  # of the same models
        self.requesting: dict[NodeId, Requesting] = {}  # by the node that serves us
        self.serving: dict[NodeId, Serving] = {}  # by the node that we serve; handshake over
        # Before the handshake, with the group of addresses that each comes from; oldest first.
        self.half_open: dict[Serving, str] = {}
        self.totals = Totals()
        self._banned: dict[NodeId, float] = {}  # node -> until when it isn't dialled
        self._refused: dict[NodeId, float] = {}  # node -> until when it isn't let in
        self._request_s = RollingMedian(REQUESTS)

    def on_request_done(self, seconds: float) -> None:
        """A request of ours was answered in full."""
        self._request_s.add(seconds)

    @property
    def silent_s(self) -> float:
        """How long a request may be without a byte of DATA, in seconds."""
        limits = self.limits
        usual_s = self._request_s.median
        return min(max(limits.silent_times * usual_s, limits.silent_s), limits.request_s)

    def pulse_s(self) -> float:
        """Seconds between the loop's pulses: as far apart as the quickest of our pulls allows; 0: none."""
        pulls = [pull for one in self.swarms.values() if (pull := one.awaited())[0]]
        if not pulls:
            return 0.0
        return pulse_s(min(pace_s for _, pace_s in pulls), min(lacking for lacking, _ in pulls))

    def ban(self, node: NodeId) -> None:
        """Don't dial a node that sent wrong bytes, for a while.

        It may still dial us and gets what it asks for. If nobody served it, it would read storage for itself.
        """
        self._note(self._banned, node)

    def banned(self, node: NodeId) -> bool:
        """Whether the node isn't dialled: it sent wrong bytes or broke a rule."""
        return self._banned.get(node, 0.0) > time.monotonic()

    def refuses(self, node: NodeId) -> bool:
        """Whether the node isn't let in: it broke a rule."""
        return self._refused.get(node, 0.0) > time.monotonic()

    def on_violation(self, node: NodeId, text: str) -> None:
        """Count a broken rule, and ban the node if it is known (-1: a stranger)."""
        self.totals.violations += 1
        if node < 0:  # anybody can connect: no line in the log for each
            _log.debug("a stranger broke the protocol: %s", text)
            return
        _log.warning("peer %s broke the protocol: %s", format_node(node), text)
        self.inbox.post(self.hang_up, node, text)

    def hang_up(self, node: NodeId, text: str) -> None:
        """End both connections with a node, and neither dial it nor let it in for a while."""
        self.ban(node)
        self._note(self._refused, node)
        for session in self._sessions(node):
            session.close(Outcome.LOST, text)

    def keep_counts(self, connection: Connection) -> None:
        """Add the bytes of a connection that has closed to the totals."""
        self.totals.bytes_received += connection.bytes_in
        self.totals.bytes_served += connection.bytes_out

    def on_list(self, joining: Session, digest: str, node: NodeId, runs: RunSet) -> RunSet:
        """A node said on a connection all that it has of a model; returns all that it is known to have.

        The list may be older than what it says on its other connection meanwhile. So it is the whole truth only if it
        is the node's first word.
        """
        heard = self.heard[digest]
        others = [session for session in self._sessions(node) if session is not joining]
        if any(session.has_joined(digest) for session in others):
            runs |= heard.runs_of(node)
        heard.on_list(node, runs, dialled=self.requesting.get(node) is joining)
        return runs

    def announce(self, digest: str, runs: RunSet) -> None:
        """Send HAVE to every neighbour that lacks some of these runs, on one connection each."""
        if digest not in self.swarms:
            return
        load, heard = self.load(), self.heard[digest]
        for node in dict.fromkeys((*self.requesting, *self.serving)):
            if fresh := runs & ~heard.runs_of(node):
                for session in self._sessions(node):
                    if session.send_have(digest, fresh, load):
                        break

    def forget_heard(self, digest: str, node: NodeId) -> bool:
        """Forget what a node has of a model; False: it is connected and goes on telling."""
        if any(session.has_joined(digest) for session in self._sessions(node)):
            return False
        if digest in self.heard:
            self.heard[digest].runs.pop(node, None)
        return True

    def _note(self, times: dict[NodeId, float], node: NodeId) -> None:
        now = time.monotonic()
        for other in [one for one, until in times.items() if until <= now]:
            del times[other]
        times[node] = now + self.limits.ban_s

    def _sessions(self, node: NodeId) -> list[Session]:
        """The sessions with a node, the one in which we request first."""
        found: list[Session | None] = [self.requesting.get(node), self.serving.get(node)]
        return [session for session in found if session is not None]
