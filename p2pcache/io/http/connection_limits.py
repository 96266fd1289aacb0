"""How many connections an HTTP server holds open, and how long each may be idle.

A flood must not take the daemon's file descriptors. A connection beyond the limit is answered 503
with Retry-After and closed, and one that never sends a request is closed too. When all places are
taken, idle connections make room.
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

FIRST_REQUEST_S = 10.0  # an honest client sends at once; a slow loris doesn't
RETRY_AFTER_S = 2  # in answers beyond the limit; clients add jitter of their own
IDLE_S = 1.0  # an honest client sends within milliseconds; an idle connection may lose its place
# Each sweep looks at one part of the connections: a look at all would stall the loop.
SWEEP_S, SWEEP_PARTS = 0.1, 20
GOODBYE_S = 1.0  # for a refused client to read its answer
PATIENCE_S = 1.0  # the longest delay of a client over its rate; beyond it the client is refused
LEAST_CONNECTIONS, MOST_CONNECTIONS = 64, 1024  # 200 pods of one node at once, and room to spare
_FULL = b'{"code":8,"message":"too many connections to this daemon; try again in a moment"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Retry-After: %d\r\nContent-Length: %d\r\n\r\n%s" % (RETRY_AFTER_S, len(_FULL), _FULL)
)


def raise_file_limit() -> int:
    """Raise our limit of file descriptors to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connection_limit(most: int = MOST_CONNECTIONS, *, share: float = 0.25) -> int:
    """How many connections a server may hold: at most `share` of our file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST_CONNECTIONS, min(most, int(soft * share)))


async def admit(limit: RateLimit, client: str) -> None:
    """Count one request of a client, and delay it if the client is a little over its rate.

    Raises:
        Busy: the delay would be longer than `PATIENCE_S`.
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
    """A middleware that limits requests by the caller's address, except for the paths in `free`."""

    @web.middleware
    async def count(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path not in free:
            await admit(limit, f"ip={request.remote}")
        return await handler(request)

    return count


class ConnectionLimiter:
    """A protocol factory for one server that counts its connections.

    Invariant: `_connections` holds the open connections, and for `FIRST_REQUEST_S` those whose TLS
    handshake has not ended.
    """

    def __init__(self, server: web.Server, most: int, *, request_bytes: int = 0) -> None:
        """Nobody is connected.

        Args:
            server: makes the handlers.
            most: connections at once.
            request_bytes: as for `server.serving`.
        """
        self._server = server
        self._most = most
        self._request_bytes = request_bytes
        self._loop = asyncio.get_running_loop()
        self._connections: dict[web.RequestHandler, _Connection] = {}
        self._next_sweep = 0.0
        self._refusals: set[_Refusal] = set()
        self._closed = False

    def close(self) -> None:
        """The server has ended: end what is left, also connections that the loop is still accepting."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.abort()

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol for a new connection."""
        if len(self._connections) >= self._most and not self._make_room():
            return _Refusal(self._refusals, self._most // 2)
        handler = self._server()
        connection = _Connection(
            handler, self._request_bytes, lambda: self._connections.pop(handler, None)
        )
        self._connections[handler] = connection
        if self._closed:
            connection.abort()
        self._loop.call_later(FIRST_REQUEST_S, self._check, handler)
        return connection

    @contextlib.contextmanager
    def answering(self, handler: web.RequestHandler) -> Iterator[None]:
        """Inside the block the connection isn't idle: its request is being answered."""
        connection = self._connections.get(handler)
        if connection is None:  # it has gone already
            yield
            return
        connection.on_request()
        try:
            yield
        finally:
            connection.on_answered()

    def _check(self, handler: web.RequestHandler) -> None:
        connection = self._connections.get(handler)
        if connection is not None and not connection.heard:
            connection.abort()

    def _make_room(self) -> bool:
        """Close idle connections from the address that has most of them.

        Else one stranger could hold every place by a small request now and then.
        """
        now = self._loop.time()
        if now < self._next_sweep:
            return False
        self._next_sweep = now + SWEEP_S
        idle = [one for one in self._connections.values() if one.idle_s(now) > IDLE_S]
        first = oldest_of_the_crowd(idle, lambda one: one.address)
        if first is None:
            return False
        longest = (one for one in idle if one.address == first.address)
        for one in itertools.islice(longest, max(1, self._most // SWEEP_PARTS)):
            one.abort()
        return True


class _Connection(asyncio.Protocol):
    """One connection: its handler, and how much it may send before its sender is known."""

    def __init__(
        self, handler: web.RequestHandler, request_bytes: int, gone: Callable[[], object]
    ) -> None:
        """`gone` is called when the connection has ended."""
        self.heard = False  # it has sent a request
        self.address = ""  # the group of addresses that counts as one client; "" on a unix socket
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._request_bytes = request_bytes
        self._left = request_bytes
        self._gone = gone
        self._aborted = False
        self._answering = False
        self._since = asyncio.get_running_loop().time()

    def on_request(self) -> None:
        """A request came; its answer begins."""
        self.heard = self._answering = True
        self._left = self._request_bytes

    def on_answered(self) -> None:
        """The answer is complete."""
        self._answering = False
        self._since = asyncio.get_running_loop().time()

    def count_as_idle(self) -> None:
        """From here on a request under way doesn't keep the connection from being idle, until `trust`."""
        self.on_answered()

    def trust(self) -> None:
        """From here on the connection isn't idle, and may send as much as its protocol allows."""
        self._request_bytes = 0
        self._answering = True

    def idle_s(self, now: float) -> float:
        """Seconds since the last request. 0 during a TLS handshake, which has a limit of its own."""
        return 0.0 if self._answering or self._transport is None else now - self._since

    def abort(self) -> None:
        """End the connection, also one whose TLS handshake isn't over."""
        self._aborted = True
        self._gone()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self._transport.abort()
        peer = transport.get_extra_info("peername")
        self.address = crowd_of(str(peer[0])) if isinstance(peer, tuple) else ""
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._request_bytes:
            self._left -= len(data)
            if self._left < 0:
                self.abort()
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
    """The request's sender has proved who it is: lift the limit of `request_bytes`."""
    if (connection := _connection_of(request)) is not None:
        connection.trust()


def count_as_idle(request: web.Request) -> None:
    """The request's sender has yet to prove who it is: its connection may have to make room."""
    if (connection := _connection_of(request)) is not None:
        connection.count_as_idle()


def abort(request: web.Request) -> None:
    """End the request's connection at once."""
    if (connection := _connection_of(request)) is not None:
        connection.abort()


def _connection_of(request: web.Request) -> _Connection | None:
    found = request.transport.get_protocol() if request.transport is not None else None
    return found if isinstance(found, _Connection) else None


class _Refusal(asyncio.Protocol):
    """Answers 503, leaves the caller time to read it, and hangs up."""

    def __init__(self, others: "set[_Refusal]", most: int) -> None:
        """`most`: refused connections that may read the answer at once; further ones are cut off."""
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
