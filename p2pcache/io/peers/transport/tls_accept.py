"""From a connected socket to a channel whose other end is proved: the TLS handshake, on the loop."""

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


class Opening:
    """One handshake; ends in exactly one of its two callbacks, unless cancelled.

    It costs about a millisecond of CPU, on the loop: there a flood of half-open connections can
    hold no threads.
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

    def cancel(self, text: str = "") -> None:
        """Give up and close the socket; with a text, as a failure. After an end it does nothing."""
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
        self.cancel(text)

    def _end(self) -> None:
        self._over = True
        self._timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)


class Door:
    """The handshakes of those who dial us."""

    def __init__(
        self,
        tls: Tls,
        loop: asyncio.AbstractEventLoop,
        limits: PeerLimits,
        admit: Callable[[Secure], None],
    ) -> None:
        """`admit` is given the channels of agents, and owns them."""
        self.refused = 0
        self._tls = tls
        self._loop = loop
        self._limits = limits
        self._admit = admit
        self._openings: dict[int, tuple[str, Opening]] = {}  # with their crowds, oldest first
        self._next = 0
        self._lines = RateCounter(LOG_LINES)

    def knock(self, sock: socket.socket) -> None:
        """Somebody has connected."""
        if len(self._openings) >= self._limits.half_open:
            oldest = oldest_of_the_crowd(self._openings, lambda one: self._openings[one][0])
            if oldest is not None:
                self._openings[oldest][1].cancel("too many connections without a handshake")
        number, self._next = self._next, self._next + 1
        address = where(sock)
        sock.settimeout(0.0)
        channel = Secure(sock, self._tls.now.server, server_side=True)

        def opened(channel: Secure) -> None:
            del self._openings[number]
            self._admit(channel)

        def failed(text: str) -> None:
            del self._openings[number]
            if channel.knocked:
                _log.debug("%s looked whether this port is open", address)
                return
            self.refused += 1
            if self._lines.allow(time.monotonic()):
                _log.warning("refused a peer from %s: %s", address, text)

        opening = Opening(self._loop, channel, self._limits.handshake_s, opened, failed)
        self._openings[number] = crowd_of(address), opening

    def close(self) -> None:
        """End those under way."""
        for _, opening in self._openings.values():
            opening.cancel()
        self._openings.clear()


def where(sock: socket.socket) -> str:
    """The address of who is at the other end."""
    try:
        return str(sock.getpeername()[0])
    except OSError:  # gone already
        return "somebody"
