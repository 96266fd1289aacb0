"""Bodies of requests: read at a least rate, and within a sum of memory that is dealt out by client.

A client that drips holds its connection, and what others need, for as long as it likes. A fast network brings more than
the memory has.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from p2pcache.errors import Busy, TimedOut, UsageError

T = TypeVar("T")

STALL_S = 30.0  # without a byte of a body: local clients send at once, remote ones retry by TCP
LEAST_BYTES_PER_S = 16 << 10  # since the last whole stretch; four bodies at once fill half a Mbit/s
STRETCH_S = 30.0  # over which the rate is taken
RETRY_S = 5.0  # told to a client when no memory is left
BROKEN_BODY = (web.RequestPayloadError, HttpProcessingError)


class Body:
    """One request's body as it comes. Only the time that it is waited for counts."""

    def __init__(self, content: StreamReader) -> None:
        """`content`: of the request."""
        self._content = content
        self._waited_s = 0.0  # in this stretch
        self._came = 0  # bytes in this stretch

    async def part(self, most: int = -1) -> bytes:
        """The next bytes, as many as have come (at most `most`); b"" at the end.

        Raises:
            UsageError: the body is malformed.
            TimedOut: no byte came for `STALL_S`, or too few in `STRETCH_S`.
        """
        reading = self._content.read(most) if most > 0 else self._content.readany()
        return await self._await(reading)

    async def exactly(self, count: int) -> bytes:
        """The next `count` bytes.

        Raises:
            UsageError: the body is malformed, or it ends before.
            TimedOut: as `part`.
        """
        data = bytearray()
        while len(data) < count:
            piece = await self.part(count - len(data))
            if not piece:
                raise UsageError("the request's body ended too early")
            data += piece
        return bytes(data)

    async def _await(self, reading: Awaitable[bytes]) -> bytes:
        began = time.monotonic()
        try:
            async with asyncio.timeout(STALL_S):
                data = await reading
        except TimeoutError:
            raise TimedOut(f"no byte of the request's body came for {STALL_S:.0f} s") from None
        except BROKEN_BODY as error:
            raise UsageError(f"the request's body is broken: {type(error).__name__}") from None
        self._waited_s += time.monotonic() - began
        self._came += len(data)
        if self._waited_s > STRETCH_S:
            if data and self._came < LEAST_BYTES_PER_S * self._waited_s:
                raise TimedOut(
                    f"the request's body came at less than {LEAST_BYTES_PER_S >> 10} KiB a second"
                )
            self._waited_s, self._came = 0.0, 0
        return data


class BodyMemory:
    """Bytes of bodies that are held whole, over all requests and for each client."""

    def __init__(self, each: int, everyone: int) -> None:
        """Nothing is held. `each`: bytes for one client; `everyone`: for all."""
        self._each = each
        self._everyone = everyone
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def share_of(self, client: str) -> Iterator["Share"]:
        """What one request of a client holds; given back at the end of the block."""
        share = Share(self, client)
        try:
            yield share
        finally:
            self._held[client] -= share.held
            if not self._held[client]:
                del self._held[client]

    def hold(self, client: str, count: int) -> None:
        """Count bytes that a request holds.

        Raises:
            Busy: the client, or all together, hold too much; nothing is counted.
        """
        yours = self._held[client] + count > self._each
        if yours or self._held.total() + count > self._everyone:
            raise Busy(
                "the bodies of other requests take the memory; try again in a moment",
                retry_after_s=RETRY_S, yours=yours,
            )  # fmt: skip
        self._held[client] += count


class Share:
    """What one request holds."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        """Nothing yet."""
        self.held = 0
        self._memory = memory
        self._client = client

    def hold(self, count: int) -> None:
        """Hold more bytes; the errors are those of `BodyMemory.hold`."""
        self._memory.hold(self._client, count)
        self.held += count


async def read_body(
    request: web.Request, *, limit_bytes: int, share: Share | None = None
) -> bytearray:
    """The request's body.

    Args:
        request: whose.
        limit_bytes: the most that it may have.
        share: counts its bytes; None: they are few.

    Raises:
        UsageError: larger than `limit_bytes`, or broken.
        TimedOut: it comes too slowly.
        Busy: too much memory is held.
    """
    body, source = bytearray(), Body(request.content)
    while part := await source.part():
        if share is not None:
            share.hold(len(part))
        body += part
        if len(body) > limit_bytes:
            raise UsageError(f"the request's body is over the limit of {limit_bytes} bytes")
    return body
