"""HTTP server scaffolding for both daemons: error mapping, limits, listening on TCP and unix sockets.

An error leaves as a status and `{"code": <exit code>, "message": "..."}`. A handler that has
begun to stream must report its own errors inside the stream: its status line is gone already.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from p2pcache.core.protocol.address import join
from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import Busy, NotAllowed, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.http.bodies import BROKEN_BODY, read_body
from p2pcache.io.http.connection_limits import ConnectionLimiter, connection_limit
from p2pcache.io.http.exchange import ROLE_HEADER
from p2pcache.io.http.own_addresses import host_to_bind, take_ipv4_too
from p2pcache.io.http.request_guard import refusal, refuse_other_sites
from p2pcache.io.process_limits import limit_reached
from p2pcache.io.security.cluster_key import is_loopback

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON_BODY_BYTES = 1024 * 1024  # requests are small; manifests and blobs say their own limits
BACKLOG = 1024  # a storm dials all at once
KEEPALIVE_S = 30.0  # without another request; our own client opens a connection for each call
TLS_HANDSHAKE_S = 10.0  # as `PeerLimits.handshake_s`
GOODBYE_S = 3.0  # for answers that are being written when the server stops
TRACES = Rate(1 / 60, 20)  # in the log: a caller that found a bug may send 1,000 requests a second
_traces = RateLimit(TRACES, TRACES)
_STATUS = {
    1: 500,
    2: 400,
    3: 404,
    4: 403,
    5: 507,
    6: 422,
    7: 502,
    8: 503,
    9: 504,
    10: 409,
    130: 409,
}
# Other 4xx: 2 (usage), since a call that isn't there is no missing model.
_CODE = {401: 4, 403: 4, 409: 10}

_log = logging.getLogger(__name__)


def status_of(error: P2PCacheError) -> int:
    """The HTTP status that an error leaves with."""
    return _STATUS.get(error.exit_code, 500)


def json_response(body: object, *, status: int = 200) -> web.Response:
    """`body` (anything msgspec encodes) as a JSON answer."""
    return encoded_response(msgspec.json.encode(body), status=status)


def encoded_response(body: bytes, *, status: int = 200) -> web.Response:
    """JSON that is encoded already, such as the tracker's, as an answer."""
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(code: int, message: str, *, status: int) -> web.Response:
    """The one shape of a failed request."""
    return json_response({"code": code, "message": message}, status=status)


async def read_json(
    request: web.Request, kind: type[T], *, limit_bytes: int = JSON_BODY_BYTES
) -> T:
    """The request's JSON body as a `kind` (a msgspec Struct).

    Raises:
        UsageError: too large, not JSON, or not of that shape.
    """
    body = await read_body(request, limit_bytes=limit_bytes)
    try:
        return msgspec.json.decode(bytes(body) or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"bad request body: {error}") from None


