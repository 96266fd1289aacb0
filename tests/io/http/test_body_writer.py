"""Bodies by sendfile on real sockets, with both event loops: whole, slow, left alone, cut short."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from p2pcache.errors import NotFound
from p2pcache.io.http import body_writer
from p2pcache.io.http.body_writer import BodyWriter, FileBytes
from p2pcache.io.http.server import listen_tcp, serving
from tests.io.models.store_kit import open_fds

DATA = os.urandom(1_000_003) * 12
HEAD, TAIL = b"head" * 10, b"tail" * 10_000
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@asynccontextmanager
async def server(path: Path) -> AsyncIterator[tuple[int, list[str]]]:
    """Answers each request with a head, a file and a tail; its port, how answers ended."""
    ends: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(HEAD) + len(DATA) + len(TAIL)
        with path.open("rb") as file:
            body = await BodyWriter.begin_body(request, response)
            try:
                await body.write_bytes(HEAD)
                await body.write_file(FileBytes(file.fileno(), 0, len(DATA), file))
                await body.write_bytes(TAIL)
                await response.write_eof()
                ends.append("whole")
            except (ConnectionError, NotFound) as error:
                ends.append(type(error).__name__)
                if request.transport is not None:
                    request.transport.abort()
            finally:
                body.close()
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    sock = listen_tcp("127.0.0.1:0")
    port = sock.getsockname()[1]
    async with serving(app, [sock]):
        yield port, ends


def run(loop: Callable[[], Any], work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


async def answer_of(reader: asyncio.StreamReader, pause: float = 0.0) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    found = bytearray()
    while len(found) < left and (part := await reader.read(min(1 << 18, left - len(found)))):
        found += part
        await asyncio.sleep(pause)
    return bytes(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_answers_behind_one_another(
    file: Path, loop: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a client that reads slowly: the loop waits for it, and no thread."""
    monkeypatch.setattr(body_writer, "READS_ON_MS", 1)

    async def work() -> None:
        async with server(file) as (port, ends):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 150_000)
            reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
            for pause in (0.0, 0.01):
                writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert await answer_of(reader, pause) == HEAD + DATA + TAIL
            writer.close()
            await writer.wait_closed()
            assert ends == ["whole", "whole"]

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_client_that_leaves(file: Path, loop: Callable[[], Any]) -> None:
    async def work() -> None:
        async with server(file) as (port, ends):
            before = open_fds()
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await asyncio.sleep(0.1)
            writer.transport.abort()
            async with asyncio.timeout(5):
                while not ends or open_fds() > before:
                    await asyncio.sleep(0.02)
            assert ends != ["whole"]

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_file_that_was_cut_short_ends_the_connection(file: Path, loop: Callable[[], Any]) -> None:
    os.truncate(file, 1_000_000)

    async def work() -> None:
        async with server(file) as (port, ends):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            async with asyncio.timeout(5):
                try:
                    found = await answer_of(reader)
                except ConnectionResetError:
                    found = b""
            assert len(found) < len(DATA)
            assert ends == ["NotFound"]
            writer.close()

    run(loop, work())
