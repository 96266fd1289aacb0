"""Probes of tracker, origin and agent: whether each answers, and accepts us, in one short request.

Blocking, for threads of their own (`io.deadline_thread`). Every wait has a limit except name resolution,
which the system bounds.
"""

import asyncio
import email.utils
import http.client
import os
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from p2pcache.core.protocol.address import tracker_url
from p2pcache.core.protocol.handshake import NONCE_BYTES, Challenge, Secret, Welcome, confirm, hello
from p2pcache.errors import NotAllowed, P2PCacheError, RemoteProtocolError, Unreachable, UsageError
from p2pcache.io.host.host_facts import look_up
from p2pcache.io.http.client import AgentClient
from p2pcache.io.http.exchange import reason_of
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.repo import ROOT
from p2pcache.io.security.tls import Tls, check_role, explain

T = TypeVar("T")

CALL_S = 5.0  # a healthy server answers in milliseconds
LAST_TURN_S = 0.1  # aiohttp needs it after a session with TLS
MAX_FRAME_BYTES = 4096  # of the handshake
MAX_STATUS_BYTES = 1 << 20
_UCRED = struct.Struct("3i")


class Told(NamedTuple):
    """Public facts of a tracker."""

    ahead_s: float | None = None  # our clock's lead on its clock; None: unknown
    origin: str = ""
    role: str = ""  # "active" or "standby"; "": it doesn't say
    active: str = ""  # of a standby: URL of the active tracker; "": it knows none


def addresses_of(url: str) -> list[str]:
    """The addresses of a tracker's name, of the family that the system prefers; [""] where it hasn't several."""
    try:
        found = look_up(urlsplit(tracker_url(url)).hostname or "", 0, socket.SOCK_STREAM)
    except (OSError, ValueError, UsageError):
        return [""]  # joining says what is wrong
    addresses = dict.fromkeys(str(one[4][0]) for one in found if one[0] == found[0][0])
    return list(addresses) if len(addresses) > 1 else [""]


def join(url: str, secret: Secret, tls: Tls | None, address: str = "") -> float:
    """Join a tracker as far as the handshake; we never become a member.

    Args:
        url: of the tracker.
        secret: the cluster key.
        tls: our certificate, in mTLS mode.
        address: to dial, if its name has several; "": any.

    Returns:
        How long it took, in seconds.

    Raises:
        UsageError: not the URL of a tracker.
        Unreachable: it doesn't answer, or something else does.
        NotAllowed: it doesn't take our key or certificate.
    """
    base = tracker_url(url)
    _check_resolver(base)
    began = time.monotonic()
    try:
        _run(_join(base, secret, tls, address))
    except (aiohttp.ClientError, OSError, ValueError, RemoteProtocolError) as error:
        raise _translated(base, error) from None
    return time.monotonic() - began


def ask(url: str, tls: Tls | None, address: str = "") -> Told:
    """What a tracker says of itself, whether or not it accepts us; empty if it doesn't answer.

    Arguments as of `join`.
    """
    try:
        return _run(_ask(tracker_url(url), tls, address))
    except (aiohttp.ClientError, OSError, ValueError, UsageError):
        return Told()


def list_origin(url: str) -> tuple[float, bool]:
    """List the first tag of a storage, with the credentials of this process.

    Returns:
        How long it took, in seconds, and whether there is none.

    Raises:
        UsageError, NotFound, NotAllowed, OriginUnavailable: as the storage has it.
    """
    opened = _open(url)
    try:
        began = time.monotonic()
        empty = next(opened.list(f"{ROOT}/tags/"), None) is None
        return time.monotonic() - began, empty
    finally:
        opened.close()


def origin_clock(url: str) -> float | None:
    """Our clock's lead on a storage's, which also refusals carry; None: unknown."""
    if not url.startswith("s3://"):
        return None
    from p2pcache.io.origins.s3.origin import S3Origin  # botocore costs 0.2 s to import

    try:
        opened = _open(url)
    except P2PCacheError:
        return None
    try:
        return _lead_on(opened.inner.endpoint) if isinstance(opened.inner, S3Origin) else None
    finally:
        opened.close()


def agent(address: str, token: str) -> tuple[dict[str, Any], int | None]:
    """An agent's status, and its process id where it is of this machine.

    Raises:
        Unreachable, NotAllowed: no agent, or not for us.
    """
    status = AgentClient(address, token=token, answer_s=CALL_S).status()
    return status, _owner(address.removeprefix("unix://")) if address[0] == "u" else None


def unreached(address: str, token: str, node: str) -> str:
    """The address at which other nodes lately tried in vain to reach an agent's node; "": none."""
    try:
        rows = AgentClient(address, token=token, answer_s=CALL_S).nodes()
    except P2PCacheError:  # no tracker, or not for us: other probes report that
        return ""
    own = (row for row in rows if row.get("node") == node and row.get("unreached"))
    return next((str(row.get("address")) for row in own), "")


def _open(url: str) -> Retrying:
    settings = OriginSettings.from_env()
    quick = replace(settings, connect_timeout_s=CALL_S, read_timeout_s=CALL_S, retry_for_s=0.0)
    return open_origin(url, quick)


