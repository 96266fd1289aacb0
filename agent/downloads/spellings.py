"""How names are written: the hub view shows models by the names that clients of a hub ask for, with capitals."""

import asyncio

from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.errors import P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.store import Store
from p2pcache.io.tasks import Tasks


class Spellings:
    """Asks once for each name, when its model has arrived."""

    def __init__(self, store: Store, resolver: Resolver, tasks: Tasks) -> None:
        self._store = store
        self._resolver = resolver
        self._tasks = tasks
        self._asked: set[tuple[str, str]] = set()

    def learn(self, ref: Ref, download: Download) -> None:
        """Ask when the download has ended well, unless it was asked before."""
        name = (ref.namespace, ref.name)
        if name not in self._asked:
            self._asked.add(name)
            self._tasks.spawn_contained(self._ask(ref, download), name=f"spelling-{ref.name}")

    async def _ask(self, ref: Ref, download: Download) -> None:
        try:
            # Storage that refuses us is asked nothing more: an answer would look as if it didn't refuse.
            await asyncio.shield(download.ended)
            spelling = await self._resolver.read_spelling(ref)
        except P2PCacheError:  # the next pull asks again
            self._asked.discard((ref.namespace, ref.name))
            return
        await pools.STEPS.run(self._store.spell, ref, spelling)
        if (label := self._store.written(ref)) != download.swarm.label == ref.short:
            download.swarm.show_as(label)
