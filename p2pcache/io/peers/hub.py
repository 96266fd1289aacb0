"""What the connections of one node share: the parts they use and the tables they meet in."""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from p2pcache.core import bitset
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.swarm.events import Outcome
from p2pcache.ids import format_node
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.receive.receive_loop import Pump
from p2pcache.io.peers.serve.uploads import Uploads
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.workers import Inbox
from p2pcache.io.security.tls import Tls

if TYPE_CHECKING:
    from p2pcache.io.peers.request.client_session import Requester
    from p2pcache.io.peers.serve.server_session import Serving

_log = logging.getLogger(__name__)
_REQUESTS = 31  # over which the usual time of one is the median

LATE_S = 0.5  # a look that comes so late is nothing that deadlines of ten seconds notice


@dataclass(slots=True)
class Totals:
    """Counters since start; payload bytes of closed connections are folded in here."""

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
        node: int,
        secret: Secret,
        advertise: str,
        limits: PeerLimits,
        loop: asyncio.AbstractEventLoop,
        inbox: Inbox,
        pump: Pump,
        uploads: Uploads,
        tls: Tls | None,
    ) -> None:
        self.node = node
        self.secret = secret
        self.advertise = advertise
        self.limits = limits
        self.loop = loop
        self.inbox = inbox
        self.pump = pump
        self.uploads = uploads
        self.tls = tls
        self.swarms: dict[str, SwarmPort] = {}
        self.requesters: dict[int, Requester] = {}  # by node: where we request
        self.serving: dict[int, Serving] = {}  # by node, after the handshake: whom we serve
        self.half_open: dict[
            Serving, str
        ] = {}  # before the handshake, with their crowds; oldest first
        self.totals = Totals()
        self._banned: dict[int, float] = {}  # node -> until
        self._took_s: deque[float] = deque(maxlen=_REQUESTS)  # what requests took of late

    def took(self, seconds: float) -> None:
        """A request was answered in full."""
        self._took_s.append(seconds)

    @property
    def silent_s(self) -> float:
        """How long a request may be without a byte of DATA."""
        limits = self.limits
        usual_s = median(self._took_s) if self._took_s else 0.0
        return min(max(limits.silent_times * usual_s, limits.silent_s), limits.request_s)

    def ban(self, node: int) -> None:
        """Neither dial this node nor let it in for a while."""
        now = time.monotonic()
        self._banned = {n: until for n, until in self._banned.items() if until > now}
        self._banned[node] = now + self.limits.ban_s

    def banned(self, node: int) -> bool:
        """Whether it is still refused."""
        return self._banned.get(node, 0.0) > time.monotonic()

    def wronged(self, node: int, text: str) -> None:
        """Count a broken rule, and ban who is known to have broken it."""
        self.totals.violations += 1
        if node < 0:  # anybody can connect: no line in the log for each
            _log.debug("a stranger broke the protocol: %s", text)
            return
        _log.warning("peer %s broke the protocol: %s", format_node(node), text)
        self.inbox.post(self.hang_up, node, text)

    def hang_up(self, node: int, text: str) -> None:
        """End both connections with a node, and refuse it for a while."""
        self.ban(node)
        requester, serving = self.requesters.get(node), self.serving.get(node)
        if requester is not None:
            requester.close(Outcome.LOST, text)
        if serving is not None:
            serving.connection.close(Outcome.LOST, text)

    def excuse(self, late_s: float, now: float) -> None:
        """We were stopped, or too busy to look, for so long: that much of anybody's silence was ours."""
        if late_s < LATE_S:
            return
        asking = [requester.connection for requester in self.requesters.values()]
        for connection in (*asking, *(serving.connection for serving in self.serving.values())):
            if connection is not None:
                connection.heard_at = min(now, connection.heard_at + late_s)

    def folded(self, connection: Connection) -> None:
        """A connection has closed: keep its byte counts."""
        self.totals.bytes_received += connection.bytes_in
        self.totals.bytes_served += connection.bytes_out

    def known_have(self, digest: str, node: int) -> int:
        """Runs that a node is known to have, from both connections with it."""
        requester, serving = self.requesters.get(node), self.serving.get(node)
        have = requester.peer_have(digest) if requester is not None else 0
        if serving is not None:
            have |= serving.peer_have(digest)
        return have

    def announce(self, digest: str, runs: int) -> None:
        """Tell runs to every neighbour that lacks some, on the one right connection each."""
        port = self.swarms.get(digest)
        if port is None:
            return
        everything = bitset.full(port.layout.run_count)
        for node in list(dict.fromkeys((*self.requesters, *self.serving))):
            has = self.known_have(digest, node)
            if has != everything and runs & ~has:
                self._tell(digest, node, runs & ~has)

    def _tell(self, digest: str, node: int, runs: int) -> None:
        requester, serving = self.requesters.get(node), self.serving.get(node)
        if requester is not None and requester.tell(digest, runs):
            return
        if serving is not None:
            serving.tell(digest, runs)
