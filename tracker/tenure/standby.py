"""A tracker while another one is active: it says so, and where that one is.

Agents prove themselves first, as to an active tracker, and then wait here, so that they are the first to hear of a
takeover. People and programs are sent on to the active tracker's HTTP API.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import p2pcache
from p2pcache.core.coordinator.settings import TENURE_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable
from p2pcache.io.clock import LOOK_S, AwakeClock
from p2pcache.io.http import server
from p2pcache.io.http.connection_limits import abort, connection_limit, count_as_idle, rated, trust
from p2pcache.io.http.exchange import TRACKER
from p2pcache.io.http.server import json_response, make_app
from p2pcache.io.security.cluster_key import WATCH_S as KEY_WATCH_S
from p2pcache.io.security.cluster_key import KeyWatch, check_exposure, read_cluster_key
from p2pcache.io.security.tls import WATCH_S, check_role, open_tls
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.members.connection import Connection, greet
from p2pcache.tracker.members.handshake_places import HandshakePlaces
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.tenure.candidacy import Candidacy

_log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0  # docs/protocol.md
GOODBYE_S = 0.3  # for an agent to answer our goodbye: a takeover waits for it
SILENT_S = 2.0  # in which the active tracker answers before people are sent there: it does so in milliseconds
EACH, EVERYONE = Rate(20, 100), Rate(100, 400)  # requests of one address, and of all
FREE = frozenset({"/v1/member"})  # a storm of agents behind one address is welcome there
REQUEST_BYTES = 64 << 10  # every call is a GET, and a handshake has 1 KiB
MOST_WAITING = 20_000  # connections, as of an active tracker
ELSEWHERE = ("/", "/v1/nodes", "/v1/swarms", "/v1/swarm", "/v1/locate")  # only the active one knows


class StandbyApp:
    """One standby: `async with StandbyApp(...).running(sock):` serves until the block ends."""

    def __init__(self, settings: TrackerSettings, candidacy: Candidacy) -> None:
        """Build the parts; nothing is served yet.

        Raises:
            UsageError, NotAllowed: a setting can't work (address, key).
        """
        self._secret = read_cluster_key(settings.cluster_key_file)
        self._key = KeyWatch(settings.cluster_key_file, self._secret)
        host, _ = server.parse_listen(settings.listen)
        self.tls = open_tls(settings, "tracker")
        check_exposure(host, self._secret, insecure=settings.insecure, tls=self.tls is not None)
        self._settings = settings
        self._candidacy = candidacy
        self._node = secrets.randbits(63)
        self._tasks = Tasks()
        self._clock = AwakeClock()
        self._places = HandshakePlaces()
        self._guests: dict[Connection, web.Request] = {}
        self._closing = False
        self._empty = asyncio.Event()  # set while there are no guests
        self._empty.set()
        self._metrics = StandbyMetrics(candidacy, lambda: len(self._guests))

    @contextlib.asynccontextmanager
    async def running(self, sock: socket.socket) -> AsyncIterator[None]:
        """Serve on a listening socket, which is closed at the end; agents that wait here are sent away then."""
        app = make_app(rated(RateLimit(EACH, EVERYONE), free=FREE), role=TRACKER)
        app.add_routes([
            web.get("/v1/member", self.serve), web.get("/healthz", self.get_healthz),
            web.get("/readyz", self.get_readyz), web.get("/metrics", self.get_metrics),
            web.get("/v1/status", self.get_status), *(web.get(path, self.send_on) for path in ELSEWHERE),
        ])  # fmt: skip
        tls = None if self.tls is None else self.tls.visitors
        room = connection_limit(MOST_WAITING, share=0.9)
        async with (
            self._tasks,
            server.serving(app, [sock], tls=tls, connections=room, request_bytes=REQUEST_BYTES),
        ):
            self._tasks.every(LOOK_S, self._clock.keep_awake, name="clock")
            self._tasks.every(KEY_WATCH_S, self._key.watch, name="key")
            if self.tls is not None:
                self._tasks.every(WATCH_S, self.tls.watch, name="certificate")
            self._tasks.spawn_contained(self._tell_guests(), name="standby")
            _log.info("standby, by %s", self._candidacy.where)
            yield
            self._closing = True
            await self._send_away()

    def read_keys(self) -> None:
        """SIGHUP: read key and certificate again."""
        self._key.reload()
        if self.tls is not None:
            self.tls.reload()

    def headline(self) -> str:
        """The standby's state in one line, for `systemctl status`."""
        reasons = self._candidacy.reasons()
        return f"not ready: {'; '.join(reasons)}" if reasons else f"standby: {self._where()}"

    # -- agents ------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/member`: an agent proves itself, hears who is active, and may wait."""
        if self._closing:
            raise Unreachable("this tracker is becoming the active one")
        bearer = None
        if self.tls is not None:
            bearer = check_role(request.get_extra_info("peercert"), "agent")
        ws = web.WebSocketResponse(
            max_msg_size=m.MAX_MESSAGE_BYTES, compress=False, timeout=GOODBYE_S
        )
        count_as_idle(request)
        async with self._places.hold_place(str(request.remote), partial(abort, request)):
            await ws.prepare(request)
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    node = await greet(ws, self._secret, self._node, bearer)
            except (TimeoutError, ConnectionError, P2PCacheError) as error:
                denied = isinstance(error, NotAllowed)
                code = m.NOT_ALLOWED if denied else aiohttp.WSCloseCode.POLICY_VIOLATION
                text = str(error) or "the handshake took too long"
                await ws.close(code=code, message=text.encode()[:120])
                return ws
            trust(request)
        await self._keep(Connection(node, ws, request, self._clock), request)
        return ws

    async def _keep(self, guest: Connection, request: web.Request) -> None:
        """Let an agent wait for news. Its messages are read and dropped."""
        if self._closing:
            return
        self._guests[guest] = request
        self._empty.clear()
        guest.queue_message(self._news())
        self._tasks.spawn_contained(guest.write(), name="standby-guest")
        try:
            await guest.read_messages(lambda _: True)
        except P2PCacheError as error:
            guest.close(aiohttp.WSCloseCode.POLICY_VIOLATION, str(error))
        finally:
            guest.close(aiohttp.WSCloseCode.OK, "")
            await guest.wait_ended()
            del self._guests[guest]
            if not self._guests:
                self._empty.set()

    async def _tell_guests(self) -> None:
        while True:
            before = self._candidacy.active_url
            await self._candidacy.wait_for(lambda: self._candidacy.active_url != before)  # noqa: B023
            _log.info("%s", self._where())
            news = self._news()
            for guest in self._guests:
                guest.queue_message(news)

    async def _send_away(self) -> None:
        for guest in self._guests:
            guest.close(aiohttp.WSCloseCode.GOING_AWAY, "this tracker is becoming the active one")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._empty.wait()
        for request in list(self._guests.values()):
            abort(request)

    def _news(self) -> bytes:
        return m.encode(m.Standby(self._candidacy.active_url))

    # -- people and programs -----------------------------------------------------------------------

    async def get_healthz(self, _: web.Request) -> web.Response:
        """The loop turns."""
        return json_response({"ok": True})

    async def get_readyz(self, _: web.Request) -> web.Response:
        """Whether it could take over, and why not."""
        reasons = self._candidacy.reasons()
        body = {"ready": not reasons, "role": "standby", "active": self._candidacy.active_url,
                "reasons": reasons, "warnings": []}  # fmt: skip
        return json_response(body, status=503 if reasons else 200)

    async def get_status(self, _: web.Request) -> web.Response:
        """The standby at a glance."""
        reasons = self._candidacy.reasons()
        return json_response({
            "version": p2pcache.__version__, "role": "standby", "active": self._candidacy.active_url,
            "generation": self._candidacy.generation, "ready": not reasons, "reasons": reasons,
            "origin": self._settings.origin, "waiting": len(self._guests),
        })  # fmt: skip

    async def get_metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def send_on(self, request: web.Request) -> web.Response:
        """A question for the active tracker: the answer says where that is.

        Raises:
            Unreachable: nobody knows, or it is silent: people sent there would wait for long.
        """
        active = self._candidacy.active_url
        if not active.startswith(("http://", "https://")):
            raise Unreachable("this tracker is a standby, and no other one is active at the moment")
        if await self._is_silent(active):
            raise Unreachable(
                f"the active tracker {active} didn't answer in {SILENT_S:g} s; if it stays silent, this one takes "
                f"over within {TENURE_S:g} s: try again then"
            )
        body = {"code": Unreachable.exit_code, "active": active,
                "message": f"this tracker is a standby; ask {active}"}  # fmt: skip
        answer = json_response(body, status=307)
        answer.headers["Location"] = f"{active}{request.raw_path}"
        return answer

    async def _is_silent(self, url: str) -> bool:
        """Whether a tracker takes our connection and says nothing; one that we can't connect to isn't silent."""
        context = True if self.tls is None else self.tls.now.client
        limits = aiohttp.ClientTimeout(total=SILENT_S, sock_connect=SILENT_S / 2)
        try:
            async with (
                aiohttp.ClientSession(timeout=limits) as session,
                session.get(f"{url}/healthz", ssl=context),
            ):
                return False
        except aiohttp.ConnectionTimeoutError:
            return False
        except TimeoutError:
            return True
        except (aiohttp.ClientError, OSError, ValueError):
            return False

    def _where(self) -> str:
        active = self._candidacy.active_url
        return f"the active tracker is {active}" if active else "no tracker is active"


