"""Signs of life: deadlines of handshakes, PINGs to quiet connections, an end for dead ones.

Silence is counted in looks and not in seconds. A process that stood still, or whose loop was busy, heard nobody
meanwhile, and that is no silence of its peers.
"""

import asyncio
import socket
import time

from p2pcache.core.swarm.events import Outcome
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.transport import tcp_info
from p2pcache.io.peers.transport.connection import Connection


class Liveness:
    """A timer of the loop that checks every session, from `start` to `stop`."""

    def __init__(self, hub: Hub) -> None:
        """Nothing is checked before `start`."""
        limits = hub.limits
        self._hub = hub
        # Four checks in the shortest deadline keep each deadline within a quarter of its time.
        self._interval_s = min(1.0, min(limits.handshake_s, limits.stall_s, limits.ping_s) / 4)
        self._ping_looks = max(1, round(limits.ping_s / self._interval_s))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._look()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        hub, now = self._hub, time.monotonic()
        for client in list(hub.requesting.values()):
            client.check_deadlines(now)
            if client.connection is not None and client.ready:
                self._check(client.connection)
        for server in [*hub.serving.values(), *hub.half_open]:
            server.check_deadlines(now)
            if server.node >= 0:
                self._check(server.connection)
        self._timer = hub.loop.call_later(self._interval_s, self._look)

    def _check(self, connection: Connection) -> None:
        """Check one connection whose handshake is over.

        Unread bytes in the kernel mean that this node is slow, not the peer.
        """
        limits = self._hub.limits
        if not connection.open or connection.paused or connection.reading.locked():
            return
        if connection.heard:
            connection.heard, connection.quiet_looks = False, 0
            return
        connection.quiet_looks += 1
        quiet_s = connection.quiet_looks * self._interval_s
        if connection.state.data is not None and quiet_s >= limits.stall_s / 4:
            if connection.lowat > 1:  # less came than the reader waits for: make it read that
                connection.lowat = 1
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            elif quiet_s >= limits.stall_s and not tcp_info.unread(connection.fd):
                connection.close(Outcome.STALLED, "stalled inside DATA", bye=False)
                return
        silent = quiet_s >= limits.idle_s and not connection.uploading
        if silent and not tcp_info.unread(connection.fd):
            connection.close(Outcome.LOST, "no sign of life")
        elif connection.quiet_looks % self._ping_looks == 0:
            connection.send(wire.pack(wire.Kind.PING, a=connection.quiet_looks & 0xFFFF))
