"""The body of an answer: files go from the page cache to the socket by sendfile, without a copy of ours.

Threads call sendfile, since a disk may be slow. While a client reads, a thread waits for it a moment; for a client that
doesn't, the loop waits, and no thread is held. aiohttp's own sendfile needs a call that uvloop lacks.
"""

import asyncio
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from p2pcache.errors import NotFound
from p2pcache.io import pools

BURST_BYTES = (
    8 << 20
)  # of one call on a thread, milliseconds of loopback: other clients have their turn
PIECE_BYTES = 1 << 20  # of one read where sendfile can't be used; larger ones only cost memory
SMALL_BYTES = 64 << 10  # below this a copy is cheaper than the calls around sendfile
READS_ON_MS = 5  # a client that reads makes room sooner; others must not hold the threads of pulls
LOOK_S = 1.0  # between two looks whether a client that doesn't read has left

Pace = Callable[[int], float]
"""Called with bytes that were sent; says how many seconds to wait."""


class FileBytes(NamedTuple):
    """Bytes of an open file."""

    fd: int
    offset: int
    length: int
    keeper: object  # holds the descriptor open while it is held

    def pread(self, start: int, length: int) -> bytes:
        """Some of these bytes; blocks.

        Raises:
            NotFound: the file was cut short.
            OSError: the disk failed.
        """
        data = os.pread(self.fd, length, self.offset + start)
        if len(data) != length:
            raise _cut_short()
        return data


class _Socket:
    """A second descriptor of a connection. Threads that still use it when its answer ends keep it open."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


class BodyWriter:
    """Writes the body of one answer, whose head has its length."""

    def __init__(
        self, transport: asyncio.Transport, writer: AbstractStreamWriter, response: web.StreamResponse,
        pace: Pace | None,
    ) -> None:  # fmt: skip
        """Of an answer that has begun; see `begin_body`."""
        self._transport = transport
        self._writer = writer
        self._response = response
        self._pace = pace
        plain = transport.get_extra_info("sslcontext") is None
        self._socket = _Socket(transport.get_extra_info("socket").fileno()) if plain else None
        self._on_thread = False  # the answer may be given up while a thread sends
        self._burst = PIECE_BYTES if pace is not None or not plain else BURST_BYTES
        transport.set_write_buffer_limits(0)  # `drain` waits until the kernel has all of it

    @classmethod
    async def begin_body(
        cls, request: web.Request, response: web.StreamResponse, pace: Pace | None = None
    ) -> "BodyWriter":
        """Send the head.

        Raises:
            ConnectionError: the client has left.
        """
        writer = await response.prepare(request)
        transport = request.transport
        if writer is None or transport is None:
            raise ConnectionResetError("the client has left")
        return cls(transport, writer, response, pace)

    async def write_bytes(self, data: bytes) -> None:
        """Send these bytes."""
        await self._response.write(data)
        await self._rest(len(data))

    async def write_file(self, part: FileBytes) -> None:
        """Send bytes of a file.

        Raises:
            ConnectionError: the client has left.
            NotFound: the file was cut short.
            OSError: the disk failed.
        """
        done = 0
        while done < part.length:
            count = min(self._burst, part.length - done)
            if self._socket is None or part.length < SMALL_BYTES:
                await self._response.write(await pools.PULLS.run(part.pread, done, count))
            else:
                await self._writer.drain()
                await self._send(self._socket, part, done, count)
            done += count
            await self._rest(count)

    async def _send(self, socket: _Socket, part: FileBytes, start: int, count: int) -> None:
        end = start + count
        while True:
            self._on_thread = True
            start, error = await pools.PULLS.run(_send_file, socket, part, start, end)
            self._on_thread = False
            if error is not None:
                raise error
            if start == end:
                return
            await self._writable(socket)
            if self._transport.is_closing():
                raise ConnectionResetError("the client has left")

    async def _writable(self, socket: _Socket) -> None:
        """Wait until the client may have room; returns now and then without."""
        loop = asyncio.get_running_loop()
        room = asyncio.Event()
        loop.add_writer(socket.fd, room.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await room.wait()
        finally:
            loop.remove_writer(socket.fd)

    async def _rest(self, sent: int) -> None:
        if self._pace is not None:
            await asyncio.sleep(self._pace(sent))

    def close(self) -> None:
        """Let the connection go, for the next answer or for its end."""
        if self._socket is not None and not self._on_thread:
            self._socket.close()
        self._socket = None
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits()


def _send_file(
    socket: _Socket, part: FileBytes, start: int, end: int
) -> tuple[int, OSError | NotFound | None]:
    """Send the bytes [start, end) of a part while the client reads; returns how far it came, and what went wrong."""
    room = select.poll()
    room.register(socket.fd, select.POLLOUT)
    try:
        while start < end:
            try:
                sent = os.sendfile(socket.fd, part.fd, part.offset + start, end - start)
            except BlockingIOError:
                if not room.poll(READS_ON_MS):
                    break
                continue
            if not sent:
                return start, _cut_short()
            start += sent
    except OSError as error:
        return start, error.with_traceback(None)
    return start, None


def _cut_short() -> NotFound:
    return NotFound("a file of the cache was cut short while it was read; read it again")