class StandbyMetrics(Collector):
    """The standby's few series, by the names of an active tracker's."""

    def __init__(self, candidacy: Candidacy, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._candidacy = candidacy
        self._waiting = waiting
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def describe(self) -> list[Metric]:
        """No metric in advance: registering must not need a running tracker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        yield from tenure_metrics(self._candidacy)
        for name, text, value in (
            ("ready", "1 when it could take over.", int(not self._candidacy.reasons())),
            ("connections", "Agents that wait for the next active tracker.", self._waiting()),
        ):
            yield GaugeMetricFamily(f"p2pcache_tracker_{name}", text, value=value)
        build = InfoMetricFamily("p2pcache_tracker_build", "The running release.")
        build.add_metric([], {"version": p2pcache.__version__})
        yield build


def tenure_metrics(candidacy: Candidacy | None) -> Iterator[Metric]:
    """Who is active, as one tracker sees it. None: it is the only one."""
    active = candidacy is None or candidacy.active
    yield GaugeMetricFamily(
        "p2pcache_tracker_active", "1 on the active tracker.", value=int(active)
    )
    yield GaugeMetricFamily(
        "p2pcache_tracker_generation", "Of the latest tenure; grows when the tracker moves. 0: this is the only one.",
        value=0 if candidacy is None else candidacy.generation,
    )  # fmt: skip