def _owner(path: str) -> int | None:
    """Pid of the listener of a unix socket; None: of another pid namespace, or gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(CALL_S)
        try:
            sock.connect(path)
            data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        except OSError:
            return None
    return int(_UCRED.unpack(data)[0]) or None


def _check_resolver(base: str) -> None:
    try:
        look_up(urlsplit(base).hostname or "", 0, socket.SOCK_STREAM)
    except TimeoutError as error:
        raise Unreachable(f"tracker {base} can't be found: {error}") from None
    except (OSError, ValueError):
        return  # joining says what is wrong


def _translated(base: str, error: Exception) -> P2PCacheError:
    """The error of our tree for a tracker that couldn't be joined."""
    if isinstance(error, aiohttp.WSServerHandshakeError):
        if error.status == 403:
            return NotAllowed(f"tracker {base} refuses our certificate; its log says why")
        return Unreachable(f"{base} answers HTTP {error.status}, not as a tracker; check the URL")
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        how = "compare tls_cert and tls_ca with the tracker's"
        return NotAllowed(f"tracker {base}: {explain(cause)}; {how}")
    if isinstance(error, TimeoutError):
        reason = "doesn't answer"
    elif isinstance(error, RemoteProtocolError):
        reason = f"isn't one that we understand: {error}"
    else:
        reason = f"is not reachable: {reason_of(cause)}"
    return Unreachable(f"tracker {base} {reason}; check host, port, firewall, and that it runs")


def _lead_on(endpoint: str) -> float | None:
    """Our clock's lead on that of an HTTP server, without credentials; any answer has a date."""
    parts = urlsplit(endpoint)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CALL_S)
    try:
        connection.request("HEAD", "/")
        return _lead(connection.getresponse().getheader("Date"))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _lead(date: str | None) -> float | None:
    """How far we are ahead of a Date header, which counts whole seconds."""
    try:
        then = email.utils.parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return time.time() - then.timestamp() - 0.5


def _session(address: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_Resolver(address)),
        timeout=aiohttp.ClientTimeout(total=CALL_S),
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    """A loop of its own; transports of TLS need a turn of it more to close."""

    async def to_the_end() -> T:
        try:
            return await work
        finally:
            await asyncio.sleep(LAST_TURN_S)

    return asyncio.run(to_the_end())


async def _join(base: str, secret: Secret, tls: Tls | None, address: str) -> None:
    async with asyncio.timeout(CALL_S), _session(address) as session, session.ws_connect(
        f"{base}/v1/member", max_msg_size=MAX_FRAME_BYTES, compress=0,
        ssl=True if tls is None else tls.now.client,
    ) as ws:  # fmt: skip
        if tls is not None:
            check_role(ws.get_extra_info("peercert"), "tracker")
        challenge = await _frame(ws, Challenge)
        node = secrets.randbits(63) or 1  # nobody's
        if tls is not None:
            node = tls.member.node(node)
        nonce = os.urandom(NONCE_BYTES)
        said = hello(secret, challenge, nonce=nonce, node=node, role="agent")
        await ws.send_bytes(msgspec.msgpack.encode(said))
        confirm(secret, challenge, said, await _frame(ws, Welcome))


async def _frame(ws: aiohttp.ClientWebSocketResponse, kind: type[Any]) -> Any:
    frame = await ws.receive()
    if frame.type is aiohttp.WSMsgType.BINARY:
        try:
            return msgspec.msgpack.decode(frame.data, type=kind)
        except msgspec.MsgspecError:
            raise RemoteProtocolError("it doesn't speak the member protocol") from None
    reason = str(frame.extra or "no reason given")
    if kind is Welcome:
        how = "compare cluster key and certificate with the tracker's"
        raise NotAllowed(f"the tracker refused us: {reason}; {how}")
    raise RemoteProtocolError(f"it closed the connection: {reason}")


async def _ask(base: str, tls: Tls | None, address: str) -> Told:
    context = True if tls is None else tls.now.client
    async with (
        _session(address) as session,
        session.get(f"{base}/v1/status", ssl=context) as answer,
    ):
        ahead = _lead(answer.headers.get("Date"))
        body = await answer.content.read(MAX_STATUS_BYTES) if answer.status == 200 else b"{}"
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        found = {}
    said = {name: found.get(name) for name in ("origin", "role", "active")}
    return Told(ahead, **{name: text for name, text in said.items() if isinstance(text, str)})


class _Resolver(AbstractResolver):
    """Resolves on this thread: the loop's executor would hold up the end of the process."""

    def __init__(self, address: str) -> None:
        """`address`: what every name means; "": what the system says."""
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        asked = self._address or host
        found = socket.getaddrinfo(asked, port, family=family, type=socket.SOCK_STREAM)
        return [
            ResolveResult(hostname=host, host=str(address[0]), port=port, family=kind, proto=proto,
                          flags=socket.AI_NUMERICHOST)
            for kind, _, proto, _, address in found
        ]  # fmt: skip

    async def close(self) -> None:
        """Nothing is kept."""
