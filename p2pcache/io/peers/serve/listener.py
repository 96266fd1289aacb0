"""The listening socket of a node: connections that peers open become sessions, within limits."""

import asyncio
import logging
import os
import socket

from p2pcache.core.membership.crowded_address import oldest_of_the_crowd
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import UsageError
from p2pcache.io.http.own_addresses import is_wildcard
from p2pcache.io.peers.hub import Hub
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.serve.server_session import ServerSession
from p2pcache.io.peers.serve.uploads import Uploads
from p2pcache.io.peers.transport.channel import Channel, Plain
from p2pcache.io.peers.transport.connection import Connection
from p2pcache.io.peers.transport.tls_handshake import TlsAcceptor

ACCEPT_AGAIN_S = 1.0  # after running out of descriptors
BACKLOG = 512  # a storm of nodes dials at the same moment

_log = logging.getLogger(__name__)


async def bind(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket (port 0: the system chooses).

    Raises:
        UsageError: the address can't be had.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4][:2]
        every = family == socket.AF_INET6 and is_wildcard(host)
        sock = socket.create_server(
            address, family=family, backlog=BACKLOG, reuse_port=False,
            dualstack_ipv6=every and socket.has_dualstack_ipv6(),
        )  # fmt: skip
    except OSError as error:
        # create_server's own text repeats the address
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise UsageError(
            f"can't listen for peers on {host}:{port}: {why}; choose another --listen address"
        ) from None
    sock.settimeout(0.0)
    return sock


class Listener:
    """Accepts connections on the loop's thread, from `start` to `close`."""

    def __init__(self, sock: socket.socket, hub: Hub, uploads: Uploads) -> None:
        """Nothing is accepted before `start`.

        Args:
            sock: from `bind`.
            hub: where the sessions are known.
            uploads: serves their requests.
        """
        self._socket = sock
        self._hub = hub
        self._uploads = uploads
        self._open = True
        self._tls = (
            None if hub.tls is None else TlsAcceptor(hub.tls, hub.loop, hub.limits, self._admit)
        )

    @property
    def open(self) -> bool:
        """Whether it wasn't closed yet."""
        return self._open

    @property
    def refused(self) -> int:
        """Connections that ended for want of a good certificate."""
        return self._tls.refused if self._tls is not None else 0

    def start(self) -> None:
        """Begin to accept."""
        if self._open:
            self._hub.loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; TLS handshakes under way end."""
        self._open = False
        self._hub.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._tls is not None:
            self._tls.close()

    def _accept(self) -> None:
        hub = self._hub
        for _ in range(BACKLOG):
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors; asked again at once, it would spin
                _log.warning("can't accept peers: %s; trying again in a second", error)
                hub.loop.remove_reader(self._socket.fileno())
                hub.loop.call_later(ACCEPT_AGAIN_S, self.start)
                return
            if len(hub.serving) >= hub.limits.connections:
                sock.close()
            elif self._tls is not None:
                self._tls.accept(sock)
            else:
                self._admit(Plain(sock))

    def _admit(self, channel: Channel) -> None:
        hub = self._hub
        if len(hub.half_open) >= hub.limits.half_open:
            oldest = oldest_of_the_crowd(hub.half_open, hub.half_open.__getitem__)
            assert oldest is not None
            oldest.close(Outcome.LOST, "too many connections without a handshake")
        connection = Connection(
            channel, hub.loop, hub.inbox, hub.limits,
            accepts=wire.SERVER_GREETS, disarm=hub.reader.unwatch,
        )  # fmt: skip
        ServerSession(hub, self._uploads, connection)
        hub.reader.watch(connection)
