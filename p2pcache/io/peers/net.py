"""The peer data plane of one node, as the agent uses it.

Every method is called, and every `SwarmPort` is called back, on the loop's thread.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from p2pcache.core.protocol.address import can_be_tried, join
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.ratelimit import RateLimit
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import LocalProtocolError, P2PCacheError
from p2pcache.ids import NodeId, RunIndex, RunSet
from p2pcache.io import pools
from p2pcache.io.peers.heard import Heard
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.liveness import Liveness
from p2pcache.io.peers.protocol.limits import PeerLimits, TokenBucket
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.receive.control_reader import ControlReader
from p2pcache.io.peers.receive.frame_parser import FrameParser
from p2pcache.io.peers.receive.receive_loop import ReceiveLoop
from p2pcache.io.peers.request.client_session import ClientSession
from p2pcache.io.peers.serve.listener import Listener, bind
from p2pcache.io.peers.serve.uploads import Uploads
from p2pcache.io.peers.transport.workers import Inbox, Workers
from p2pcache.io.security.tls import Tls

MAX_THREADS = 4  # for receiving, and as many for writing: enough for a 25 GbE link

_log = logging.getLogger(__name__)


class PeerStats(NamedTuple):
    """Counters since start, and the present load."""

    bytes_received: int  # payload
    bytes_served: int  # payload
    mismatches: int
    violations: int
    connections: int  # both directions, handshake over
    load: int  # uploads active and waiting
    refused: int = 0  # inbound connections without a good certificate
    busy: int = 0  # requests that we answered BUSY


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a started network consists of."""

    hub: Hub
    uploads: Uploads
    writers: Workers
    listener: Listener
    liveness: Liveness

    def stop_threads(self) -> None:
        """End all threads (blocks)."""
        self.uploads.stop()
        self.hub.receiver.stop()
        self.writers.stop()


