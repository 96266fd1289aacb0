"""What answers the calls about the pool: what is kept in the cluster, which nodes are emptied. The tracker does it."""

import msgspec
from aiohttp import web

from p2pcache.agent.api.gate import CALLER
from p2pcache.agent.api.queries import Queries
from p2pcache.agent.api.routes import DrainRequest, KeepRequest
from p2pcache.core.protocol.tokens import Scope
from p2pcache.ids import Ref
from p2pcache.io.http import server
from p2pcache.io.http.audit_log import Entry


class PoolCalls:
    """Handlers of `agent.api.routes`, as those of `handlers.Api`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def get_keeps(self, request: web.Request) -> web.Response:
        """The models that are kept, of namespaces that the caller may see."""
        caller = request[CALLER]
        told = msgspec.json.decode(await self._queries.ask_tracker("keeps"))
        shown = {"keeps": [row for row in told["keeps"] if caller.sees(str(row["namespace"]))]}
        if caller.everywhere:
            shown["drains"] = told["drains"]
        return server.json_response(shown)

    async def post_keep(self, request: web.Request) -> web.Response:
        """Keep a model in the cluster, or change how."""
        wanted = await server.read_json(request, KeepRequest)
        ref = Ref.parse(wanted.ref)
        call = f"POST {request.path}"
        caller = request[CALLER]
        caller.need(Scope.ADMIN, ref.namespace, call)
        text = msgspec.structs.asdict(wanted) | {"ref": str(ref)}
        with Entry(caller.who, "keep", model=str(ref), copies=wanted.copies, nodes=wanted.nodes):
            body = await self._queries.ask_tracker("keep", msgspec.json.encode(text).decode())
        return server.encoded_response(body)

    async def delete_keep(self, request: web.Request) -> web.Response:
        """Keep a model no longer."""
        ref = server.wanted_ref(request)
        caller = request[CALLER]
        caller.need(Scope.ADMIN, ref.namespace, "DELETE /v1/keeps")
        text = msgspec.json.encode({"ref": str(ref), "off": True}).decode()
        with Entry(caller.who, "keep-off", model=str(ref)):
            body = await self._queries.ask_tracker("keep", text)
        return server.encoded_response(body)

    async def post_drain(self, request: web.Request) -> web.Response:
        """Empty a node of what is kept there, or end that."""
        wanted = await server.read_json(request, DrainRequest)
        with Entry(request[CALLER].who, "drain", node=wanted.node, undo=wanted.undo):
            text = msgspec.json.encode(wanted).decode()
            body = await self._queries.ask_tracker("drain", text)
        return server.encoded_response(body)
