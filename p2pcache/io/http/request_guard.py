"""Requests that are refused before a handler sees them: of other sites' pages, packed, not in ASCII.

A browser lets any page send simple requests and open WebSockets anywhere, and names the page's site
in `Origin`; our own page sends none. A site can also point its own name at our address (DNS
rebinding) and then counts as our own site, but its name is in `Host`. A port on loopback is called by
address or as localhost, so other names are refused there. On other addresses we can't know which
names are ours, and TLS is the answer (no certificate bears the site's name).

A packed body unpacks to a thousand times its size, and an unpacker is one more thing that a stranger
can break. A head with bytes beyond ASCII becomes text that can't be encoded again: every answer and
every line of the log that quotes it would fail. No client of ours sends either.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from aiohttp import hdrs, web

from p2pcache.errors import NotAllowed


class Refusal(NamedTuple):
    """Why a request is refused, and the HTTP status that says so."""

    status: int
    text: str


_NOT_ASCII = Refusal(
    400, "the request's path and headers must be ASCII; write other characters as %XX"
)
_PACKED = Refusal(415, "this server takes no packed bodies; send it without Content-Encoding")


def refusal(path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
    """Why a request is refused for its head; None: it may go on.

    Args:
        path: the target as it was sent.
        headers: names and values as they were sent.
    """
    if not path.isascii():
        return _NOT_ASCII
    packed = False
    for name, value in headers:
        if not (name.isascii() and value.isascii()):
            return _NOT_ASCII
        packed = packed or (name.lower() == b"content-encoding" and not _plain(value))
    return _PACKED if packed else None


def _plain(value: bytes) -> bool:
    return all(coding.strip().lower() in (b"", b"identity") for coding in value.split(b","))


def refuse_other_sites(*, loopback: bool) -> Any:
    """A middleware that refuses what a browser sends for another site's page.

    Args:
        loopback: the port is on loopback; `Host` is checked too.
    """

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if hdrs.ORIGIN in request.headers:
            raise NotAllowed("pages of other sites may not call this port")
        # Browsers send Origin with each WebSocket. One without it comes from an agent, which may use any name.
        web_socket = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        if loopback and not web_socket and not is_local_name(request.headers.get(hdrs.HOST, "")):
            raise NotAllowed(
                "this port is on loopback: call it as localhost or by its address, not by another name"
            )
        return await handler(request)

    return check


def is_local_name(host: str) -> bool:
    """Whether a `Host` header holds what no site can have as its name: an address, or localhost.

    A name without a dot (a container's, a host's own) counts too: public DNS has none.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return "." not in name.rstrip(".") or name.lower().endswith(".localhost")
    return True