class PeerNet:
    """All connections between this node and its peers."""

    def __init__(
        self,
        *,
        node: NodeId,
        secret: Secret,
        uploads: UploadSettings,
        upload_bytes_per_s: int | None = None,
        download_bytes_per_s: int | None = None,
        disk: TokenBucket | None = None,
        advertise: str = "",
        limits: PeerLimits | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Nothing starts before `start`.

        Args:
            node: our id.
            secret: the cluster key.
            uploads: the slots.
            upload_bytes_per_s: cap on payload sent; None or 0: none.
            download_bytes_per_s: cap on payload received; None or 0: none.
            disk: rate of writes to the cache, shared with its other writers.
            advertise: "host:port" that peers may dial back; default: the address `start` got.
            limits: deadlines and sizes; the defaults are the protocol's.
            tls: our certificate; every connection is then TLS, with one at the other end too.
        """
        self._node = node
        self._secret = secret
        self._upload_settings = uploads
        self._up = TokenBucket(upload_bytes_per_s or 0)
        self._down = TokenBucket(download_bytes_per_s or 0)
        self._disk = disk or TokenBucket()
        self._advertise = advertise
        self._limits = limits or PeerLimits()
        self._tls = tls
        self._priorities: dict[str, Priority] = {}  # of models whose requests let others go first
        self._dial_backs = RateLimit(self._limits.dial_backs, self._limits.dial_backs)
        self._started: _Parts | None = None

    # -- life ------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address (port 0: the system chooses).

        Raises:
            UsageError: the address can't be had.
        """
        sock = await bind(host, port)
        bound = sock.getsockname()
        self._begin(sock, self._advertise or join(bound[0], bound[1])).listener.start()
        return str(bound[0]), int(bound[1])

    def start_alone(self) -> None:
        """Start without a port: no node can reach us, and nobody else on this host."""
        self._begin(socket.socket(socket.AF_UNIX), self._advertise)  # it never listens

    def _begin(self, sock: socket.socket, advertise: str) -> _Parts:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop)
        threads = min(MAX_THREADS, max(2, os.cpu_count() or 2))
        writers = Workers(threads, "chunk-write")
        parser = FrameParser(writers)
        uploads = Uploads(self._upload_settings, inbox, self._up)
        hub = Hub(
            node=self._node, secret=self._secret, limits=self._limits, loop=loop, inbox=inbox,
            advertise=advertise,
            receiver=ReceiveLoop(inbox, parser, threads=threads, down=self._down, disk=self._disk),
            reader=ControlReader(inbox, parser), load=lambda: uploads.told_load, tls=self._tls,
        )  # fmt: skip
        listener, liveness = Listener(sock, hub, uploads), Liveness(hub)
        self._started = parts = _Parts(hub, uploads, writers, listener, liveness)
        liveness.start()
        return parts

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Accept no more, let uploads finish for up to `drain_s`, say BYE, close everything."""
        parts = self._started
        if parts is None or not parts.listener.open:
            return
        hub = parts.hub
        parts.listener.close()
        parts.uploads.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await parts.uploads.idle.wait()
        for session in [*hub.requesting.values(), *hub.serving.values(), *hub.half_open]:
            session.close(Outcome.LOST, "leaving")
        parts.liveness.stop()
        await pools.STEPS.run(parts.stop_threads)
        hub.inbox.stop()  # the last ends that the threads reported
        hub.reader.stop()

    def move(self, address: str) -> None:
        """Peers may dial us back at another "host:port" from now on."""
        self._advertise = self._hub.advertise = address

    # -- models ----------------------------------------------------------------------------------

    def add_swarm(self, port: SwarmPort) -> None:
        """Serve a model, and be able to request it."""
        self._hub.swarms[port.layout.digest] = port
        self._hub.heard[port.layout.digest] = Heard()

    def remove_swarm(self, digest: str) -> None:
        """Neither serve nor request a model any more; requests under way end CANCELLED."""
        hub = self._hub
        if hub.swarms.pop(digest, None) is None:
            return
        for server in list(hub.serving.values()):
            server.stop_serving(digest)
        for client in list(hub.requesting.values()):
            client.leave(digest)
        del hub.heard[digest]

    def dial(self, digest: str, node: NodeId, address: str) -> None:
        """Join a model at a node; ends in `peer_joined` or `dial_failed`.

        Does nothing where that is done or under way.
        """
        hub = self._hub
        port = self._port(digest)
        if node == hub.node or hub.banned(node) or not self._parts.listener.open:
            hub.inbox.post(port.dial_failed, node)
            return
        session = hub.requesting.get(node)
        if session is None:
            session = hub.requesting[node] = ClientSession(hub, node, address)
        session.join(digest, port)

    def dial_back(self, digest: str, node: NodeId, address: str) -> bool:
        """Join a model at a node that dialled us, where it says; False: a caller's word isn't worth that dial now.

        Whoever has the key may call under any number of ids and name any address.
        """
        waiting = sum(not session.ready for session in self._hub.requesting.values())
        if waiting >= self._hub.limits.dial_backs_open or not can_be_tried(address):
            return False
        if self._dial_backs.take("", time.monotonic(), patience_s=0):
            return False
        self.dial(digest, node, address)
        return True

    def put_behind(self, digest: str, priority: Priority) -> None:
        """Give all requests for a model this priority (USUAL: the one that `request` says)."""
        if priority is Priority.USUAL:
            self._priorities.pop(digest, None)
        else:
            self._priorities[digest] = priority

    def request(
        self,
        digest: str,
        request: int,
        node: NodeId,
        run: RunIndex,
        priority: Priority = Priority.USUAL,
    ) -> None:
        """Request the missing chunks of a run from a joined node; ends in one `request_ended`.

        Args:
            digest: of the model.
            request: the scheduler's number for the request.
            node: the node to ask.
            run: the run.
            priority: its priority at the server, unless `put_behind` set one for the model.
        """
        hub = self._hub
        port = self._port(digest)
        try:
            spans = _spans(port.store.missing_chunks(run))
        except (P2PCacheError, OSError) as error:
            _log.warning("can't ask for run %d: %s", run, error)
            hub.inbox.post(port.request_ended, request, Outcome.FAILED, 0)
            return
        if not spans:
            hub.inbox.post(port.request_ended, request, Outcome.DONE, 0)
            return
        session = hub.requesting.get(node)
        priority = self._priorities.get(digest, priority)
        if session is None or not session.request(digest, request, spans, priority):
            hub.inbox.post(port.request_ended, request, Outcome.LOST, 0)

    def cancel(self, digest: str, request: int) -> None:
        """Take a request back; it ends CANCELLED unless its end is on the way already."""
        for session in self._hub.requesting.values():
            if session.cancel(digest, request):
                return

    def limit_uploads(self, bytes_per_s: float, slots: int) -> None:
        """Limit uploads further than the settings do; 0 bytes per second: as the settings say."""
        self._up.limit(bytes_per_s)
        self._parts.uploads.limit_slots(slots)

    def announce(self, digest: str, runs: RunSet) -> None:
        """Send HAVE to every neighbour that lacks some of these runs."""
        self._hub.announce(digest, runs)

    def forget_heard(self, digest: str, node: NodeId) -> bool:
        """Forget what a node has of a model; False: it is connected and goes on telling."""
        return self._hub.forget_heard(digest, node)

    # -- facts -----------------------------------------------------------------------------------

    def pulse_after(self, when: float) -> float:
        """See `workers.Inbox`."""
        return self._hub.inbox.pulse_after(when)

    def rtt_s(self, node: NodeId) -> float:
        """Least round-trip time to a joined node, in seconds; 0: not known."""
        session = self._hub.requesting.get(node)
        connection = session.connection if session is not None else None
        return connection.rtt_s if connection is not None else 0.0

    def heard(self, digest: str) -> Mapping[NodeId, RunSet]:
        """The runs of a model that each node said it has, nodes that have hung up included."""
        heard = self._hub.heard.get(digest)
        return heard.runs if heard is not None else {}

    @property
    def load(self) -> int:
        """Uploads active and waiting."""
        return self._parts.uploads.load

    @property
    def stats(self) -> PeerStats:
        """Counters since start."""
        hub, totals = self._hub, self._hub.totals
        open_now = [c.connection for c in hub.requesting.values() if c.ready and c.connection]
        open_now += [s.connection for s in hub.serving.values()]
        return PeerStats(
            totals.bytes_received + sum(c.bytes_in for c in open_now),
            totals.bytes_served + sum(c.bytes_out for c in open_now),
            totals.mismatches,
            totals.violations,
            len(open_now),
            self._parts.uploads.load,
            self._parts.listener.refused,
            totals.busy,
        )

    @property
    def _parts(self) -> _Parts:
        if self._started is None:
            raise LocalProtocolError("the peer network is not started")
        return self._started

    @property
    def _hub(self) -> Hub:
        return self._parts.hub

    def _port(self, digest: str) -> SwarmPort:
        port = self._hub.swarms.get(digest)
        if port is None:
            raise LocalProtocolError(f"model {digest} was not added to the peer network")
        return port


def _spans(chunks: list[int]) -> deque[range]:
    """Ascending chunk indices as contiguous ranges."""
    spans: deque[range] = deque()
    for chunk in chunks:
        if spans and spans[-1].stop == chunk:
            spans[-1] = range(spans[-1].start, chunk + 1)
        else:
            spans.append(range(chunk, chunk + 1))
    return spans
