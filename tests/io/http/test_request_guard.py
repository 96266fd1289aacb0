"""Pages of other sites, in the browser of somebody who can reach our ports."""

import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web as aio

from p2pcache.io.http import server as web
from p2pcache.io.http.request_guard import is_local_name

EVIL = "http://site.example"


@contextlib.asynccontextmanager
async def server(listen: str) -> AsyncIterator[tuple[str, list[str]]]:
    called: list[str] = []

    async def act(request: aio.Request) -> aio.Response:
        called.append(request.method)
        return web.json_response({})

    app = web.make_app()
    app.add_routes([aio.get("/", act), aio.post("/", act)])
    sock = web.listen_tcp(listen)
    async with web.serving(app, [sock]):
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/", called


async def ask(url: str, method: str, **headers: str) -> int:
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.request(method, url, data=b"{}" if method == "POST" else None) as answer:
            return answer.status


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_another_sites_page_calls_nothing(listen: str) -> None:
    """`fetch(url, {method: "POST", mode: "no-cors"})` needs nobody's leave, and would act."""
    async with server(listen) as (url, called):
        for origin in (EVIL, "null", url.rstrip("/")):
            assert await ask(url, "POST", Origin=origin) == 403
            assert await ask(url, "GET", Origin=origin) == 403
        assert called == []
        assert await ask(url, "POST") == 200


async def test_a_site_with_our_address_is_not_ourselves() -> None:
    """DNS rebinding: to the browser the page is ours, and sends no Origin with a GET."""
    async with server("127.0.0.1:0") as (url, called):
        for name in ("site.example:7400", "127.0.0.1.site.example", "localhost.site.example:1"):
            assert await ask(url, "GET", Host=name) == 403
        assert called == []
        for name in ("localhost:7400", "[::1]:7400", "127.0.0.1"):
            assert await ask(url, "GET", Host=name) == 200


async def test_an_agent_may_call_a_tracker_on_loopback_by_any_name() -> None:
    """Cloud images map the host's own name to a loopback address. No browser opens a WebSocket without Origin."""
    web_socket = {"Upgrade": "WebSocket", "Connection": "Upgrade"}
    async with server("127.0.0.1:0") as (url, called):
        assert await ask(url, "GET", Host="node1.corp.example:7400", **web_socket) == 200
        evil = {"Origin": "http://node1.corp.example:7400", **web_socket}
        assert await ask(url, "GET", Host="node1.corp.example:7400", **evil) == 403
        assert len(called) == 1


async def test_elsewhere_any_name_may_be_ours() -> None:
    async with server("0.0.0.0:0") as (url, _):
        assert await ask(url, "GET", Host="tracker.example.com:7400") == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True), ("LOCALHOST:80", True), ("a.localhost:80", True), ("vm", True),
        ("10.1.2.3:7400", True), ("[fe80::1]:7400", True), ("::1", True), ("", True),
        ("a.b", False), ("a.b:80", False), ("a.b.", False), ("1.2.3", False), ("127.0.0.1.a", False),
        ("localhost.a:1", False), ("[::1].a", False), ("127.0.0.1@a.b", False), ("a.b:80:80", False),
    ],
)  # fmt: skip
def test_names_that_no_site_can_have(host: str, local: bool) -> None:
    assert is_local_name(host) == local
