"""TLS handshakes on the loop's thread: from a connected socket to a channel with a proved member."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable

from p2pcache.core.membership.crowded_address import crowd_of, oldest_of_the_crowd
from p2pcache.core.ratelimit import RateCounter
from p2pcache.errors import NotAllowed
from p2pcache.io.peers.protocol import wire
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.transport.secure import Secure
from p2pcache.io.security.tls import LOG_LINES, Tls, check_role, explain

_log = logging.getLogger(__name__)


class TlsHandshake:
    """One handshake; ends in exactly one of its two callbacks, unless cancelled.

    It costs about a millisecond of CPU. On the loop a flood of half-open connections holds no threads.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Secure,
        limit_s: float,
        on_open: Callable[[Secure], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Start; no callback comes before this returns.

        Args:
            loop: the running loop.
            channel: fresh.
            limit_s: for the whole handshake.
            on_open: given the channel, which it owns from then on; the other side is an agent.
            on_failed: given one line that says why; the socket is closed by then.
        """
        self._loop = loop
        self._channel = channel
        self._on_open = on_open
        self._on_failed = on_failed
        self._shaken = self._over = False
        self._fd = channel.sock.fileno()
        self._timer = loop.call_later(limit_s, self._fail, "the TLS handshake took too long")
        loop.add_reader(self._fd, self._step)
        loop.call_soon(self._step)  # a client speaks first

    def abandon(self, text: str = "") -> None:
        """Give up and close the socket; a text is reported to `on_failed`. After an end it does nothing."""
        if self._over:
            return
        self._end()
        self._channel.sock.close()
        if text:
            self._on_failed(text)

    def _step(self) -> None:
        if self._over:
            return
        try:
            self._shaken = self._shaken or self._channel.shake()
            if not self._channel.flush():
                self._loop.add_writer(self._fd, self._step)
                return
            self._loop.remove_writer(self._fd)
            if not self._shaken:
                return
            self._channel.member = check_role(self._channel.certificate(), "agent")
        except NotAllowed as error:
            with contextlib.suppress(OSError):  # it isn't a member, but may know why
                self._channel.send(wire.reason(wire.Kind.BYE, f"refused: {error}"))
            self._fail(str(error))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._channel.flush()  # the alert
            self._fail(explain(error))
        else:
            self._end()
            self._on_open(self._channel)

    def _fail(self, text: str) -> None:
        self.abandon(text)

    def _end(self) -> None:
        self._over = True
        self._timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)


class TlsAcceptor:
    """The handshakes of inbound connections."""

    def __init__(
        self,
        tls: Tls,
        loop: asyncio.AbstractEventLoop,
        limits: PeerLimits,
        admit: Callable[[Secure], None],
    ) -> None:
        """Nobody has connected.

        Args:
            tls: our certificate.
            loop: the running loop.
            limits: how many handshakes at once, and how long each.
            admit: given the channels of agents, which it owns from then on.
        """
        self.refused = 0
        self._tls = tls
        self._loop = loop
        self._limits = limits
        self._admit = admit
        self._handshakes: dict[
            int, tuple[str, TlsHandshake]
        ] = {}  # with their crowds, oldest first
        self._next = 0
        self._lines = RateCounter(LOG_LINES)

    def accept(self, sock: socket.socket) -> None:
        """Begin the handshake of a connection; the oldest one from a crowded address makes room."""
        if len(self._handshakes) >= self._limits.half_open:
            oldest = oldest_of_the_crowd(self._handshakes, lambda one: self._handshakes[one][0])
            if oldest is not None:
                self._handshakes[oldest][1].abandon("too many connections without a handshake")
        number, self._next = self._next, self._next + 1
        address = peer_host(sock)
        sock.settimeout(0.0)
        channel = Secure(sock, self._tls.now.server, server_side=True)

        def opened(channel: Secure) -> None:
            del self._handshakes[number]
            self._admit(channel)

        def failed(text: str) -> None:
            del self._handshakes[number]
            if channel.port_scan:
                _log.debug("%s looked whether this port is open", address)
                return
            self.refused += 1
            if self._lines.allow(time.monotonic()):
                _log.warning("refused a peer from %s: %s", address, text)

        handshake = TlsHandshake(self._loop, channel, self._limits.handshake_s, opened, failed)
        self._handshakes[number] = crowd_of(address), handshake

    def close(self) -> None:
        """End the handshakes under way."""
        for _, handshake in self._handshakes.values():
            handshake.abandon()
        self._handshakes.clear()


def peer_host(sock: socket.socket) -> str:
    """The IP address of the other end, of IPv4 as such also on an IPv6 socket; "somebody" if it is gone already."""
    try:
        return str(sock.getpeername()[0]).removeprefix("::ffff:")
    except OSError:
        return "somebody"
