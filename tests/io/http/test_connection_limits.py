"""Floods and silence in front of a real HTTP server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web as aio

from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.io.http import bodies, connection_limits
from p2pcache.io.http import server as web
from p2pcache.io.http.bodies import read_body


@contextlib.asynccontextmanager
async def server(path: Path, *, connections: int = 0) -> AsyncIterator[str]:
    async def hello(request: aio.Request) -> aio.Response:
        return web.json_response({"bytes": len(await read_body(request, limit_bytes=1000))})

    app = web.make_app()
    app.add_routes([aio.post("/", hello)])
    async with web.serving(app, [web.listen_unix(path, mode=0o600)], connections=connections):
        yield str(path)


async def ask(path: str) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    data = await reader.read()
    writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


async def let_in(path: str) -> None:
    """Once the server has seen who left."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionError):  # a refusal may overtake the question
                if (await ask(path))[0] == 200:
                    return
            await asyncio.sleep(0.01)


async def test_beyond_the_limit_the_answer_says_when_to_retry(tmp_path: Path) -> None:
    async with server(tmp_path / "s", connections=2) as path:
        held = [await asyncio.open_unix_connection(path) for _ in range(2)]
        await asyncio.sleep(0.05)
        status, headers, body = await ask(path)
        assert (status, headers["Retry-After"]) == (503, str(connection_limits.RETRY_AFTER_S))
        assert json.loads(body)["code"] == 8
        for _, writer in held:
            writer.close()
        await let_in(path)


async def test_a_flood_of_connections_takes_a_bounded_number_of_descriptors(
    tmp_path: Path,
) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async with server(tmp_path / "s", connections=10) as path:
        before = open_files()
        flood = [await asyncio.open_unix_connection(path) for _ in range(200)]
        async with asyncio.timeout(30):
            for reader, _ in flood[10:]:
                # By then it was refused; most of so many without a word.
                assert (line := await reader.readline()) == b"" or b" 503 " in line
            while open_files() - before - len(flood) > 10 + 5:
                await asyncio.sleep(0.01)
        for _, writer in flood:
            writer.close()
        await let_in(path)


async def test_a_silent_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "FIRST_REQUEST_S", 0.1)
    async with server(tmp_path / "s") as path:
        silent, w1 = await asyncio.open_unix_connection(path)
        loris, w2 = await asyncio.open_unix_connection(path)
        w2.write(b"POST / HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(30):
            assert await silent.read() == b""
            assert await loris.read() == b""
        w1.close()
        w2.close()
        assert (await ask(path))[0] == 200


async def test_a_body_that_stops_ends_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.1)
    async with server(tmp_path / "s") as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        async with asyncio.timeout(30):
            line = await reader.readline()
        assert b" 504 " in line
        writer.close()


async def test_a_long_request_outlives_the_limit_for_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "FIRST_REQUEST_S", 0.3)
    async with server(tmp_path / "s") as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        await asyncio.sleep(0.5)
        writer.write(b"abc")
        assert b" 200 " in await reader.readline()
        writer.close()


def test_limits_follow_the_descriptors() -> None:
    assert connection_limits.raise_file_limit() > 0
    assert (
        connection_limits.LEAST_CONNECTIONS
        <= connection_limits.connection_limit()
        <= connection_limits.MOST_CONNECTIONS
    )


async def test_views_are_rated_by_address_and_the_free_path_is_not(tmp_path: Path) -> None:
    async def hello(_: aio.Request) -> aio.Response:
        return web.json_response({})

    limit = RateLimit(Rate(5, 3), Rate(1000, 1000))
    app = web.make_app(connection_limits.rated(limit, free=frozenset({"/free"})))
    app.add_routes([aio.get("/", hello), aio.get("/free", hello)])
    sock = web.listen_tcp("127.0.0.1:0")
    async with web.serving(app, [sock]), aiohttp.ClientSession() as http:

        async def get(path: str) -> int:
            async with http.get(f"http://{web.bound_address(sock)}{path}") as answer:
                assert answer.status == 200 or int(answer.headers["Retry-After"]) >= 1
                return answer.status

        assert set(await asyncio.gather(*(get("/") for _ in range(30)))) == {200, 429}
        assert set(await asyncio.gather(*(get("/free") for _ in range(30)))) == {200}


