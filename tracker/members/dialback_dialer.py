"""Dials members back: is there anybody where they say? Nothing is said on the connection."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from p2pcache.core.membership.dialback import DIAL_S, Dial
from p2pcache.io.peers.transport.dialer import Dialer

LOOK_S = 0.01  # an answer that lies there already is taken in first


class DialbackDialer:
    """The dials under way; `core.membership.dialback` limits how many. Each ends in one `answered` or with `close`."""

    def __init__(self, answered: Callable[..., None]) -> None:
        """`answered(dial, reached=...)` is told whether somebody is there."""
        self._answered = answered
        self._dials: dict[int, tuple[Dialer, asyncio.TimerHandle]] = {}
        self._closed = False

    def dial(self, dial: Dial) -> None:
        """Try one; the answer comes later. After `close` it does nothing."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()

        def over(*, reached: bool) -> None:
            dialer, timer = self._dials.pop(dial.number)
            timer.cancel()
            dialer.cancel()
            self._answered(dial, reached=reached)

        def connected(sock: socket.socket) -> None:
            with contextlib.suppress(OSError):
                sock.close()
            over(reached=True)

        dialer = Dialer(loop, dial.member.address, connected, lambda _text: over(reached=False))

        def late() -> None:
            # After a pause of the whole process libuv runs its timers before it looks at its sockets.
            last = loop.call_later(LOOK_S, lambda: over(reached=False))
            self._dials[dial.number] = dialer, last

        self._dials[dial.number] = dialer, loop.call_later(DIAL_S, late)

    def close(self) -> None:
        """Give up all of them."""
        self._closed = True
        for dialer, timer in self._dials.values():
            timer.cancel()
            dialer.cancel()
        self._dials.clear()
