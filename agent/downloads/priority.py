"""The order of downloads: pulls of waiting clients first, then warms, then pulls in the background.

It holds on this node, and in the upload queues of its peers.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.manager import LEAVE_LOOK_S, DownloadManager
from p2pcache.agent.downloads.runner import TICK_S
from p2pcache.core.swarm import events as e
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import Conflict, NoSpace, OverQuota
from p2pcache.ids import Ref
from p2pcache.io import pools

Begin = Callable[[], Awaitable[Download]]
EvictFor = Callable[[NoSpace, str], Awaitable[bool]]
"""Makes the room that an error asks for; returns whether it did."""

log = logging.getLogger(__name__)

CLIENTS_LEAVE_S = 1.0  # a client that reads hears at once that its download has ended
STUCK_S = 10.0  # a download without a byte for this long holds no other one back


class DownloadOrder:
    """Sets the priorities of downloads, and holds a download back while one of higher priority progresses.

    A download that is held back wants no runs: it keeps its bytes, lets requests in flight finish, and
    returns its leases.
    """

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, evict_for: EvictFor
    ) -> None:
        """Nothing is held back yet.

        Args:
            context: of the agent.
            downloads: those that are ordered.
            evict_for: evicts models for a download that doesn't fit.
        """
        self._evict_for = evict_for
        self._context = context
        self._downloads = downloads
        self._known: weakref.WeakSet[Download] = weakref.WeakSet()
        self._held: weakref.WeakSet[Download] = weakref.WeakSet()
        self._seen: weakref.WeakKeyDictionary[Download, tuple[int, float]] = (
            weakref.WeakKeyDictionary()
        )

    def on_client(self, download: Download, priority: Priority) -> None:
        """A client joined a download; the download takes the highest priority of its clients."""
        first = download not in self._known
        self._known.add(download)
        download.priority = priority if first else min(priority, download.priority)
        self._context.net.put_behind(download.swarm.digest, download.priority)
        if first and priority > Priority.USUAL and not download.ended.done():
            work = self._follow(download)
            self._context.tasks.spawn_contained(work, name=f"order-{download.swarm.digest[:12]}")

    async def begin_making_room(
        self, begin: Begin, ref: Ref, digest: str, priority: Priority
    ) -> Download:
        """Begin a download. On a full disk models that are worth less, then downloads of lower priority make room.

        Raises:
            NoSpace: there is no download left that could make room.
            P2PCacheError: as `begin` says.
        """
        while True:
            try:
                return await begin()
            except OverQuota:
                raise
            except NoSpace as error:
                made = (
                    await self._downloads.remove_begun_push()
                    or await self._evict_for(error, digest)
                    or await self._make_room(ref, priority)
                )
                if not made:
                    raise

    async def _make_room(self, ref: Ref, priority: Priority) -> bool:
        """End the last of the downloads of lower priority, and free its disk space.

        A model that has a tag stays. Clients of the ended download are told why it ended.

        Args:
            ref: of the pull that needs the space.
            priority: of that pull.

        Returns:
            Whether a model went.
        """
        store, running = self._context.store, self._downloads.running
        later = [
            (download.priority, download.started, digest)
            for digest, download in running.items()
            if download.priority > priority
            and not store.tags_of(digest)
            and not store.orders.kept_of(digest)
        ]
        if not later:
            return False
        digest = max(later)[2]
        last = running[digest].ref
        log.warning("%s gives its disk space to the pull of %s", last, ref)
        why = NoSpace(  # without that pull's name: its namespace may be another
            f"{last} gave its disk space to a pull that somebody awaits; make room (p2pcache prune) and ask again"
        )
        await self._downloads.end(running[digest], why)

        async def remove() -> bool:
            await pools.WORK.run(store.remove_model, digest)
            return True

        leave_by = self._context.now() + CLIENTS_LEAVE_S
        # Polled: it is rare, and nothing else needs an event for it.
        while digest in self._downloads.in_use and self._context.now() < leave_by:  # noqa: ASYNC110
            await asyncio.sleep(LEAVE_LOOK_S)
        # Another client pulls it by now, or one doesn't read its answer.
        with contextlib.suppress(Conflict):
            return await self._downloads.perform_removal(digest, remove)
        return False

    async def _follow(self, download: Download) -> None:
        """Hold a download back while an earlier one progresses, until it ends or has the highest itself."""
        while not download.ended.done():
            self._hold(download, back=self._earlier_one_progresses(download.priority))
            if download.priority is Priority.USUAL:
                return
            await asyncio.wait([download.ended], timeout=TICK_S)

    def _hold(self, download: Download, *, back: bool) -> None:
        scheduler = download.swarm.scheduler
        if scheduler is None:
            return  # it still searches the cache for local copies
        if back and scheduler.wanted:
            self._held.add(download)
            download.swarm.post(e.Wanted(0))
        elif not back and not scheduler.wanted and download.wanted:
            self._held.discard(download)
            download.swarm.post(e.Wanted(download.wanted))

    def _earlier_one_progresses(self, priority: Priority) -> bool:
        """Whether a download of higher priority progresses."""
        return any(
            other.priority < priority and self._progresses(other)
            for other in list(self._downloads.running.values())
        )

    def _progresses(self, download: Download) -> bool:
        now, done = self._context.now(), download.swarm.bytes_done
        before = self._seen.get(download)
        if download in self._held:  # it goes on sooner than the download that asks now
            self._seen[download] = (done, now)
            return True
        if before is None or before[0] != done:
            self._seen[download] = before = (done, now)
        return now - before[1] < STUCK_S and not download.swarm.idle
