"""The gate against clients that want more than they may have: more bytes, more calls, other paths."""

import asyncio
import contextlib
import io
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from p2pcache.agent.api.gate import ApiLimits
from p2pcache.agent.api.routes import Slots
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.core.protocol.tokens import Scope
from p2pcache.core.ratelimit import Rate
from tests.agent.api.rights_kit import ask, guarded, over_tcp, token
from tests.agent.kit import agent, client, make_model, pull, push
from tests.tracker.kit import tracker

DATA = random.Random(5).randbytes(600_000)
SECRET = random.Random(6).randbytes(600_000)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    push(tmp_path / "origin", make_model(tmp_path / "team", {"w": DATA}), "team/m:v1")
    return tmp_path / "origin"


@pytest.fixture
def secret(tmp_path: Path, origin: Path) -> Layout:
    return push(origin, make_model(tmp_path / "secret", {"w": SECRET}), "other/secret:v1")


# -- another tenant's bytes by their digests -----------------------------------------------------


async def offer(session: aiohttp.ClientSession, layout: Layout) -> list[str]:
    status, answer = await ask(session, "POST", "/v1/manifests", data=encode(layout.manifest))
    assert status == 200
    return [item["blob"] for item in answer["missing"]]


async def send(session: aiohttp.ClientSession, layout: Layout, blob: str, data: bytes) -> int:
    return (await ask(session, "PUT", f"/v1/blobs/{layout.digest}/{blob}", data=data))[0]


async def take(session: aiohttp.ClientSession, layout: Layout) -> tuple[int, Any]:
    body = {"ref": "team/mine:v1", "digest": layout.digest}
    return await ask(session, "POST", "/v1/push", json=body)


async def test_knowing_a_manifest_is_not_having_the_bytes(
    tmp_path: Path, origin: Path, secret: Layout
) -> None:
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "other/secret:v1")
        async with over_tcp(app, token(Scope.PUSH, "team", name="thief")) as session:
            (blob,) = await offer(session, secret)  # though the cache has it
            assert (await take(session, secret))[0] == 403
            assert await send(session, secret, blob, b"\0" * len(SECRET)) == 422
            assert await send(session, secret, blob, SECRET[:-1]) == 400
            assert await send(session, secret, blob, SECRET + b"x") == 400
            assert (await take(session, secret))[0] == 403
            status, _ = await ask(session, "POST", "/v1/pull", json={"ref": "team/mine:v1"})
            assert status == 404
        async with over_tcp(app, token(Scope.PUSH, "team", name="owner")) as session:
            assert await send(session, secret, blob, SECRET) == 200
            assert (await take(session, secret))[1]["event"] == "done"
        for name, token_id in (("thief", "00ff"), ("owner", "0bad")):  # names need not differ
            stolen = token(Scope.PUSH, "else", name=name, token_id=token_id)
            async with over_tcp(app, stolen) as session:
                status, answer = await ask(
                    session, "POST", "/v1/push", json={"ref": "else/m:v1", "digest": secret.digest}
                )
                assert status == 403, answer
                assert await offer(session, secret) == [blob]  # another's proof is no proof of mine


async def test_blobs_of_readable_models_need_no_second_proof(tmp_path: Path, origin: Path) -> None:
    copy = push(tmp_path / "elsewhere", make_model(tmp_path / "two", {"w": DATA, "x": b"1"}), "x")
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
        async with over_tcp(app, token(Scope.PUSH, "team")) as session:
            (blob,) = await offer(session, copy)  # only the small file is new
            assert await send(session, copy, blob, b"1") == 200
            assert (await take(session, copy))[1]["event"] == "done"


# -- floods --------------------------------------------------------------------------------------


def limits(
    *, dear: tuple[float, float] = (1000, 1000), pulls: tuple[int, int] = (512, 1024)
) -> Any:
    usual = ApiLimits()
    slots: dict[Slots, tuple[int, int]] = usual.slots | {"pull": pulls}
    return ApiLimits(dear=(Rate(*dear), Rate(1e6, 1e6)), slots=slots)


