"""What answers the calls of the agent's API. `agent.api.routes` lists them; docs/api.md describes them."""

import asyncio
import time
from collections.abc import Iterable

from aiohttp import web

from p2pcache.agent.api.access import Access
from p2pcache.agent.api.cache_calls import CacheCalls
from p2pcache.agent.api.gate import CALLER, Gate
from p2pcache.agent.api.openapi import document
from p2pcache.agent.api.pool_calls import PoolCalls
from p2pcache.agent.api.possession import Possession
from p2pcache.agent.api.queries import Queries
from p2pcache.agent.api.rights import ListenerKind, seen_pulls
from p2pcache.agent.api.routes import (
    ROUTES,
    CancelRequest,
    DemandRequest,
    ImportRequest,
    LingerRequest,
    LoadRequest,
    PressureRequest,
    PullRequest,
    PushRequest,
    Route,
    WarmRequest,
)
from p2pcache.agent.api.streams import stream
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.imports.imports import Imports, Wish
from p2pcache.agent.jobs.cancelling import cancel
from p2pcache.agent.jobs.claims import Claims
from p2pcache.agent.jobs.events import audited
from p2pcache.agent.jobs.housekeeping import Housekeeping
from p2pcache.agent.jobs.loads import Loads
from p2pcache.agent.jobs.pulls import Pulls
from p2pcache.agent.jobs.pushes import Pushes
from p2pcache.agent.jobs.room import RoomMaker
from p2pcache.agent.jobs.warms import Warms
from p2pcache.agent.journal import Journal
from p2pcache.agent.node.explain import Explainer
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.core.format.manifest import MAX_MANIFEST_BYTES, digest_of
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.ids import Ref, is_digest, parse_wanted, spelled
from p2pcache.io import pools
from p2pcache.io.http import server
from p2pcache.io.http.audit_log import Entry
from p2pcache.io.http.bodies import Body, BodyMemory, read_body
from p2pcache.io.models.store import Store
from p2pcache.io.origins.public_words import openly

MAX_LINGER_S = 3600.0  # a longer wait of POST /v1/linger is cut to this
HISTORY_ROWS = 100  # unless ?limit= says otherwise


