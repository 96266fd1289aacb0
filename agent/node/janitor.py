"""Chores while the agent lives: durability of what came, background proving, disk watch."""

import asyncio
import logging

from p2pcache.agent.context import Parts
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.errors import P2PCacheError

log = logging.getLogger(__name__)

SPARE_LOOK_S = 60.0  # at what is kept back for a full disk
LOOK_S = 5.0  # at the cache dir itself
ARRIVING_LOOK_S = 60.0  # at what loaders read while a model arrives ...
ARRIVING_S = (
    300.0  # ... which goes after so long without any; one that lost its agent is back in seconds
)
SCRUB_LOOK_S = 3600.0  # how often the janitor looks whether a model is due


class Janitor:
    """Owns the periodic work of an agent."""

    def __init__(self, parts: Parts, downloads: DownloadManager, governor: GovernorLoop) -> None:
        self._parts = parts
        self._downloads = downloads
        self._governor = governor
        self._scrubbed: dict[str, float] = {}
        self._unread: dict[str, float] = {}  # since when no loader has held what is shown

    def start(self) -> None:
        """Begin the chores."""
        self._parts.tasks.every(LOOK_S, self._look, name="cache-dir")
        if self._parts.settings.scrub_interval_s > 0:
            self._parts.tasks.every(SCRUB_LOOK_S, self._scrub, name="scrub")
        self._parts.tasks.every(SPARE_LOOK_S, self._keep_spare, name="spare")
        self._parts.tasks.every(ARRIVING_LOOK_S, self._hide_unread, name="arriving")

    async def _keep_spare(self) -> None:
        try:
            await asyncio.to_thread(self._parts.store.keep_spare)
        except P2PCacheError as error:
            log.warning("keeping disk space back: %s", error)

    async def _hide_unread(self) -> None:
        """A load leaves a directory behind, and whoever looks in there thinks of a load.

        Not at the load's end: a small model is whole before its loader has opened what it was shown.
        """
        now = self._parts.now()
        unread = self._downloads.shown_unused()
        self._unread = {digest: self._unread.get(digest, now) for digest in unread}
        for digest, since in self._unread.items():
            if now - since >= ARRIVING_S:
                try:
                    await self._downloads.hide_arriving(digest)
                except P2PCacheError as error:
                    log.warning("what was shown of blake3:%s stays: %s", digest, error)

    async def _look(self) -> None:
        """A cache dir that was deleted ends the agent: nobody would see what it fetches."""
        await asyncio.to_thread(self._parts.store.usage)

    async def _scrub(self) -> None:
        """Prove at most one complete model again, the one that waited longest."""
        if self._governor.governs:
            return  # it is long due anyway; an hour later will do
        now = self._parts.now()
        due_s = self._parts.settings.scrub_interval_s
        for digest, swarm in list(self._downloads.swarms.items()):
            since = self._scrubbed.setdefault(digest, now)
            if now - since < due_s or not swarm.complete or self._downloads.running:
                continue
            self._scrubbed[digest] = now
            try:
                bad = await asyncio.to_thread(swarm.store.verify)
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
