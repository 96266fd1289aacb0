"""Whether a caller may use a model by a ref: what `rights` alone can't say, because a digest has no namespace."""

from aiohttp import web

from p2pcache.agent.api.gate import CALLER
from p2pcache.agent.api.rights import Caller, Denied
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.core.protocol.tokens import Scope
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.store import Store


class Access:
    """Checks of rights to models."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self._store = store
        self._resolver = resolver

    async def allowed_caller(
        self, request: web.Request, ref: Ref, scope: Scope = Scope.PULL
    ) -> Caller:
        """The caller, after a check of its right to the model.

        A digest says nothing about namespaces. So a caller with limited rights may use a digest only if a tag
        in its namespaces names that model; to remove it, all its tags must be in them.

        Args:
            request: the call.
            ref: of the model.
            scope: the right that is needed.

        Raises:
            Denied: it may not.
            P2PCacheError: the ref can't be resolved, if that is needed to know.
        """
        caller, call = request[CALLER], f"{request.method} {request.path}"
        caller.need(scope, ref.namespace, call)
        if ref.digest is None or caller.everywhere:
            return caller
        tags = await pools.STEPS.run(self._store.tags_of, ref.digest)
        seen = all if scope is Scope.ADMIN else any
        if tags and seen(caller.sees(tag.namespace) for tag in tags):
            return caller
        if scope is Scope.PULL:
            named = await self._resolver.resolve(ref._replace(digest=None))
            if named.digest == ref.digest:
                return caller
        raise Denied(
            f"{call}: no tag of your namespaces names blake3:{ref.digest}; leave the digest out"
        )

    async def refuse_others(self, caller: Caller, ref: Ref, call: str) -> None:
        """Check that a model has no name in a namespace where the caller has no right.

        Raises:
            Denied: it has one.
        """
        digest = await pools.STEPS.run(self._store.named, ref)
        names = await pools.STEPS.run(self._store.names_of, digest) if digest else []
        if not all(caller.sees(name.namespace) for name in names):
            raise Denied(f"{call}: another namespace has {ref} under a name of its own")
