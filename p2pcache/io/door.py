"""The door of an HTTP server: how many connections may be open, and how long one may say nothing.

A flood must not take the daemon's file descriptors: beyond the limit a caller hears 503 with
Retry-After and is let go, and a connection that never asks anything is closed.
"""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from p2pcache.core.ratelimit import RateLimit
from p2pcache.errors import Busy

FIRST_REQUEST_S = 10.0  # a client that has connected speaks at once; a slow loris doesn't
RETRY_AFTER_S = 2  # told to those who found the house full; they add dice of their own
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

    Invariant: `_silent` holds the connections that have asked nothing yet, for
    `FIRST_REQUEST_S` at most.
    """

    def __init__(self, server: web.Server, most: int, *, tls: bool = False) -> None:
        """`most`: connections at once; `tls`: each begins with a TLS handshake."""
        self._server = server
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._silent: set[web.RequestHandler] = set()
        self._arriving: set[web.RequestHandler] = set()
        self._refusals: set[_Refusal] = set()

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol for somebody who has just connected."""
        if len(self._server.connections) + self._shaking_hands() >= self._most:
            return _Refusal(self._refusals, self._most // 2)
        handler = self._server()
        self._silent.add(handler)
        if self._tls:
            self._arriving.add(handler)
        self._loop.call_later(FIRST_REQUEST_S, self._check, handler)
        return handler

    def heard(self, handler: web.RequestHandler) -> None:
        """A connection has asked something."""
        self._silent.discard(handler)

    def _shaking_hands(self) -> int:
        """Connections that the server doesn't know yet: under TLS they come to it after the handshake."""
        self._arriving = {h for h in self._arriving & self._silent if h.transport is None}
        return len(self._arriving)

    def _check(self, handler: web.RequestHandler) -> None:
        if handler in self._silent:
            self._silent.discard(handler)
            handler.force_close()


class _Refusal(asyncio.Protocol):
    """Says 503, lets the caller read it, and hangs up."""

    def __init__(self, others: "set[_Refusal]", most: int) -> None:
        """`most`: refused ones that may read their answer; more are cut off without a word."""
        self._others = others
        self._most = most
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
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
