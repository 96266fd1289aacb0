"""Opens the models of the cache when the agent starts, one after the other, so that other nodes get their bytes."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.errors import P2PCacheError
from p2pcache.io import pools

log = logging.getLogger(__name__)

OPEN_FIRST = 20  # models that are served before the agent answers: each takes milliseconds
# While a client waits, opening rests for so many times as long as the last model took: a tenth of a core is its part.
REST_TIMES = 9
MOST_REST_S = 1.0  # of one rest: a huge model takes a second, and those after it must come, too
LOOK_S = 0.02  # between two looks whether the client still waits


class ModelOpener:
    """Joins the swarms of all models that are here."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, clients_wait: Callable[[], bool]
    ) -> None:
        """Nothing is opened yet.

        Args:
            context: of the agent.
            downloads: whose swarms are joined.
            clients_wait: says whether somebody waits for an answer of this agent now.
        """
        self._store = context.store
        self._downloads = downloads
        self._clients_wait = clients_wait

    async def open_first(self) -> None:
        """Serve the models of the cache that were used last; usual nodes have no more."""
        unopened = self._downloads.unopened = await pools.STEPS.run(self._store.labels)
        await self._open(list(unopened)[:OPEN_FIRST])

    async def open_rest(self) -> None:
        """Serve the rest of the cache. Thousands of files take seconds, in which the agent answers already."""
        await pools.STEPS.run(self._store.models)  # slow once; `ls` mustn't wait for that
        await self._open(list(self._downloads.unopened))

    async def _open(self, digests: Iterable[str]) -> None:
        unopened = self._downloads.unopened
        for digest in digests:
            if digest not in unopened:
                continue  # it was evicted, or removed
            began = time.monotonic()
            try:
                model = await pools.STEPS.run(self._store.get, digest)
            except P2PCacheError as error:
                log.warning("model blake3:%s in the cache can't be used: %s", digest, error)
                model = None
            if model is None:
                self._downloads.unusable.add(digest)
            elif (label := unopened.pop(digest, None)) is not None:
                self._downloads.join_swarm(model, label)
            await self._rest(time.monotonic() - began)

    async def _rest(self, took_s: float) -> None:
        """Leave the processor to those that wait: a thread that opens a model holds up all others."""
        ends = time.monotonic() + min(MOST_REST_S, REST_TIMES * took_s)
        # Polled: nothing else needs an event for it.
        while self._clients_wait() and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
