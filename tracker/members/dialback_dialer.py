"""Dials members back at the addresses that they announce. Nothing is sent on these connections."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.settings import DIAL_S
from p2pcache.io.peers.transport.dialer import Dialer

LOOK_S = 0.01  # after the time limit, to read an answer that has come already


class DialbackDialer:
    """The dials under way; `core.membership.reachability` limits their rate, and `DIAL_S` each.

    Each ends with one `answered`, or with `close`.
    """

    def __init__(self, answered: Callable[..., None]) -> None:
        """`answered(dial, reached=...)` is called with the result of each dial."""
        self._answered = answered
        self._dials: dict[int, tuple[Dialer, asyncio.TimerHandle]] = {}
        self._closed = False

    def dial(self, dial: Dial) -> None:
        """Begin a dial. After `close` it does nothing."""
        if self._closed:
            return
        loop = asyncio.get_running_loop()

        def over(*, reached: bool) -> None:
            dialer, timer = self._dials.pop(dial.number)
            timer.cancel()
            dialer.abandon()
            self._answered(dial, reached=reached)

        def connected(sock: socket.socket) -> None:
            with contextlib.suppress(OSError):
                sock.close()
            over(reached=True)

        dialer = Dialer(loop, dial.member.address, connected, lambda _text: over(reached=False))

        def late() -> None:
            # After a pause of the process libuv runs timers before it reads sockets.
            last = loop.call_later(LOOK_S, lambda: over(reached=False))
            self._dials[dial.number] = dialer, last

        self._dials[dial.number] = dialer, loop.call_later(DIAL_S, late)

    def close(self) -> None:
        """Cancel all dials."""
        self._closed = True
        for dialer, timer in self._dials.values():
            timer.cancel()
            dialer.abandon()
        self._dials.clear()
