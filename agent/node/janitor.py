"""Periodic work of an agent: watch the cache dir, keep disk space back, remove arriving directories, scrub."""

import logging

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.errors import P2PCacheError
from p2pcache.io import pools

log = logging.getLogger(__name__)

SPARE_LOOK_S = 60.0  # between two looks at the reserve for a full disk
LOOK_S = 5.0  # between two looks at the cache dir
ARRIVING_LOOK_S = 60.0  # between two looks at arriving directories
ARRIVING_S = (
    300.0  # an arriving directory without a loader goes after this; a loader reconnects in seconds
)
SCRUB_LOOK_S = 3600.0  # between two looks for a model that is due


class Janitor:
    """Does the periodic work of an agent."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, governor: GovernorLoop
    ) -> None:
        self._context = context
        self._downloads = downloads
        self._governor = governor
        self._scrubbed: dict[str, float] = {}  # when each model was proved last, by digest
        self._unused: dict[
            str, float
        ] = {}  # since when no loader uses an arriving directory, by digest

    def start(self) -> None:
        """Begin the periodic work."""
        self._context.tasks.every(LOOK_S, self._look, name="cache-dir")
        if self._context.settings.scrub_interval_s > 0:
            self._context.tasks.every(SCRUB_LOOK_S, self._scrub, name="scrub")
        self._context.tasks.every(SPARE_LOOK_S, self._keep_spare, name="spare")
        self._context.tasks.every(ARRIVING_LOOK_S, self._hide_unused, name="arriving")

    async def _keep_spare(self) -> None:
        try:
            await pools.STEPS.run(self._context.store.keep_spare)
        except P2PCacheError as error:
            log.warning("keeping disk space back: %s", error)

    async def _hide_unused(self) -> None:
        """Remove arriving directories that no loader has used for `ARRIVING_S`.

        The end of a load is too early: a small model may be complete before its loader has opened it.
        """
        now = self._context.now()
        unused = self._shown_unused()
        self._unused = {digest: self._unused.get(digest, now) for digest in unused}
        for digest, since in self._unused.items():
            if now - since >= ARRIVING_S:
                try:
                    await self._hide_arriving(digest)
                except P2PCacheError as error:
                    log.warning("what was shown of blake3:%s stays: %s", digest, error)

    def _shown_unused(self) -> list[str]:
        """Digests of the models with an arriving directory that no loader uses."""
        return [
            digest for digest, swarm in self._downloads.swarms.items()
            if swarm.store.arriving is not None and digest not in self._downloads.running
        ]  # fmt: skip

    async def _hide_arriving(self, digest: str) -> None:
        """Remove a model's arriving directory, unless a loader has come meanwhile. The next load makes a new one."""
        async with self._downloads.opening.of(digest):
            if digest in self._shown_unused():
                await pools.STEPS.run(self._downloads.swarms[digest].store.hide_arriving)

    async def _look(self) -> None:
        """Note how full the cache is. End the agent if its directory was deleted: its downloads would be lost."""
        self._context.usage = await pools.STEPS.run(self._context.store.usage)

    async def _scrub(self) -> None:
        """Prove at most one complete model again that is due."""
        if self._governor.governs:
            return  # the next look is soon enough
        now = self._context.now()
        due_s = self._context.settings.scrub_interval_s
        for digest, swarm in list(self._downloads.swarms.items()):
            since = self._scrubbed.setdefault(digest, now)
            if now - since < due_s or not swarm.complete or self._downloads.running:
                continue
            self._scrubbed[digest] = now
            try:
                bad = await pools.WORK.run(swarm.store.verify)
            except P2PCacheError as error:
                log.warning("scrub of blake3:%s: %s", digest, error)
                return
            if bad:
                log.error(
                    "scrub: %d chunks of blake3:%s are bad; they are served no more",
                    len(bad),
                    digest,
                )
                swarm.on_lost()
            return
