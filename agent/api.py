"""The local HTTP API on the unix sockets: what docs/api.md says, and nothing decided here."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from p2pcache.agent.downloads import Download, Downloads
from p2pcache.agent.openapi import document
from p2pcache.agent.pushes import Pushes
from p2pcache.agent.queries import Queries
from p2pcache.agent.resolver import Resolved, Resolver
from p2pcache.core.manifest import MAX_MANIFEST_BYTES
from p2pcache.errors import Conflict, IntegrityError, NotAllowed, P2PCacheError, UsageError
from p2pcache.ids import Ref, is_digest
from p2pcache.io import web as scaffold
from p2pcache.io.store import Store

log = logging.getLogger(__name__)

PROGRESS_S = 0.25  # a terminal's bar wants about four a second
MAX_LINGER_S = 3600.0
ROLE = web.RequestKey("role", str)


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pull."""

    ref: str
    force_generation: bool = False


class PushRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/push."""

    ref: str
    digest: str
    force: bool = False


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/prune."""

    dry_run: bool = False
    all: bool = False


class VerifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/verify."""

    ref: str


class LingerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/linger."""

    digest: str
    seconds: float


class Api:
    """Handlers. One instance serves both sockets; the role of a socket decides what is allowed."""

    def __init__(
        self,
        *,
        store: Store,
        resolver: Resolver,
        downloads: Downloads,
        pushes: Pushes,
        queries: Queries,
    ) -> None:
        self._store = store
        self._resolver = resolver
        self._downloads = downloads
        self._pushes = pushes
        self._queries = queries
        self._models_dir = str(store.root / "models")
        self.stopping = asyncio.Event()

    def health_application(self) -> web.Application:
        """For probes and Prometheus on TCP: health and figures, read only."""
        app = scaffold.make_app()
        app.add_routes([
            web.get("/healthz", self.healthz), web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics),
        ])  # fmt: skip
        return app

    def application(self, role: str) -> web.Application:
        """The app of one socket: "operator" (every call) or "client" (pull and read)."""
        app = scaffold.make_app(self._gate(role))
        app.add_routes([
            web.get("/healthz", self.healthz), web.get("/readyz", self.readyz),
            web.get("/metrics", self.metrics), web.get("/openapi.json", self.openapi),
            web.post("/v1/pull", self.pull), web.get("/v1/models", self.models),
            web.get("/v1/model", self.model), web.get("/v1/pulls", self.pulls),
            web.get("/v1/status", self.status),
        ])  # fmt: skip
        if role == "operator":
            app.add_routes([
                web.post("/v1/manifests", self.manifests),
                web.put("/v1/blobs/{manifest}/{blob}", self.blob),
                web.post("/v1/push", self.push), web.delete("/v1/model", self.remove),
                web.post("/v1/prune", self.prune), web.post("/v1/verify", self.verify),
                web.get("/v1/nodes", self.nodes), web.get("/v1/locate", self.locate),
                web.post("/v1/linger", self.linger),
            ])  # fmt: skip
        else:
            app.router.add_route("*", "/v1/{rest:.*}", self.not_for_clients)
        return app

    def _gate(self, role: str) -> Any:
        @web.middleware
        async def gate(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if self.stopping.is_set() and request.method != "GET":
                raise Conflict("the agent is stopping")
            request[ROLE] = role
            return await handler(request)

        return gate

    # -- health ------------------------------------------------------------------------------------

    async def healthz(self, request: web.Request) -> web.Response:
        """The process answers."""
        return scaffold.json_response({"ok": True})

    async def readyz(self, request: web.Request) -> web.Response:
        """Reasons why not, as JSON; with `?model=REF`: whether that model is complete here."""
        if "model" in request.query:
            # Pods are served by what this asks about: a lost tracker must not take them down.
            reasons = await self._queries.model_reasons(Ref.parse(request.query["model"]))
        else:
            reasons = self._queries.reasons()
        status = 503 if reasons else 200
        body = {"ready": not reasons, "reasons": reasons, "warnings": self._queries.warnings()}
        return scaffold.json_response(body, status=status)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        body, kind = self._queries.metrics()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def openapi(self, request: web.Request) -> web.Response:
        """This API for machines."""
        return scaffold.json_response(document())

    async def not_for_clients(self, request: web.Request) -> web.Response:
        """Every other call on the client socket."""
        raise NotAllowed(
            "this socket is for pulling only; use the operators' socket for "
            f"{request.method} {request.path}"
        )

    # -- pull --------------------------------------------------------------------------------------

    async def pull(self, request: web.Request) -> web.StreamResponse:
        """NDJSON until the model is complete; closing the connection stops waiting."""
        wanted = await scaffold.read_json(request, PullRequest)
        ref = Ref.parse(wanted.ref)
        return await _stream(request, self._pull_events(ref, force=wanted.force_generation))

    async def _pull_events(self, ref: Ref, *, force: bool) -> AsyncIterator[dict[str, object]]:
        began = time.monotonic()
        resolved = await self._resolver.resolve(ref)
        await self._check_generation(ref, resolved, force=force)
        download = await self._downloads.begin(ref, resolved.digest)
        layout = download.swarm.layout
        named = {"ref": str(ref), "digest": resolved.digest}
        yield {
            "event": "resolved", **named, "bytes": layout.manifest.size_bytes,
            "files": len(layout.manifest.files), "stale": resolved.stale,
        }  # fmt: skip
        download.clients += 1
        try:
            while not download.ended.done():
                await asyncio.wait([download.ended], timeout=PROGRESS_S)
                yield {"event": "progress", **_progress(download)}
            download.ended.result()
        finally:
            download.clients -= 1
        path = await self._downloads.publish(download, ref, resolved.generation)
        sources = download.sources()
        had = max(0, layout.manifest.size_bytes - sources["bytes_origin"] - sources["bytes_peers"])
        yield {
            "event": "done", **named, "path": path, "models_dir": self._models_dir,
            "bytes": layout.manifest.size_bytes, **sources, "bytes_local": had,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    async def _check_generation(self, ref: Ref, resolved: Resolved, *, force: bool) -> None:
        if ref.digest is not None or force:
            return
        seen = await asyncio.to_thread(self._store.generation_seen, ref)
        if resolved.generation < seen:
            raise IntegrityError(
                f"tag {ref.short} went back from generation {seen} to {resolved.generation}: the origin was "
                "restored or tampered with; pull with --force-generation to accept it"
            )

    async def linger(self, request: web.Request) -> web.Response:
        """Answer when every run that we have of a model lies on another node too, or after the limit."""
        wanted = await scaffold.read_json(request, LingerRequest)
        swarm = self._downloads.swarms.get(wanted.digest)
        began = time.monotonic()
        limit = min(wanted.seconds, MAX_LINGER_S)
        # Polled: it is rare, and nothing else wants to know that have-sets elsewhere grew.
        while swarm is not None and not swarm.replicated and time.monotonic() - began < limit:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        replicated = swarm is None or swarm.replicated
        return scaffold.json_response(
            {"replicated": replicated, "seconds": round(time.monotonic() - began, 3)}
        )

    # -- push --------------------------------------------------------------------------------------

    async def manifests(self, request: web.Request) -> web.Response:
        """Begin a push: which blobs are missing?"""
        encoded = await _body(request, MAX_MANIFEST_BYTES)
        digest, missing = await self._pushes.begin(encoded)
        return scaffold.json_response(
            {
                "digest": digest,
                "missing": [{"blob": item.blob, "path": item.path} for item in missing],
            }
        )

    async def blob(self, request: web.Request) -> web.Response:
        """One blob of a push."""
        digest, blob = request.match_info["manifest"], request.match_info["blob"]
        if not (is_digest(digest) and is_digest(blob)):
            raise UsageError("not a digest: expected 64 hex digits")
        size = await self._pushes.receive(digest, blob, request.content)
        return scaffold.json_response({"bytes": size})

    async def push(self, request: web.Request) -> web.StreamResponse:
        """Upload, then move the tag."""
        wanted = await scaffold.read_json(request, PushRequest)
        ref = Ref.parse(wanted.ref)
        if ref.digest is not None:
            raise UsageError("push to a tag, not to a digest")
        return await _stream(request, self._push_events(ref, wanted.digest, force=wanted.force))

    async def _push_events(
        self, ref: Ref, digest: str, *, force: bool
    ) -> AsyncIterator[dict[str, object]]:
        began = time.monotonic()
        push = self._pushes.start(ref, digest, force=force)
        while not push.ended.done():
            await asyncio.wait([push.ended], timeout=PROGRESS_S)
            yield {
                "event": "progress",
                "bytes_done": push.bytes_done,
                "bytes_total": push.bytes_total,
            }
        result = push.ended.result()
        yield {
            "event": "done", "ref": str(ref), "digest": digest, "bytes": push.bytes_total,
            "bytes_uploaded": result.bytes_uploaded, "generation": result.generation,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    # -- the cache ---------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.Response:
        """What the cache holds."""
        return scaffold.json_response({"models": await self._queries.models()})

    async def model(self, request: web.Request) -> web.Response:
        """One model, here or at the origin."""
        return scaffold.json_response(await self._queries.model(scaffold.wanted_ref(request)))

    async def remove(self, request: web.Request) -> web.Response:
        """Remove a tag, and with its last tag the model."""
        ref = scaffold.wanted_ref(request)
        self._downloads.refuse_while_pulled(ref)
        digest = await self._queries.local_digest(ref)
        tags = await asyncio.to_thread(self._store.tags_of, digest)
        if ref.digest is not None or len(tags) <= 1:
            await self._downloads.forget(digest)
            freed = await asyncio.to_thread(self._store.remove_model, digest)
        else:
            freed = 0
            await asyncio.to_thread(self._store.remove_tag, ref)
        log.info("removed %s (%d bytes freed)", ref.short, freed)
        return scaffold.json_response({"removed": str(ref), "digest": digest, "bytes_freed": freed})

    async def prune(self, request: web.Request) -> web.Response:
        """Remove what nothing names."""
        wanted = await scaffold.read_json(request, PruneRequest)
        return scaffold.json_response(
            await self._queries.prune(dry_run=wanted.dry_run, everything=wanted.all)
        )

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """Prove every chunk again."""
        wanted = await scaffold.read_json(request, VerifyRequest)
        return await _stream(request, self._queries.verify(Ref.parse(wanted.ref)))

    # -- the cluster -------------------------------------------------------------------------------

    async def pulls(self, request: web.Request) -> web.Response:
        """What is being pulled now."""
        return scaffold.json_response({"pulls": self._queries.pulls()})

    async def nodes(self, request: web.Request) -> web.Response:
        """The members, as the tracker knows them."""
        return web.Response(
            body=await self._queries.ask_tracker("nodes"), content_type="application/json"
        )

    async def locate(self, request: web.Request) -> web.Response:
        """Which nodes have a model, as the tracker knows it."""
        ref = scaffold.wanted_ref(request)
        body = await self._queries.ask_tracker("locate", str(ref))
        return web.Response(body=body, content_type="application/json")

    async def status(self, request: web.Request) -> web.Response:
        """Agent, tracker, origin and cache in one object."""
        return scaffold.json_response(await self._queries.status())


async def _body(request: web.Request, limit: int) -> bytes:
    data = bytearray()
    async for part in request.content.iter_chunked(1 << 18):
        data += part
        if len(data) > limit:
            raise UsageError(f"the request's body is over the limit of {limit} bytes")
    return bytes(data)


async def _stream(
    request: web.Request, events: AsyncIterator[dict[str, object]]
) -> web.StreamResponse:
    """NDJSON. An error before the first event is a plain HTTP error; later it is the last event."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    with contextlib.suppress(ConnectionResetError):  # the client left: it stops waiting, no more
        try:
            async for event in events:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(msgspec.json.encode(event) + b"\n")
        except P2PCacheError as error:
            if not response.prepared:
                raise
            last = {"event": "error", "code": error.exit_code, "message": str(error)}
            await response.write(msgspec.json.encode(last) + b"\n")
        finally:
            await events.aclose()  # type: ignore[attr-defined] # an async generator: its finally must run now
        await response.write_eof()
    return response


def _progress(download: Download) -> dict[str, object]:
    return {
        "bytes_done": download.swarm.bytes_done,
        "bytes_total": download.bytes_total,
        **download.sources(),
        "peers": download.swarm.peer_count,
        "rate": round(download.rate(time.monotonic())),
    }
