"""The facade of the peer data plane: one listener, one table of peers, one way in.

Every method is called, and every `SwarmPort` is called back, on the loop's thread.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from typing import NamedTuple

from p2pcache.core.membership.crowded_address import oldest_of_the_crowd
from p2pcache.core.protocol.address import join
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import LocalProtocolError, P2PCacheError, UsageError
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.limits import PeerLimits, TokenBucket
from p2pcache.io.peers.protocol.ports import SwarmPort
from p2pcache.io.peers.receive.receive_loop import Pump
from p2pcache.io.peers.request.client_session import Requester
from p2pcache.io.peers.serve.server_session import Serving
from p2pcache.io.peers.serve.uploads import Uploads
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.channel import Channel, Plain
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.tls_accept import Door
from p2pcache.io.peers.transport.workers import Inbox, Workers
from p2pcache.io.security.tls import Tls

MAX_THREADS = 4  # each for receiving and for writing: 2 cores carry 1 GB/s, 4 a 25 GbE link
ACCEPT_AGAIN_S = 1.0  # after running out of descriptors
BACKLOG = 512  # a storm of nodes dials at the same moment

_log = logging.getLogger(__name__)


class PeerStats(NamedTuple):
    """Counters since start, and what is now."""

    bytes_received: int  # payload
    bytes_served: int  # payload
    mismatches: int
    violations: int
    connections: int  # both directions, handshake over
    load: int  # uploads active and waiting
    refused: int = 0  # who dialled us without a good certificate
    busy: int = 0  # requests that we answered BUSY


class PeerNet:
    """Everything between this node and its peers."""

    def __init__(
        self,
        *,
        node: int,
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
            uploads: slots and queue.
            upload_bytes_per_s: cap on payload sent; None or 0: none.
            download_bytes_per_s: cap on payload received; None or 0: none.
            disk: rate of what is written to the cache, shared with who else writes.
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
        self._turns: dict[str, Priority] = {}  # of models that others come before
        self._door: Door | None = None
        self._hub: Hub | None = None
        self._writers: Workers | None = None
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looked = 0.0  # when the connections were last looked at

    # -- life ------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address (port 0: the system chooses).

        Raises:
            UsageError: the address can't be had.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._listener = listener = socket.create_server(
                found[0][4][:2], family=found[0][0], backlog=BACKLOG, reuse_port=False
            )
        except OSError as error:
            # create_server's own text repeats the address
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise UsageError(
                f"can't listen for peers on {host}:{port}: {why}; choose another --listen address"
            ) from None
        listener.settimeout(0.0)
        bound = listener.getsockname()
        threads = min(MAX_THREADS, max(2, os.cpu_count() or 2))
        inbox = Inbox(loop)
        self._writers = Workers(threads, "chunk-write")
        self._hub = Hub(
            node=self._node, secret=self._secret, limits=self._limits, loop=loop, inbox=inbox,
            advertise=self._advertise or join(bound[0], bound[1]),
            pump=Pump(inbox, threads=threads, writers=self._writers, down=self._down, disk=self._disk),
            uploads=Uploads(self._upload_settings, inbox, self._up), tls=self._tls,
        )  # fmt: skip
        if self._tls is not None:
            self._door = Door(self._tls, loop, self._limits, self._admit)
        self._listen()
        self._tick()
        return str(bound[0]), int(bound[1])

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Take no more, let uploads finish for up to `drain_s`, say BYE, close everything."""
        hub = self._hub
        if hub is None or self._listener is None:
            return
        hub.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        if self._door is not None:
            self._door.close()
        hub.uploads.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await hub.uploads.idle.wait()
        for requester in list(hub.requesters.values()):
            requester.close(Outcome.LOST, "leaving")
        for serving in [*hub.serving.values(), *hub.half_open]:
            serving.connection.close(Outcome.LOST, "leaving")
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.to_thread(self._stop_threads, hub)
        hub.inbox.drain()  # ends that the threads reported last

    def _stop_threads(self, hub: Hub) -> None:
        hub.uploads.stop()
        hub.pump.stop()
        if self._writers is not None:
            self._writers.stop()

    def move(self, address: str) -> None:
        """Peers may dial us back at another "host:port" from now on."""
        self._advertise = self._live.advertise = address

    # -- models ----------------------------------------------------------------------------------

    def add_swarm(self, port: SwarmPort) -> None:
        """Serve a model, and be able to ask for it."""
        self._live.swarms[port.layout.digest] = port

    def remove_swarm(self, digest: str) -> None:
        """Neither serve nor ask any more; requests under way end CANCELLED."""
        hub = self._live
        if hub.swarms.pop(digest, None) is None:
            return
        for serving in list(hub.serving.values()):
            serving.unserve(digest)
        for requester in list(hub.requesters.values()):
            requester.leave(digest)

    def dial(self, digest: str, node: int, address: str) -> None:
        """Join a model at a node; ends in `peer_joined` or `dial_failed`.

        Does nothing where that is done or under way.
        """
        hub = self._live
        port = self._port(digest)
        if node == hub.node or hub.banned(node) or self._listener is None:
            hub.inbox.post(port.dial_failed, node)
            return
        requester = hub.requesters.get(node)
        if requester is None:
            requester = hub.requesters[node] = Requester(hub, node, address)
        requester.join(digest, port)

    def put_behind(self, digest: str, turn: Priority) -> None:
        """Say with each request for this model that it may wait, and behind whom; USUAL: no more."""
        if turn is Priority.USUAL:
            self._turns.pop(digest, None)
        else:
            self._turns[digest] = turn

    def request(
        self, digest: str, request: int, node: int, run: int, turn: Priority = Priority.USUAL
    ) -> None:
        """Ask a joined node for what is missing of a run; ends in one `request_ended`.

        `turn`: when it should be served, where nobody waits for the model less than for others (`put_behind`).
        """
        hub = self._live
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
        requester = hub.requesters.get(node)
        turn = self._turns.get(digest, turn)
        if requester is None or not requester.ask(digest, request, spans, turn):
            hub.inbox.post(port.request_ended, request, Outcome.LOST, 0)

    def cancel(self, digest: str, request: int) -> None:
        """Take a request back; it ends CANCELLED unless its end is on the way already."""
        for requester in self._live.requesters.values():
            if requester.cancel(digest, request):
                return

    def limit(self, bytes_per_s: float, slots: int) -> None:
        """Serve no faster and no more at once, within the settings; 0 bytes: as they say."""
        self._up.limit(bytes_per_s)
        self._live.uploads.limit(slots)

    def announce(self, digest: str, runs: int) -> None:
        """Tell every neighbour that lacks some of these runs (bits) that we have them."""
        self._live.announce(digest, runs)

    def drop(self, node: int, reason: str) -> None:
        """Hang up on a node, and refuse it for a while."""
        self._live.hang_up(node, reason)

    # -- facts -----------------------------------------------------------------------------------

    def rtt_s(self, node: int) -> float:
        """How long a round trip to a joined node takes at least; 0: not known."""
        requester = self._live.requesters.get(node)
        connection = requester.connection if requester is not None else None
        return connection.rtt_s if connection is not None else 0.0

    @property
    def load(self) -> int:
        """Uploads active and waiting."""
        return self._live.uploads.load

    @property
    def stats(self) -> PeerStats:
        """Counters since start."""
        hub, totals = self._live, self._live.totals
        open_now = [r.connection for r in hub.requesters.values() if r.ready and r.connection]
        open_now += [s.connection for s in hub.serving.values()]
        return PeerStats(
            totals.bytes_received + sum(c.bytes_in for c in open_now),
            totals.bytes_served + sum(c.bytes_out for c in open_now),
            totals.mismatches,
            totals.violations,
            len(open_now),
            hub.uploads.load,
            self._door.refused if self._door is not None else 0,
            totals.busy,
        )

    @property
    def _live(self) -> Hub:
        if self._hub is None:
            raise LocalProtocolError("the peer network is not started")
        return self._hub

    def _port(self, digest: str) -> SwarmPort:
        port = self._live.swarms.get(digest)
        if port is None:
            raise LocalProtocolError(f"model {digest} was not added to the peer network")
        return port

    # -- the loop --------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is not None:
            self._live.loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        hub, listener = self._live, self._listener
        for _ in range(BACKLOG):
            if listener is None:
                return
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors; asked again at once, it would spin
                _log.warning("can't accept peers: %s; trying again in a second", error)
                hub.loop.remove_reader(listener.fileno())
                hub.loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            if len(hub.serving) >= self._limits.connections:
                sock.close()
                continue
            if self._door is not None:
                self._door.knock(sock)
            else:
                self._admit(Plain(sock))

    def _admit(self, channel: Channel) -> None:
        hub = self._live
        if len(hub.half_open) >= self._limits.half_open:
            oldest = oldest_of_the_crowd(hub.half_open, hub.half_open.__getitem__)
            assert oldest is not None
            oldest.connection.close(Outcome.LOST, "too many connections without a handshake")
        connection = Connection(
            channel, hub.loop, hub.inbox, self._limits,
            accepts=wire.SERVER_GREETS, disarm=hub.pump.remove,
        )  # fmt: skip
        Serving(hub, connection)
        hub.pump.add(connection)

    def _tick(self) -> None:
        hub, now = self._live, time.monotonic()
        limits = self._limits
        # Four looks per shortest deadline keep each within a quarter of its time.
        pause = min(1.0, min(limits.handshake_s, limits.stall_s, limits.ping_s) / 4)
        hub.excuse(now - (self._looked or now) - pause, now)
        self._looked = now
        for requester in list(hub.requesters.values()):
            requester.tick(now)
            if requester.connection is not None and requester.ready:
                self._check(requester.connection, now)
        for serving in [*hub.serving.values(), *hub.half_open]:
            serving.tick(now)
            if serving.node >= 0:
                self._check(serving.connection, now)
        self._timer = hub.loop.call_later(pause, self._tick)

    def _check(self, connection: Connection, now: float) -> None:
        """Signs of life of one connection after the handshake."""
        limits = self._limits
        quiet_s = now - connection.heard_at
        if not connection.open or connection.paused or connection.reading.locked():
            return
        if connection.state.data is not None and quiet_s > limits.stall_s / 4:
            if connection.lowat > 1:  # what came is less than the reader waits for: take it
                connection.lowat = 1
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            elif quiet_s > limits.stall_s and not tcp_info.unread(connection.fd):
                connection.close(Outcome.STALLED, "stalled inside DATA", bye=False)
                return
        if (
            quiet_s > limits.idle_s
            and not connection.uploading
            and not tcp_info.unread(connection.fd)
        ):
            connection.close(Outcome.LOST, "no sign of life")
        elif quiet_s > limits.ping_s and now - connection.pinged_at > limits.ping_s:
            connection.pinged_at = now
            connection.send(wire.pack(wire.Kind.PING, a=int(now) & 0xFFFF))


def _spans(chunks: list[int]) -> deque[range]:
    """Ascending chunk indices as contiguous ranges."""
    spans: deque[range] = deque()
    for chunk in chunks:
        if spans and spans[-1].stop == chunk:
            spans[-1] = range(spans[-1].start, chunk + 1)
        else:
            spans.append(range(chunk, chunk + 1))
    return spans