class Api:
    """The handlers. One instance serves all listeners; the gate of each listener decides what is allowed."""

    def __init__(
        self,
        *,
        store: Store,
        resolver: Resolver,
        downloads: DownloadManager,
        pulls: Pulls,
        warms: Warms,
        loads: Loads,
        pushes: Pushes,
        imports: Imports,
        housekeeping: Housekeeping,
        room: RoomMaker,
        claims: Claims,
        queries: Queries,
        journal: Journal,
        explainer: Explainer,
        governor: GovernorLoop,
        gate: Gate,
    ) -> None:
        self._access = access = Access(store, resolver)
        self._cache = CacheCalls(access, queries, housekeeping, room, claims)
        self._pool = PoolCalls(queries)
        self._claims = claims
        self._gate = gate
        self._possession = Possession(store)
        self._offered = BodyMemory(2 * MAX_MANIFEST_BYTES, 4 * MAX_MANIFEST_BYTES)
        self._downloads = downloads
        self._pulls = pulls
        self._warms = warms
        self._loads = loads
        self._pushes = pushes
        self._imports = imports
        self._queries = queries
        self._journal = journal
        self._explainer = explainer
        self._governor = governor

    def health_application(self) -> web.Application:
        """Health and figures on TCP, for probes and Prometheus."""
        return self._application("health", [route for route in ROUTES if route.probe])

    def application(
        self, listener: ListenerKind, *, group: int | None = None, trusted: bool = False
    ) -> web.Application:
        """Every route, behind the gate of one listener; the arguments are `Gate.middleware`'s."""
        return self._application(listener, ROUTES, group=group, trusted=trusted)

    def _application(
        self,
        listener: ListenerKind,
        routes: Iterable[Route],
        *,
        group: int | None = None,
        trusted: bool = False,
    ) -> web.Application:
        app = server.make_app(self._gate.middleware(listener, group=group, trusted=trusted))
        for route in routes:
            handler = next(
                getattr(part, route.handler)
                for part in (self, self._cache, self._pool) if hasattr(part, route.handler)
            )  # fmt: skip
            app.add_routes([
                web.get(route.path, handler) if route.method == "GET"  # answers HEAD, too
                else web.route(route.method, route.path, handler)
            ])  # fmt: skip
        return app

    # -- health ------------------------------------------------------------------------------------

    async def get_healthz(self, request: web.Request) -> web.Response:
        """The process answers."""
        return server.json_response({"ok": True})

    async def get_readyz(self, request: web.Request) -> web.Response:
        """Whether this agent is ready, with reasons; with `?model=REF`: whether that model is complete here."""
        if "model" in request.query:
            ref = Ref.parse(request.query["model"])
            caller = request[CALLER]
            if caller.listener != "health":  # that port is for probes, which hold no token
                caller.need(Scope.PULL, ref.namespace, "GET /readyz?model=")
            # A pod that serves this model needs the cache only: a lost tracker must not take it down.
            reasons = await self._queries.model_reasons(ref)
        else:
            reasons = self._queries.reasons(openly)
        status = 503 if reasons else 200
        # Everybody may probe, so without storage's own words.
        warnings = self._queries.warnings(openly, request[CALLER].sees)
        body = {"ready": not reasons, "reasons": reasons, "warnings": warnings}
        return server.json_response(body, status=status)

    async def get_metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        body, kind = self._queries.metrics()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def get_openapi(self, request: web.Request) -> web.Response:
        """The OpenAPI document of this API."""
        return server.json_response(document())

    # -- pull --------------------------------------------------------------------------------------

    async def post_pull(self, request: web.Request) -> web.StreamResponse:
        """NDJSON until the model is complete; closing the connection stops waiting."""
        wanted = await server.read_json(request, PullRequest)
        ref, url = parse_wanted(wanted.ref)
        caller = await self._access.allowed_caller(request, ref)
        events = self._pulls.events(
            ref, url=url, force=wanted.force_generation, include=wanted.include, exclude=wanted.exclude,
            background=wanted.background,
        )  # fmt: skip
        if wanted.hold:
            events = self._claims.held(
                events, ref, wanted.hold, wanted.hold_s, wanted.hold_pid, wanted.hold_started
            )
        return await stream(request, audited(Entry(caller.who, "pull", model=str(ref)), events))

    async def post_warm(self, request: web.Request) -> web.Response:
        """Begin to fetch a model without a client that waits, on this node or on `replicas` nodes of the cluster."""
        wanted = await server.read_json(request, WarmRequest)
        ref = Ref.parse(wanted.ref)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        with Entry(caller.who, "warm", model=str(ref), replicas=wanted.replicas or None) as entry:
            if wanted.replicas:
                body = await self._warms.spread(ref, wanted.replicas)
                return server.encoded_response(body)
            warmed = await self._warms.start(ref)
            entry.fields |= {"digest": warmed.digest, "bytes": warmed.size_bytes}
        return server.json_response({
            "ref": str(ref), "digest": warmed.digest, "bytes": warmed.size_bytes, "state": warmed.state,
        })  # fmt: skip

    async def post_cancel(self, request: web.Request) -> web.Response:
        """End a pull or a warm for all its clients."""
        ref = Ref.parse((await server.read_json(request, CancelRequest)).ref)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        with Entry(caller.who, "cancel", model=str(ref)):
            told = await cancel(ref, self._downloads, self._warms)
        return server.json_response({"ref": str(ref), **told._asdict()})

    async def post_load(self, request: web.Request) -> web.StreamResponse:
        """NDJSON for a loader while the model arrives; closing the connection detaches it."""
        wanted = await server.read_json(request, LoadRequest)
        ref = Ref.parse(wanted.ref)
        caller = await self._access.allowed_caller(request, ref)
        events = self._loads.events(ref, needed=wanted.needed, client=caller.client)
        return await stream(request, audited(Entry(caller.who, "load", model=str(ref)), events))

    async def post_demand(self, request: web.Request) -> web.Response:
        """Note the runs that an attached loader needs, or waits for; answer how many are missing."""
        wanted = await server.read_json(request, DemandRequest)
        missing = self._loads.on_demand(
            wanted.load, request[CALLER].client, wanted.runs, urgent=wanted.urgent
        )
        return server.json_response({"missing": missing})

    async def post_linger(self, request: web.Request) -> web.Response:
        """Answer when every run that this node has of a model lies on another node too, or after the limit."""
        wanted = await server.read_json(request, LingerRequest)
        swarm = self._downloads.swarms.get(wanted.digest)
        began = time.monotonic()
        limit = min(wanted.seconds, MAX_LINGER_S)
        # Polled: it is rare, and nothing else needs an event for growing run sets of neighbours.
        while swarm is not None and not swarm.replicated and time.monotonic() - began < limit:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        replicated = swarm is None or swarm.replicated
        return server.json_response(
            {"replicated": replicated, "seconds": round(time.monotonic() - began, 3)}
        )

    async def post_pressure(self, request: web.Request) -> web.Response:
        """Take the engine's level of strain; it counts for some seconds, so clients repeat it."""
        self._governor.on_engine_level((await server.read_json(request, PressureRequest)).level)
        return server.json_response({"governor": self._governor.state()})

    # -- push --------------------------------------------------------------------------------------

    async def post_manifests(self, request: web.Request) -> web.Response:
        """Begin a push; answer which blobs are missing."""
        caller = request[CALLER]
        with self._offered.share_of(caller.client) as share:
            encoded = bytes(await read_body(request, limit_bytes=MAX_MANIFEST_BYTES, share=share))
            refusal, began = Entry(caller.who, "push"), time.monotonic()
            try:
                digest, missing = await self._pushes.take_in_turn(
                    caller.client,
                    encoded,
                    lambda layout: self._possession.unproved(caller, layout),
                )
            except P2PCacheError as error:
                seconds = time.monotonic() - began
                # This call doesn't say the name that the push is to have.
                digest = await pools.WORK.run(digest_of, encoded)
                self._journal.record("push", digest=digest, seconds=seconds, error=error)
                refusal.fields["digest"] = digest
                with refusal:
                    raise
        return server.json_response(
            {
                "digest": digest,
                "missing": [{"blob": item.blob, "path": item.path} for item in missing],
            }
        )

    async def put_blob(self, request: web.Request) -> web.Response:
        """One blob of a push."""
        digest, blob = request.match_info["manifest"], request.match_info["blob"]
        if not (is_digest(digest) and is_digest(blob)):
            raise UsageError("not a digest: expected 64 hex digits")
        size = await self._pushes.receive(digest, blob, Body(request.content))
        self._possession.on_blob_proved(request[CALLER], digest, blob)
        return server.json_response({"bytes": size})

    async def post_push(self, request: web.Request) -> web.StreamResponse:
        """Upload, then move the tag."""
        wanted = await server.read_json(request, PushRequest)
        ref = Ref.parse(wanted.ref)
        if ref.digest is not None:
            raise UsageError("push to a tag, not to a digest")
        caller = await self._access.allowed_caller(request, ref, Scope.PUSH)
        swarm = self._downloads.swarms.get(wanted.digest)
        if swarm is not None:
            await pools.WORK.run(self._possession.check, caller, swarm.layout)
        events = self._pushes.events(
            ref,
            wanted.digest,
            spelling=spelled(wanted.ref),
            force=wanted.force,
            repair=wanted.repair,
        )
        return await stream(request, audited(Entry(caller.who, "push", model=str(ref)), events))

    async def post_import(self, request: web.Request) -> web.StreamResponse:
        """Import a model from a source, then move the tag."""
        wanted = await server.read_json(request, ImportRequest)
        ref = Ref.parse(wanted.ref)
        if ref.digest is not None:
            raise UsageError("import to a tag, not to a digest")
        caller = await self._access.allowed_caller(request, ref, Scope.PUSH)
        wish = Wish(
            wanted.url, ref, spelled(wanted.ref), tuple(wanted.include), tuple(wanted.exclude),
            copy=wanted.copy, force=wanted.force,
        )  # fmt: skip
        events = self._imports.import_events(wish)
        return await stream(request, audited(Entry(caller.who, "import", model=str(ref)), events))

    # -- the cluster -------------------------------------------------------------------------------

    async def get_pulls(self, request: web.Request) -> web.Response:
        """The pulls that run now."""
        return server.json_response({"pulls": seen_pulls(request[CALLER], self._queries.pulls())})

    async def get_history(self, request: web.Request) -> web.Response:
        """Pulls, pushes and removals that ended on this node."""
        rows = [row.as_json() for row in await self._journal.rows(_rows_asked(request))]
        return server.json_response({"history": seen_pulls(request[CALLER], rows)})

    async def get_explain(self, request: web.Request) -> web.Response:
        """What a pull waits for, or where its time went."""
        ref = server.wanted_ref(request)
        await self._access.allowed_caller(request, ref)
        return server.json_response(await self._explainer.explain(ref))

    async def get_nodes(self, request: web.Request) -> web.Response:
        """The members, as the tracker knows them."""
        return server.encoded_response(await self._queries.ask_tracker("nodes"))

    async def get_cluster_pulls(self, request: web.Request) -> web.Response:
        """The pulls that run on all nodes."""
        return server.encoded_response(await self._queries.ask_tracker("pulls"))

    async def get_cluster_history(self, request: web.Request) -> web.Response:
        """What ended on all nodes."""
        body = await self._queries.ask_tracker("history", str(_rows_asked(request)))
        return server.encoded_response(body)

    async def get_locate(self, request: web.Request) -> web.Response:
        """Which nodes have a model, as the tracker knows it."""
        ref = server.wanted_ref(request)
        await self._access.allowed_caller(request, ref)
        body = await self._queries.ask_tracker("locate", str(ref))
        return server.encoded_response(body)

    async def get_status(self, request: web.Request) -> web.Response:
        """Agent, tracker, origin and cache in one object."""
        caller = request[CALLER]
        wording = openly if caller.listener == "client" else str
        status = await self._queries.status(wording, caller.sees)
        status["pulls"] = seen_pulls(caller, self._queries.pulls())
        if caller.listener == "operator":
            status["settings"] = self._queries.settings()
        return server.json_response(status)


def _rows_asked(request: web.Request) -> int:
    """The number of rows of `?limit=`.

    Raises:
        UsageError: it is no number.
    """
    text = request.query.get("limit", str(HISTORY_ROWS))
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 7):
        raise UsageError("limit is a number of rows, for example ?limit=20")
    return int(text)
