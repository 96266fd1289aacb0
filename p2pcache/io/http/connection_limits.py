"""The door of an HTTP server: how many connections may be open, and how long one may say nothing.

A flood must not take the daemon's file descriptors: beyond the limit a caller hears 503 with
Retry-After and is let go, and a connection that never asks anything is closed. In a full house
those who sit idle make room.
"""

import asyncio
import contextlib
import itertools
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from aiohttp import web

from p2pcache.core.membership.crowded_address import crowd_of, oldest_of_the_crowd
from p2pcache.core.ratelimit import RateLimit
from p2pcache.errors import Busy

FIRST_REQUEST_S = 10.0  # a client that has connected speaks at once; a slow loris doesn't
RETRY_AFTER_S = 2  # told to those who found the house full; they add dice of their own
IDLE_S = 1.0  # an honest client asks within milliseconds; who waits so long may lose its place
SWEEP_S, SWEEP_PARTS = 0.1, 20  # a look at 20,000 connections takes some 5 ms: seldom, many at once
GOODBYE_S = 1.0  # for a refused one to read its answer
PATIENCE_S = 1.0  # who is a little too quick waits so long; who would wait longer is sent away
LEAST_CONNECTIONS, MOST_CONNECTIONS = 64, 1024  # 200 pods of one node at once, and room to spare
_FULL = b'{"code":8,"message":"too many connections to this daemon; try again in a moment"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: %d\r\nContent-Length: %d\r\n\r\n%s" % (RETRY_AFTER_S, len(_FULL), _FULL)
)


def raise_file_limit() -> int:
    """Take as many file descriptors as the system allows us; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connection_limit(most: int = MOST_CONNECTIONS, *, share: float = 0.25) -> int:
    """How many connections one listening socket may hold: at most this share of our descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST_CONNECTIONS, min(most, int(soft * share)))


async def admit(limit: RateLimit, client: str) -> None:
    """Count one request of a client; let it wait a moment if it is a little too quick.

    Raises:
        Busy: it would have to wait for longer than `PATIENCE_S`.
    """
    wait = limit.take(client, time.monotonic(), patience_s=PATIENCE_S)
    if wait > PATIENCE_S:
        raise Busy(
            f"too many requests from {client}; try again in a moment",
            retry_after_s=wait,
            yours=True,
        )
    if wait > 0:
        await asyncio.sleep(wait)


