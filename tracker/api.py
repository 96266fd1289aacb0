"""The tracker's HTTP API: the members' connection, read-only views, and the page for people at `GET /`.

Nothing here changes state without the members' handshake.
"""

from collections.abc import Awaitable, Callable
from importlib import resources

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import NotFound, P2PCacheError, UsageError
from p2pcache.ids import parse_node
from p2pcache.io.http.connection_limits import admit, rated
from p2pcache.io.http.exchange import TRACKER
from p2pcache.io.http.server import encoded_response, json_response, make_app, wanted_ref
from p2pcache.io.origins.base import NoContainer
from p2pcache.io.origins.public_words import openly
from p2pcache.tracker.answers import PACKED_BYTES, Answers, Made
from p2pcache.tracker.members.hub import MemberHub
from p2pcache.tracker.metrics import TrackerMetrics
from p2pcache.tracker.views import Views

EACH = Rate(100, 400)  # views for one address: a page polls once a second, a scheduler asks often
EVERYONE = Rate(500, 2000)  # views for all addresses: half a core at most
# A ref that wasn't asked for lately costs a read of the storage, and members must not wait behind strangers.
LOCATE_EACH = Rate(20, 100)
LOCATE_EVERYONE = Rate(50, 200)
MOST_DIGITS = 16  # of the number of a row
UNLIMITED = frozenset({"/v1/member"})  # a storm of agents behind one address is welcome there

# The page runs its own script and style, and talks to this tracker only, whatever a member's name contains.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a new release's script must not meet the old one's page
}
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    **{
        f"/page/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "dom", "words", "rates", "models", "nodes", "panel", "last_hour")
    },
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Api:
    """Handlers of the tracker's calls."""

    def __init__(
        self, members: MemberHub, views: Views, answers: Answers, metrics: TrackerMetrics
    ) -> None:
        self._members = members
        self._views = views
        self._answers = answers
        self._metrics = metrics
        self._locates = RateLimit(LOCATE_EACH, LOCATE_EVERYONE)

    def application(self) -> web.Application:
        """The routes, with error mapping and limits around them."""
        app = make_app(rated(RateLimit(EACH, EVERYONE), free=UNLIMITED), role=TRACKER)
        app.add_routes([
            web.get("/v1/member", self._members.serve),
            web.get("/healthz", self.get_healthz), web.get("/readyz", self.get_readyz),
            web.get("/metrics", self.get_metrics), web.get("/v1/nodes", self.get_nodes),
            web.get("/v1/swarms", self.get_swarms), web.get("/v1/status", self.get_status),
            web.get("/v1/locate", self.get_locate), web.get("/v1/swarm", self.get_swarm),
            web.get("/v1/node", self.get_node), web.get("/v1/last-hour", self.get_last_hour),
            *_page_routes(),
        ])  # fmt: skip
        return app

    async def get_healthz(self, _: web.Request) -> web.Response:
        """The loop turns."""
        return json_response({"ok": True})

    async def get_readyz(self, _: web.Request) -> web.Response:
        """Whether refs can be resolved, and why not."""
        reasons = self._views.reasons()
        body = {"ready": not reasons, "role": "active", "reasons": reasons,
                "warnings": self._views.warnings()}  # fmt: skip
        return json_response(body, status=503 if reasons else 200)

    async def get_metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        made = await self._answers.kept("metrics", self._scrape)
        return web.Response(body=made.body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def get_nodes(self, request: web.Request) -> web.Response:
        """Every member."""
        return await _packed(request, await self._answers.nodes())

    async def get_node(self, request: web.Request) -> web.Response:
        """One member with its models."""
        node = parse_node(request.query.get("id", ""))
        return await _packed(request, await self._answers.node(node))

    async def get_swarms(self, request: web.Request) -> web.Response:
        """Every swarm."""
        return await _packed(request, await self._answers.swarms())

    async def get_swarm(self, request: web.Request) -> web.Response:
        """One swarm with its members."""
        made = await self._answers.swarm(request.query.get("digest", ""))
        return await _packed(request, made)

    async def get_last_hour(self, request: web.Request) -> web.Response:
        """What happened within the last hour."""
        events, pulls = _number(request, "events_after"), _number(request, "pulls_after")
        return await _packed(request, await self._answers.last_hour(events, pulls))

    async def get_locate(self, request: web.Request) -> web.Response:
        """Which nodes have a model: for schedulers."""
        await admit(self._locates, f"ip={request.remote}")
        try:
            return await _packed(request, await self._answers.locate(wanted_ref(request)))
        except NoContainer as error:
            raise NotFound(openly(error)) from None
        except (NotFound, UsageError):  # our own text, without anything from storage
            raise
        except P2PCacheError as error:
            raise type(error)(openly(error)) from None

    async def get_status(self, request: web.Request) -> web.Response:
        """The tracker at a glance."""
        return await _packed(request, await self._answers.status())

    async def _scrape(self) -> bytes:
        return generate_latest(self._metrics.registry)


async def _packed(request: web.Request, made: Made) -> web.Response:
    """An answer, packed for who takes that, as browsers do."""
    if len(made.body) < PACKED_BYTES or "gzip" not in request.headers.get("Accept-Encoding", ""):
        answer = encoded_response(made.body)
    else:
        answer = encoded_response(await made.packed())
        answer.headers["Content-Encoding"] = "gzip"
    answer.headers["Vary"] = "Accept-Encoding"
    return answer


def _number(request: web.Request, name: str) -> int:
    """A parameter of a request; 0 without it.

    Raises:
        UsageError: it is no number.
    """
    text = request.query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < MOST_DIGITS):
        raise UsageError(f"{name} is a number")
    return int(text)


def _page_routes() -> list[web.RouteDef]:
    """The page for people at `GET /`: four static files, read once, at start."""
    return [web.get(path, _page_file(name, kind)) for path, (name, kind) in _PAGE_FILES.items()]


def _page_file(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = resources.files("p2pcache.tracker").joinpath("web", name).read_bytes()

    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_PAGE_HEADERS)

    return serve
