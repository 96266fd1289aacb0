import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from p2pcache import errors
from p2pcache.core.protocol.address import join
from p2pcache.io.http import server as ours


class Body(msgspec.Struct, forbid_unknown_fields=True):
    ref: str
    force: bool = False


ALL = [
    (errors.P2PCacheError, 500), (errors.UsageError, 400), (errors.NotFound, 404),
    (errors.NotAllowed, 403), (errors.NoSpace, 507), (errors.IntegrityError, 422),
    (errors.OriginUnavailable, 502), (errors.Unreachable, 503), (errors.TimedOut, 504),
    (errors.Conflict, 409), (errors.InvalidManifest, 422),
]  # fmt: skip


def make_app() -> web.Application:
    app = ours.make_app()

    async def fail(request: web.Request) -> web.Response:
        kind = getattr(errors, request.query["kind"])
        raise kind("it broke")

    async def bug(_: web.Request) -> web.Response:
        raise ZeroDivisionError("secret detail")

    async def crowded(_: web.Request) -> web.Response:
        raise RuntimeError("can't start new thread")

    async def echo(request: web.Request) -> web.Response:
        return ours.json_response(await ours.read_json(request, Body, limit_bytes=100))

    app.add_routes(
        [
            web.get("/fail", fail),
            web.get("/bug", bug),
            web.get("/crowded", crowded),
            web.post("/echo", echo),
        ]
    )
    return app


@pytest.fixture
async def url() -> AsyncIterator[str]:
    sock = ours.listen_tcp("127.0.0.1:0")
    async with ours.serving(make_app(), [sock]):
        yield f"http://{ours.bound_address(sock)}"


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize(("kind", "status"), ALL)
async def test_error_mapping(
    url: str, http: aiohttp.ClientSession, kind: type[errors.P2PCacheError], status: int
) -> None:
    async with http.get(f"{url}/fail?kind={kind.__name__}") as answer:
        assert answer.status == status
        assert await answer.json() == {"code": kind.exit_code, "message": "it broke"}


async def test_a_bug_is_answered_without_its_detail(
    url: str, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with http.get(f"{url}/bug") as answer:
        assert answer.status == 500
        body = await answer.json()
    assert body["code"] == 1
    assert "secret" not in body["message"]
    assert "secret detail" in caplog.text


async def test_too_few_threads_are_no_bug(url: str, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{url}/crowded") as answer:
        body = await answer.json()
    assert body["code"] == errors.NotAllowed.exit_code
    assert "TasksMax" in body["message"]


async def test_unknown_paths_and_methods(url: str, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{url}/nothing") as answer:
        assert (answer.status, (await answer.json())["code"]) == (404, 2), "no missing model"
    async with http.post(f"{url}/bug") as answer:
        assert (answer.status, (await answer.json())["code"]) == (405, 2)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b'{"ref":"a"}', 200), (b"{}", 400), (b"", 400), (b"[", 400), (b'{"ref":1}', 400),
     (b'{"ref":"a","x":1}', 400), (b'{"ref":"' + b"a" * 200 + b'"}', 400), (b'{"ref":"\xff"}', 400),
     (b"[" * 90, 400)],
)  # fmt: skip
async def test_read_json(url: str, http: aiohttp.ClientSession, body: bytes, status: int) -> None:
    async with http.post(f"{url}/echo", data=body) as answer:
        assert answer.status == status
        if status != 200:
            assert (await answer.json())["code"] == 2


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    sock = ours.listen_unix(path, mode=0o660)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    async with (
        ours.serving(make_app(), [sock]),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
        http.get("http://agent/nothing") as answer,
    ):
        assert answer.status == 404
        with pytest.raises(errors.UsageError, match="another daemon"):
            ours.listen_unix(path, mode=0o600)
    ours.remove_unix(path)
    assert not path.exists()


def test_a_dead_socket_is_replaced_but_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    ours.listen_unix(path, mode=0o600).close()
    ours.listen_unix(path, mode=0o600).close()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(errors.UsageError, match="not a socket"):
        ours.listen_unix(path, mode=0o600)
    assert path.read_text() == "precious"
    ours.remove_unix(path)
    assert path.exists()


def test_bad_unix_paths(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="too long"):
        ours.listen_unix(tmp_path / ("x" * 120), mode=0o600)
    with pytest.raises(errors.UsageError, match="No such file"):
        ours.listen_unix(tmp_path / "no" / "a.sock", mode=0o600)


@pytest.mark.parametrize(
    ("text", "want"),
    [("127.0.0.1:7400", ("127.0.0.1", 7400)), ("[::1]:0", ("::1", 0)), ("node-1:1", ("node-1", 1))],
)
def test_parse_listen(text: str, want: tuple[str, int]) -> None:
    assert ours.parse_listen(text) == want
    assert join(*want) == text


@pytest.mark.parametrize(
    "text",
    ["", "x", ":80", "h:", "h:-1", "h:65536", "::1:80", "[h]:80", "h:\u0661", "h:" + 5000 * "7"],
)
def test_parse_listen_refuses(text: str) -> None:
    with pytest.raises(errors.UsageError):
        ours.parse_listen(text)


def test_port_taken_and_unknown_host() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(errors.UsageError, match="in use"):
            ours.listen_tcp(ours.bound_address(other))
    with pytest.raises(errors.UsageError, match="can't listen"):
        ours.listen_tcp("no-such-host.invalid:1")