@contextlib.asynccontextmanager
async def waiting_pulls(session: aiohttp.ClientSession, count: int) -> AsyncIterator[None]:
    """Pulls of a model that doesn't end soon."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            answer = await session.post("/v1/pull", json={"ref": "team/m:v1"})
            stack.callback(answer.close)
            assert answer.status == 200
        yield


async def test_one_client_can_t_take_all_places(tmp_path: Path, origin: Path) -> None:
    settings = {
        "origin": origin.as_uri(),
        "origin_bytes_per_s": 20_000,
        "limits": limits(pulls=(2, 3)),
    }
    async with guarded(tmp_path, **settings) as app:
        async with (
            over_tcp(app, token(Scope.PULL, name="greedy")) as greedy,
            over_tcp(app, token(Scope.PULL, name="modest")) as modest,
            over_tcp(app, token(Scope.PULL, name="late")) as late,
        ):
            async with waiting_pulls(greedy, 2):
                async with modest.post("/v1/pull", json={"ref": "team/m:v1"}) as held:
                    assert held.status == 200
                    for session, status in ((greedy, 429), (late, 503)):
                        answer = await session.post("/v1/pull", json={"ref": "team/m:v1"})
                        assert answer.status == status
                        assert int(answer.headers["Retry-After"]) >= 1
                        assert (await answer.json())["code"] == 8


async def test_rates_slow_down_and_then_refuse(tmp_path: Path) -> None:
    async with guarded(tmp_path, limits=limits(dear=(10, 5))) as app:
        async with over_tcp(app, token(Scope.PULL, name="quick")) as session:
            began = time.monotonic()
            for _ in range(15):  # one after the other: slowed down, never refused
                assert (await ask(session, "GET", "/v1/models"))[0] == 200
            assert time.monotonic() - began > 0.7
            ends = await asyncio.gather(*(ask(session, "GET", "/v1/models") for _ in range(60)))
            assert {status for status, _ in ends} == {200, 429}
        async with over_tcp(app, token(Scope.PULL, name="other")) as session:
            assert (await ask(session, "GET", "/v1/models"))[0] == 200
        async with over_tcp(app) as session:  # health is asked by many
            for _ in range(100):
                assert (await ask(session, "GET", "/healthz"))[0] == 200


async def test_refusals_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as app, over_tcp(app) as session:
        for _ in range(200):
            assert (await ask(session, "GET", "/v1/models"))[0] == 403
    lines = [r for r in caplog.records if r.name == "p2pcache.audit"]
    assert 0 < len(lines) < 40


async def test_two_hundred_at_once_ask_the_tracker_once(tmp_path: Path, origin: Path) -> None:
    path = str(tmp_path / "client.sock")
    async with (
        tracker(origin) as one,
        agent(tmp_path, tracker=f"http://{one.address}", client_socket=path) as app,
    ):
        await pull(app, "team/absent:v1")  # the tracker is met
        assert app.link is not None
        asked: list[str] = []
        question = app.link.ask

        async def count(what: str, *args: Any, **more: Any) -> Any:
            asked.append(what)
            return await question(what, *args, **more)

        app.link.ask = count  # type: ignore[method-assign]
        connector = aiohttp.UnixConnector(path, limit=0)
        async with aiohttp.ClientSession("http://agent", connector=connector) as session:
            calls = (
                ask(session, "POST", "/v1/pull", json={"ref": "team/m:v1"}) for _ in range(200)
            )
            ends = await asyncio.gather(*calls)
        assert {end["event"] for _, end in ends} == {"done"}
        assert asked.count("resolve") <= 20
        assert app.metrics.totals()["origin"] == len(DATA)


# -- paths ---------------------------------------------------------------------------------------

TRICKS = [
    "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc", "team/../other:v1", "/etc/passwd",
    "team//m", "team/m:../x", "team/m:v1/../../x", "team/m%00:v1", "team/m:v1\n", "TEAM//m", "team\\m",
    "team/.m", ".team/m", "team/m:.", "team/m:..", "@blake3:" + "ab" * 32, "m@blake3:../" + "ab" * 30,
    "team/m:v1@blake3:" + "AB" * 32, "a" * 81, "tëam/m", "team/m:v1?x=1", "~root/m", "-rf", "",
]  # fmt: skip


def tree_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "agent.db" not in p.name}


async def test_path_tricks_in_refs_and_urls(tmp_path: Path, origin: Path) -> None:
    async with guarded(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
        before, outside = tree_of(tmp_path / "a"), set(tmp_path.iterdir())
        async with client(app) as session:
            for trick in TRICKS:
                for method, path, more in (
                    ("POST", "/v1/pull", {"json": {"ref": trick}}),
                    ("POST", "/v1/verify", {"json": {"ref": trick}}),
                    ("POST", "/v1/push", {"json": {"ref": trick, "digest": trick}}),
                    ("GET", "/v1/model", {"params": {"ref": trick}}),
                    ("DELETE", "/v1/model", {"params": {"ref": trick}}),
                    ("GET", "/readyz", {"params": {"model": trick}}),
                    ("GET", "/v1/locate", {"params": {"ref": trick}}),
                ):
                    status, answer = await ask(session, method, path, **more)
                    assert status in (400, 404), (method, path, trick, status, answer)
        assert tree_of(tmp_path / "a") == before
        assert set(tmp_path.iterdir()) == outside


RAW = [
    b"GET /v1/../../etc/passwd", b"GET //v1/models", b"GET /v1/models/../prune", b"GET /%2e%2e/v1/models",
    b"PUT /v1/blobs/../../x", b"PUT /v1/blobs/..%2f..%2fx/y", b"PUT /v1/blobs/%00/%00",
    b"GET http://elsewhere/v1/models/", b"POST /v1/pull/", b"GET /v1/models%00", b"TRACE /v1/models",
    b"CONNECT elsewhere:22", b"PUT /v1/pull", b"DELETE /v1/models", b"POST /healthz",
]  # fmt: skip


async def test_path_tricks_in_raw_requests(tmp_path: Path) -> None:
    """As they are on the wire: a client library would have tidied them up."""
    path = str(tmp_path / "client.sock")
    async with agent(tmp_path, client_socket=path) as app:
        for socket in (path, app.settings.socket):
            for line in RAW:
                reader, writer = await asyncio.open_unix_connection(socket)
                writer.write(
                    line + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                async with asyncio.timeout(30):
                    first = await reader.readline()
                writer.close()
                assert int(first.split()[1]) in (400, 403, 404, 405), (line, first)


async def test_smuggling_and_giant_headers(tmp_path: Path) -> None:
    async with agent(tmp_path) as app:
        for head in (
            b"POST /v1/prune HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            b"POST /v1/prune HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
            b"POST /v1/prune HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        ):
            reader, writer = await asyncio.open_unix_connection(app.settings.socket)
            writer.write(head)
            async with asyncio.timeout(30):
                first = await reader.readline()
            writer.close()
            assert first.split()[1].startswith(b"4"), (head[:60], first)


async def test_giant_and_deep_bodies(tmp_path: Path) -> None:
    async with agent(tmp_path) as app, client(app) as session:
        for body in (
            b"x" * (2 << 20),
            b"[" * 200_000,
            b'{"ref": "' + b"a" * (1 << 20) + b'"}',
            b"\xff",
        ):
            status, answer = await ask(session, "POST", "/v1/pull", data=io.BytesIO(body))
            assert (status, answer["code"]) == (400, 2)
        status, answer = await ask(
            session, "POST", "/v1/pull", json={"ref": "a", "namespace_override": "x"}
        )
        assert status == 400