def wanted_ref(request: web.Request) -> Ref:
    """The model that `?ref=` names.

    Raises:
        UsageError: the parameter is missing, or it isn't a ref.
    """
    text = request.query.get("ref", "")
    if not text:
        raise UsageError("say which model: ?ref=NAME:TAG")
    return Ref.parse(text)


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into answers. A bug is logged with its trace; the answer doesn't show it."""
    try:
        return await handler(request)
    except Busy as error:
        status = 429 if error.yours else 503
        answer = error_response(error.exit_code, str(error), status=status)
        answer.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        return answer
    except P2PCacheError as error:
        if error.exit_code == 1:
            _log_trace(request)
        return error_response(error.exit_code, str(error), status=status_of(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = _CODE.get(error.status, 2 if error.status < 500 else 1)
        text = f"{error.reason}: {request.path}"
        if error.status == 404:
            text += " (no call of this server; is it the right one, and of this release?)"
        return error_response(code, text, status=error.status)
    except ConnectionError:
        raise  # the client is gone
    except BROKEN_BODY as error:
        text = f"the request's body is broken: {type(error).__name__}"
        return error_response(UsageError.exit_code, text, status=400)
    except Exception as error:  # noqa: BLE001 - the edge: a bug must not leave as a trace
        if limited := limit_reached(error):
            return error_response(limited.exit_code, str(limited), status=status_of(limited))
        _log_trace(request)
        message = (
            "internal error; the daemon's log has the details, or P2PCACHE_DEBUG=1 without one"
        )
        return error_response(1, message, status=500)


def _log_trace(request: web.Request) -> None:
    """Log the exception at hand with its trace, unless too many were logged lately."""
    if not _traces.take("", time.monotonic(), patience_s=0):
        _log.exception("%s %s failed", request.method, request.path)


def make_app(*middlewares: Any, role: str = "") -> web.Application:
    """An application with the error mapping outermost and small default limits.

    Args:
        middlewares: inside of the error mapping.
        role: of this server, which each answer's head shows; "": it shows none.
    """
    app = web.Application(
        middlewares=[errors_middleware, *middlewares], client_max_size=JSON_BODY_BYTES
    )

    async def show_role(_: web.Request, answer: web.StreamResponse) -> None:
        answer.headers[ROLE_HEADER] = role

    if role:
        app.on_response_prepare.append(show_role)
    return app


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` (IPv6 in brackets) as a pair; port 0 lets the system choose.

    Raises:
        UsageError: with an example.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare) != (bare != host):
        raise UsageError(f"not an address: {text!r}; expected HOST:PORT, for example 0.0.0.0:7400")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise UsageError(f"not a port: {port!r} in {text!r}; expected 0 to 65535")
    return bare, int(port)


@contextlib.asynccontextmanager
async def serving(
    app: web.Application,
    sockets: Sequence[socket.socket],
    *,
    connections: int = 0,
    request_bytes: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve `app` on listening sockets for the length of the block; closes them at the end.

    Args:
        app: not yet in use.
        sockets: listening ones.
        connections: most at once over all sockets; further ones are answered 503. 0: what our
            file descriptors allow.
        request_bytes: what one request may send in all, its head included, until
            `connection_limits.trust`; more ends the connection. 0: no such limit.
        tls: speak HTTPS with this.
    """
    limiter: ConnectionLimiter | None = None

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        assert limiter is not None
        with limiter.answering(request.protocol):
            return await handler(request)

    app.middlewares.insert(0, count)
    loopback = [is_loopback(s.getsockname()[0]) for s in sockets if s.family != socket.AF_UNIX]
    if loopback:  # no browser opens unix sockets
        app.middlewares.append(refuse_other_sites(loopback=all(loopback)))
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=GOODBYE_S, keepalive_timeout=KEEPALIVE_S,
        auto_decompress=False,  # 60 KB unpack to 60 MB on the loop, before the sender is known
    )  # fmt: skip
    await runner.setup()
    assert runner.server is not None
    runner.server.request_handler = _guarded(runner.server.request_handler)
    limiter = ConnectionLimiter(
        runner.server, connections or connection_limit(), request_bytes=request_bytes
    )
    loop = asyncio.get_running_loop()
    try:
        async with contextlib.AsyncExitStack() as stack:
            for sock in sockets:
                listener = await loop.create_server(
                    limiter, sock=sock, backlog=BACKLOG, ssl=tls,
                    ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_S,
                )  # fmt: skip
                stack.callback(listener.close)
            yield
    finally:
        await runner.cleanup()
        limiter.close()
        for sock in sockets:
            sock.close()


def _guarded(answer: Callable[[Any], Awaitable[web.StreamResponse]]) -> Any:
    """`answer` for requests whose head isn't refused; decided before `Expect` asks for a body."""

    async def guard(request: web.BaseRequest) -> web.StreamResponse:
        if why_not := refusal(request.raw_path, request.raw_headers):
            return error_response(UsageError.exit_code, why_not.text, status=why_not.status)
        return await answer(request)

    return guard


def listen_tcp(listen: str) -> socket.socket:
    """A listening TCP socket on `HOST:PORT`.

    Raises:
        UsageError: not an address, an unknown host, or the port is taken.
        NotAllowed: a port that needs privileges.
    """
    host, port = parse_listen(listen)
    host = host_to_bind(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise UsageError(f"can't listen on {listen}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        take_ipv4_too(sock, host)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        kind_of = NotAllowed if isinstance(error, PermissionError) else UsageError
        raise kind_of(
            f"can't listen on {listen}: {error.strerror}; choose another address, or stop what uses it"
        ) from None
    return sock


def bound_address(sock: socket.socket) -> str:
    """Where a TCP socket listens, as `HOST:PORT` (tells the port that port 0 became)."""
    host, port = sock.getsockname()[:2]
    return join(host, port)


def listen_unix(path: Path, *, mode: int) -> socket.socket:
    """A listening unix socket at `path` with permission bits `mode`.

    It appears with its permissions, complete, in one rename; a socket left by a dead daemon is
    replaced, one that answers is not.

    Raises:
        UsageError: the path is too long, its folder is missing, or another daemon answers there.
        NotAllowed: the folder isn't ours to write.
    """
    if len(os.fsencode(path)) > 100:  # the kernel's limit is 107, and the temporary name is longer
        raise UsageError(f"the socket path {path} is too long: at most 100 bytes")
    if _answers(path):
        raise UsageError(f"another daemon is listening on {path}; stop it or choose another path")
    fresh = path.with_name(path.name + ".new")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        fresh.unlink(missing_ok=True)
        sock.bind(str(fresh))
        fresh.chmod(mode)
        sock.listen(BACKLOG)
        fresh.rename(path)
    except OSError as error:
        sock.close()
        kind_of = NotAllowed if isinstance(error, PermissionError) else UsageError
        raise kind_of(
            f"can't listen on {path}: {error.strerror}; its folder must be there and ours to write, or "
            "choose another path"
        ) from None
    return sock


def remove_unix(path: Path) -> None:
    """Take the socket file away at the end, if it still is a socket."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def _answers(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} exists and is not a socket; choose another path")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise NotAllowed(f"can't look at {path}: {error.strerror}") from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
