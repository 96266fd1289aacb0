"""A model of a hub or registry that nobody has imported yet, and somebody pulls: one node of the cluster imports it.

The others wait until the tag is there, and then get the model from that node. So the hub sends it once.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from p2pcache.agent.context import AgentContext
from p2pcache.agent.imports.imports import Imports, Wish
from p2pcache.agent.jobs.pushes import Pushes
from p2pcache.errors import NotFound, P2PCacheError, without_frames
from p2pcache.ids import Ref, hub_url, is_spelling_of, ref_of_hub
from p2pcache.io.imports.import_turn import RENEW_S, ImportTurn
from p2pcache.io.sources.source import Source, Sources
from p2pcache.io.tasks import Shared, Threads

log = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks whether the tag is there
FAILED_S = 60.0  # a refusal of the hub counts: a storm of pulls mustn't become one of questions
_REGISTRY = "oci://"
MAX_FAILED = 1000  # refusals that are remembered

Known = Callable[[Ref], Awaitable[object]]
"""Resolves a ref; raises NotFound where its tag isn't there."""


class Misses:
    """Imports on a first miss, where a source allows them."""

    def __init__(
        self,
        context: AgentContext,
        imports: Imports,
        pushes: Pushes,
        sources: Sources,
        known: Known,
    ) -> None:
        self._context = context
        self._imports = imports
        self._pushes = pushes
        self._sources = sources
        self._known = known
        self._sharing = Shared[None]()
        self._failed: dict[str, tuple[float, P2PCacheError]] = {}
        self._threads = Threads(4, name="turn")

    def source_for(self, url: str, ref: Ref) -> Source | None:
        """The source that may be asked for a model that is missing; None: none may."""
        try:
            source, _ = self._imports.source_for(url, ref)
        except P2PCacheError:
            return None
        return source if source.settings.on_miss else None

    def registry_url(self, ref: Ref) -> str:
        """Where a registry has a tag: of the first source that is a registry and may be asked for it; "": nowhere."""
        for source in self._sources:
            url = f"{source.settings.url.rstrip('/')}/{ref.namespace}/{ref.name}:{ref.tag}"
            if url.startswith(_REGISTRY) and self.source_for(url, ref) is not None:
                return url
        return ""

    async def bring(self, ref: Ref, url: str, missing: NotFound) -> None:
        """See to it that a tag is there.

        Args:
            ref: the tag.
            url: of the model, as `hf://ORG/REPO@REVISION`; "": the tag stands for none.
            missing: the error about the missing tag.

        Raises:
            NotFound: no source may be asked, or it has no such model either.
            P2PCacheError: as `Imports.import_shared`.
        """
        if not url and self.source_for(hub_url(f"{ref.namespace}/{ref.name}", "main"), ref) is None:
            raise missing
        if not url:
            raise NotFound(f"{missing}; or, from the hub: `p2pcache pull hf://ORG/REPO`")
        if self.source_for(url, ref) is None:
            raise NotFound(
                f"{missing}; it isn't imported by itself, as no source of this node allows that for {url} (on_miss and "
                f"namespaces of [sources.NAME]); by hand: `p2pcache import {url} {ref.short}`"
            )
        at, error = self._failed.get(url, (0.0, missing))
        if at and time.monotonic() - at < FAILED_S:
            raise type(error)(str(error))
        await self._sharing.share(ref.short, lambda: self._bring(ref, url))

    async def _bring(self, ref: Ref, url: str) -> None:
        repo = self._pushes.need_origin()
        turn = await self._threads.run(ImportTurn, repo.origin, ref, self._context.node)
        while not await self._threads.run(lambda: turn.attempt(time.monotonic())):
            await asyncio.sleep(LOOK_S)
            if await self._is_there(ref):
                return
        renewing = self._context.tasks.spawn(self._renew(turn, ref), name="import-turn")
        try:
            if not await self._is_there(ref):
                spelling = ref_of_hub(url).partition(":")[0]
                spelling = spelling if is_spelling_of(spelling, ref) else ""
                log.info("%s isn't there: importing %s", ref.short, url)
                await self._imports.import_shared(Wish(url, ref, spelling))
        except P2PCacheError as error:
            self._failed[url] = time.monotonic(), without_frames(error)
            if len(self._failed) > MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            raise
        finally:
            renewing.cancel()
            with contextlib.suppress(
                RuntimeError
            ):  # the agent is stopping: the turn is taken from us
                self._context.tasks.spawn_contained(self._give_back(turn), name="import-turn-end")

    async def _is_there(self, ref: Ref) -> bool:
        try:
            await self._known(ref)
        except NotFound:
            return False
        return True

    async def _renew(self, turn: ImportTurn, ref: Ref) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(P2PCacheError):  # of storage; the next time comes soon
                if not await self._threads.run(turn.renew):
                    log.warning(
                        "%s: another node took this one for dead, and imports it, too", ref.short
                    )
                    return

    async def _give_back(self, turn: ImportTurn) -> None:
        with contextlib.suppress(P2PCacheError):  # then it is taken from us after a while
            await self._threads.run(turn.give_back)
