"""The page for people at `GET /`: four static files, no asset from anywhere else."""

from collections.abc import Awaitable, Callable
from importlib import resources

from aiohttp import web

# The page runs its own script and style and talks to this tracker; nothing else, whatever a member's
# name contains.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a new release's script must not meet the old one's page
}
_FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


def routes() -> list[web.RouteDef]:
    """The page's routes; its files are read once, at start."""
    return [web.get(path, _handler(name, kind)) for path, (name, kind) in _FILES.items()]


def _handler(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = resources.files("p2pcache.tracker").joinpath("web", name).read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    return serve