def rated(limit: RateLimit, *, free: frozenset[str] = frozenset()) -> Any:
    """A middleware that counts requests by the caller's address, but for the paths in `free`."""

    @web.middleware
    async def count(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path not in free:
            await admit(limit, f"ip={request.remote}")
        return await handler(request)

    return count


class Door:
    """Makes the protocol of each new connection to one server.

    Invariant: `_guests` holds the open connections, and for `FIRST_REQUEST_S` those whose TLS
    handshake has not ended.
    """

    def __init__(self, server: web.Server, most: int, *, request_bytes: int = 0) -> None:
        """Nobody is here yet.

        Args:
            server: makes the handlers.
            most: connections at once.
            request_bytes: as for `web.serving`.
        """
        self._server = server
        self._most = most
        self._request_bytes = request_bytes
        self._loop = asyncio.get_running_loop()
        self._guests: dict[web.RequestHandler, _Guest] = {}
        self._next_sweep = 0.0
        self._refusals: set[_Refusal] = set()

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol for somebody who has just connected."""
        if len(self._guests) >= self._most and not self._make_room():
            return _Refusal(self._refusals, self._most // 2)
        handler = self._server()
        guest = _Guest(handler, self._request_bytes, lambda: self._guests.pop(handler, None))
        self._guests[handler] = guest
        self._loop.call_later(FIRST_REQUEST_S, self._check, handler)
        return guest

    @contextlib.contextmanager
    def answering(self, handler: web.RequestHandler) -> Iterator[None]:
        """While a connection's request is answered it isn't idle."""
        guest = self._guests.get(handler)
        if guest is None:  # it has gone already
            yield
            return
        guest.begin()
        try:
            yield
        finally:
            guest.end()

    def _check(self, handler: web.RequestHandler) -> None:
        guest = self._guests.get(handler)
        if guest is not None and not guest.heard:
            guest.turn_out()

    def _make_room(self) -> bool:
        """Let go who asks nothing, of the address that most of them come from.

        Else one stranger could hold every place by asking something small now and then.
        """
        now = self._loop.time()
        if now < self._next_sweep:
            return False
        self._next_sweep = now + SWEEP_S
        idle = [guest for guest in self._guests.values() if guest.idle_s(now) > IDLE_S]
        first = oldest_of_the_crowd(idle, lambda guest: guest.address)
        if first is None:
            return False
        longest = (guest for guest in idle if guest.address == first.address)
        for guest in itertools.islice(longest, max(1, self._most // SWEEP_PARTS)):
            guest.turn_out()
        return True


class _Guest(asyncio.Protocol):
    """One connection: its handler, and what it may send before anybody knows it."""

    def __init__(
        self, handler: web.RequestHandler, request_bytes: int, gone: Callable[[], object]
    ) -> None:
        """`gone` is called when the connection has ended."""
        self.heard = False  # it has asked something
        self.address = ""  # what counts as one, of TCP; "" on a unix socket
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._request_bytes = request_bytes
        self._left = request_bytes
        self._gone = gone
        self._turned_out = False
        self._asking = False
        self._since = asyncio.get_running_loop().time()

    def begin(self) -> None:
        """A request of it is being answered."""
        self.heard = self._asking = True
        self._left = self._request_bytes

    def end(self) -> None:
        """The answer is complete."""
        self._asking = False
        self._since = asyncio.get_running_loop().time()

    def doubt(self) -> None:
        """It is asking, but may go on doing so for as long as it likes: it counts as idle until `trust`."""
        self.end()

    def trust(self) -> None:
        """From here on it may send as much as its own protocol allows."""
        self._request_bytes = 0
        self._asking = True

    def idle_s(self, now: float) -> float:
        """How long nothing was asked, seconds. A TLS handshake has a limit of its own."""
        return 0.0 if self._asking or self._transport is None else now - self._since

    def turn_out(self) -> None:
        """End the connection, also one whose TLS handshake isn't over."""
        self._turned_out = True
        self._gone()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._turned_out:
            self._transport.abort()
        peer = transport.get_extra_info("peername")
        self.address = crowd_of(str(peer[0])) if isinstance(peer, tuple) else ""
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._request_bytes:
            self._left -= len(data)
            if self._left < 0:
                self.turn_out()
                return
        self._handler.data_received(data)

    def eof_received(self) -> None:
        self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._gone()
        self._handler.connection_lost(exc)


def trust(request: web.Request) -> None:
    """The request's sender has shown who it is: lift the limit of `request_bytes`."""
    if (guest := _guest_of(request)) is not None:
        guest.trust()


def unknown(request: web.Request) -> None:
    """The request's sender has yet to show who it is: in a full house it may have to make room."""
    if (guest := _guest_of(request)) is not None:
        guest.doubt()


def turn_out(request: web.Request) -> None:
    """End the request's connection at once."""
    if (guest := _guest_of(request)) is not None:
        guest.turn_out()


def _guest_of(request: web.Request) -> _Guest | None:
    found = request.transport.get_protocol() if request.transport is not None else None
    return found if isinstance(found, _Guest) else None


class _Refusal(asyncio.Protocol):
    """Says 503, lets the caller read it, and hangs up."""

    def __init__(self, others: "set[_Refusal]", most: int) -> None:
        """`most`: refused ones that may read their answer; more are cut off without a word."""
        self._others = others
        self._most = most
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's own isn't an instance of it
        if len(self._others) >= self._most:
            transport.abort()
            return
        self._others.add(self)
        self._transport = transport
        transport.write(_REFUSAL)
        if transport.can_write_eof():  # its request is still read: closing now could cut the answer
            transport.write_eof()
        asyncio.get_running_loop().call_later(GOODBYE_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
