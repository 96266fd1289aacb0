"""What pages of other sites may not do to our ports through the browser of somebody who is near them.

A browser lets any page send simple requests and open WebSockets anywhere, and says in `Origin`
whose page it was; our own page sends none. A site can also give its own name our address (DNS
rebinding) and then counts as ourselves: its name in `Host` tells. A port on loopback is called by
address or as localhost, so there other names are refused; on other addresses we can't know which
names are ours, and TLS is the answer (no certificate bears the site's name).
"""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web

from p2pcache.errors import NotAllowed


def no_strange_pages(*, loopback: bool) -> Any:
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
        # A browser sends Origin with each WebSocket: without it one is no page's, and the name is an agent's own.
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
