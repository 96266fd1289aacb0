"""What answers the calls about the models of this cache: list, remove, prune, evict, verify."""

from aiohttp import web

from p2pcache.agent.api.access import Access
from p2pcache.agent.api.gate import CALLER
from p2pcache.agent.api.queries import Queries
from p2pcache.agent.api.rights import seen_model
from p2pcache.agent.api.routes import (
    EvictRequest,
    PinRequest,
    PruneRequest,
    ReleaseRequest,
    SignatureRequest,
    VerifyRequest,
)
from p2pcache.agent.api.streams import stream
from p2pcache.agent.jobs.claims import Claims
from p2pcache.agent.jobs.events import audited
from p2pcache.agent.jobs.housekeeping import Housekeeping
from p2pcache.agent.jobs.room import RoomMaker
from p2pcache.core.protocol.tokens import EVERY, Scope
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, is_digest
from p2pcache.io.http import server
from p2pcache.io.http.audit_log import Entry


class CacheCalls:
    """Handlers of `agent.api.routes`, as those of `handlers.Api`."""

    def __init__(
        self,
        access: Access,
        queries: Queries,
        housekeeping: Housekeeping,
        room: RoomMaker,
        claims: Claims,
    ) -> None:
        self._claims = claims
        self._access = access
        self._queries = queries
        self._housekeeping = housekeeping
        self._room = room

    async def get_models(self, request: web.Request) -> web.Response:
        """The models of the cache."""
        caller = request[CALLER]
        rows = [seen_model(caller, row) for row in await self._queries.models()]
        return server.json_response({"models": [row for row in rows if row]})

    async def get_model(self, request: web.Request) -> web.Response:
        """One model, here or at the origin."""
        ref = server.wanted_ref(request)
        caller = await self._access.allowed_caller(request, ref)
        row = await self._queries.model(ref)
        return server.json_response(seen_model(caller, row))

    async def get_signatures(self, request: web.Request) -> web.Response:
        """The stored signatures of one model."""
        ref = server.wanted_ref(request)
        await self._access.allowed_caller(request, ref)
        return server.json_response(await self._queries.signatures(ref))

    async def post_signature(self, request: web.Request) -> web.Response:
        """Store one."""
        wanted = await server.read_json(request, SignatureRequest)
        ref = Ref.parse(wanted.ref)
        if not is_digest(wanted.digest):
            raise UsageError("not a digest: expected 64 hex digits")
        caller = await self._access.allowed_caller(request, ref, Scope.PUSH)
        with Entry(caller.who, "sign", model=str(ref)) as entry:
            entry.fields["digest"] = wanted.digest
            await self._queries.store_signature(ref, wanted.digest, wanted.signature)
        return server.json_response({"digest": wanted.digest})

    async def delete_model(self, request: web.Request) -> web.Response:
        """Remove a tag, and with its last tag the model."""
        ref = server.wanted_ref(request)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        with Entry(caller.who, "rm", model=str(ref)) as entry:
            removed = await self._housekeeping.remove_ref(ref)
            entry.fields |= removed._asdict()
        return server.json_response({"removed": str(ref), **removed._asdict()})

    async def post_prune(self, request: web.Request) -> web.Response:
        """Remove what nothing names."""
        wanted = await server.read_json(request, PruneRequest)
        with Entry(request[CALLER].who, "prune", dry_run=wanted.dry_run, all=wanted.all) as entry:
            result = await self._housekeeping.prune_cache(
                dry_run=wanted.dry_run, everything=wanted.all
            )
            entry.fields |= {"bytes_freed": result.bytes_freed}
        return server.json_response({**result._asdict(), "dry_run": wanted.dry_run})

    async def post_verify(self, request: web.Request) -> web.StreamResponse:
        """Prove every chunk again."""
        wanted = await server.read_json(request, VerifyRequest)
        ref = Ref.parse(wanted.ref)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        entry = Entry(caller.who, "verify", model=str(ref))
        return await stream(request, audited(entry, self._housekeeping.verify_model(ref)))

    async def post_evict(self, request: web.Request) -> web.Response:
        """Evict one model, or the least valuable ones until the cache is small enough."""
        wanted = await server.read_json(request, EvictRequest)
        who = request[CALLER].who
        if not wanted.ref:
            request[CALLER].need(Scope.ADMIN, EVERY, "POST /v1/evict without a ref")
            with Entry(who, "evict", dry_run=wanted.dry_run, to_bytes=wanted.to_bytes) as entry:
                body = await self._room.evict_to(wanted.to_bytes, dry_run=wanted.dry_run)
                entry.fields |= {"bytes_freed": body["bytes_freed"]}
            return server.json_response(body)
        if wanted.to_bytes is not None:
            raise UsageError("evict one model (ref), or down to a size (to_bytes)")
        ref = Ref.parse(wanted.ref)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        await self._access.refuse_others(caller, ref, "POST /v1/evict")
        with Entry(who, "evict", model=str(ref), dry_run=wanted.dry_run) as entry:
            body = await self._room.evict_ref(ref, dry_run=wanted.dry_run)
            entry.fields |= {"bytes_freed": body["bytes_freed"]}
        return server.json_response(body)

    async def get_pins(self, request: web.Request) -> web.Response:
        """The pins and holds that last."""
        return server.json_response({"pins": await self._claims.rows(request[CALLER].sees)})

    async def post_pins(self, request: web.Request) -> web.Response:
        """Pin a model."""
        wanted = await server.read_json(request, PinRequest)
        ref = Ref.parse(wanted.ref)
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        with Entry(caller.who, "pin", model=str(ref), name=wanted.name):
            claim = await self._claims.pin(ref, wanted.name, wanted.for_s)
        return server.json_response(self._claims.shown(claim))

    async def delete_pins(self, request: web.Request) -> web.Response:
        """End a model's pins."""
        ref, name = server.wanted_ref(request), request.query.get("name", "")
        caller = await self._access.allowed_caller(request, ref, Scope.ADMIN)
        with Entry(caller.who, "unpin", model=str(ref), name=name):
            ended = await self._claims.unpin(ref, name)
        return server.json_response({"unpinned": [self._claims.shown(claim) for claim in ended]})

    async def post_release(self, request: web.Request) -> web.Response:
        """End the holds of a name, in the caller's namespaces."""
        name = (await server.read_json(request, ReleaseRequest)).name
        caller = request[CALLER]
        with Entry(caller.who, "release", name=name):
            ended = await self._claims.end_holds(name, caller.sees)
        return server.json_response({"released": [self._claims.shown(claim) for claim in ended]})

    async def get_room(self, request: web.Request) -> web.Response:
        """How full this cache is."""
        return server.json_response(await self._room.state())

    async def get_cluster_room(self, request: web.Request) -> web.Response:
        """How full all nodes' caches are, as they tell the tracker."""
        return server.encoded_response(await self._queries.ask_tracker("room"))

    async def get_cluster_models(self, request: web.Request) -> web.Response:
        """The models of all nodes, as the tracker knows them."""
        return server.encoded_response(await self._queries.ask_tracker("swarms"))