# -- strangers over TCP ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def tcp_server(*, connections: int = 0, request_bytes: int = 0) -> AsyncIterator[int]:
    async def hello(_: aio.Request) -> aio.Response:
        return web.json_response({})

    app = web.make_app()
    app.add_routes([aio.get("/", hello)])
    sock = web.listen_tcp("127.0.0.1:0")
    async with web.serving(app, [sock], connections=connections, request_bytes=request_bytes):
        yield sock.getsockname()[1]


class Client:
    """A connection that stays open."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def dial(self, port: int) -> int:
        """Connect and ask; the status."""
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(self._address, 0)
        )
        return await self.ask()

    async def ask(self) -> int:
        self.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readuntil(b"}")
        return int(head.split()[1])


async def test_idle_connections_that_hold_every_place_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger that asks something small now and then keeps nobody out, and costs no other its place."""
    monkeypatch.setattr(connection_limits, "IDLE_S", 600.0)
    monkeypatch.setattr(connection_limits, "SWEEP_S", 0.0)
    async with tcp_server(connections=20) as port:
        honest = Client("127.0.0.2")
        assert await honest.dial(port) == 200
        hogs = [Client("127.0.0.3") for _ in range(19)]
        assert [await hog.dial(port) for hog in hogs] == [200] * 19
        early = Client("127.0.0.4")
        assert await early.dial(port) == 503  # nobody is idle for long yet: the usual answer
        monkeypatch.setattr(connection_limits, "IDLE_S", 0.0)
        late = Client("127.0.0.4")
        assert await late.dial(port) == 200
        assert await honest.ask() == 200
        gone = [hog for hog in hogs if hog.reader.at_eof() or hog.reader.exception()]
        assert gone == hogs[:1]  # the one that was idle the longest
        for each in (honest, early, late, *hogs):
            each.writer.close()


async def test_an_unproved_sender_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that goes on and on keeps no place of a full house; one that is over does."""
    monkeypatch.setattr(connection_limits, "IDLE_S", 0.0)
    monkeypatch.setattr(connection_limits, "SWEEP_S", 0.0)
    asking, over = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: aio.Request) -> aio.Response:
        connection_limits.count_as_idle(request)
        if request.query:
            connection_limits.trust(request)
        asking.release()
        await over.wait()
        return web.json_response({})

    app = web.make_app()
    app.add_routes([aio.get("/", wait)])
    sock = web.listen_tcp("127.0.0.1:0")
    async with web.serving(app, [sock], connections=2):
        readers, writers = [], []
        for path in (b"/?known", b"/", b"/"):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            async with asyncio.timeout(20):
                await asking.acquire()
            readers.append(reader)
            writers.append(writer)
        with contextlib.suppress(ConnectionError):
            assert await readers[1].read() == b""
        over.set()
        for reader, writer in ((readers[0], writers[0]), (readers[2], writers[2])):
            assert b" 200 " in await reader.readline()
            writer.close()
        writers[1].close()


async def test_a_stranger_sends_no_more_than_a_request_has() -> None:
    async with tcp_server(request_bytes=10_000) as port:
        client = Client("127.0.0.1")
        assert await client.dial(port) == 200
        for _ in range(300):  # the limit is each request's, not the connection's
            assert await client.ask() == 200
        client.writer.write(b"GET / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
        with contextlib.suppress(ConnectionResetError):
            while await client.reader.read(1000):
                pass
        client.writer.close()


def test_the_daemons_own_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's transports are of other classes than asyncio's."""
    monkeypatch.setattr(connection_limits, "GOODBYE_S", 0.05)

    async def full_house() -> None:
        async with server(tmp_path / "s", connections=2) as path:
            held = [await asyncio.open_unix_connection(path) for _ in range(2)]
            await asyncio.sleep(0.05)
            assert (await ask(path))[0] == 503
            for _, writer in held:
                writer.close()
            await let_in(path)
            await asyncio.sleep(0.05)

    uvloop.run(full_house())


class Ended(asyncio.Transport):
    """A transport that notes its end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    def abort(self) -> None:
        self.ended = True


async def test_a_connection_that_is_accepted_while_the_server_ends_is_closed() -> None:
    """asyncio makes its transport a turn of the loop later, when nobody looks after it any more."""
    handlers: Any = asyncio.Protocol
    limiter = connection_limits.ConnectionLimiter(handlers, 4)
    early = limiter()
    limiter.close()
    for protocol in (early, limiter()):
        transport = Ended()
        protocol.connection_made(transport)
        assert transport.ended
        protocol.connection_lost(None)
