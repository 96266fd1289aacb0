"""Pulls that somebody waits for come before those that warm a cache, and these before the background.

On this node, and in the queues of its peers.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable

from p2pcache.agent.context import Parts
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.downloads import TICK_S, Downloads
from p2pcache.core.swarm import events as e
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import Conflict, NoSpace
from p2pcache.ids import Ref

Begin = Callable[[], Awaitable[Download]]

log = logging.getLogger(__name__)

STUCK_S = 10.0  # a pull that got nothing for so long keeps nobody from anything


class Order:
    """Sets the turns of downloads, and holds back those whose turn hasn't come.

    One that is held back wants nothing for the moment: it keeps what it has, finishes what is on
    its way, and gives its leases to others.
    """

    def __init__(self, parts: Parts, downloads: Downloads) -> None:
        self._parts = parts
        self._downloads = downloads
        self._known: weakref.WeakSet[Download] = weakref.WeakSet()
        self._held: weakref.WeakSet[Download] = weakref.WeakSet()
        self._seen: weakref.WeakKeyDictionary[Download, tuple[int, float]] = (
            weakref.WeakKeyDictionary()
        )

    def asked(self, download: Download, turn: Priority) -> None:
        """A client joined a download, which has the earliest turn of its clients."""
        first = download not in self._known
        self._known.add(download)
        download.turn = turn if first else min(turn, download.turn)
        self._parts.net.put_behind(download.swarm.digest, download.turn)
        if first and turn > Priority.USUAL and not download.ended.done():
            work = self._follow(download)
            self._parts.tasks.spawn_contained(work, name=f"order-{download.swarm.digest[:12]}")

    async def fit(self, begin: Begin, ref: Ref, turn: Priority) -> Download:
        """Begin a download. What comes after it in order makes room for it on a full disk.

        Raises:
            NoSpace: it doesn't fit all the same.
            P2PCacheError: as `begin` says.
        """
        while True:
            try:
                return await begin()
            except NoSpace:
                if not await self._make_room(ref, turn):
                    raise

    async def _make_room(self, ref: Ref, turn: Priority) -> bool:
        """End the last of the downloads that come after such a pull, and free its disk space.

        What is shown to anybody stays. Who waits for the one that is ended is told why. Returns
        whether there was one.
        """
        store, running = self._parts.store, self._downloads.running
        later = [
            (download.turn, download.started, digest)
            for digest, download in running.items()
            if download.turn > turn and not store.tags_of(digest)
        ]
        if not later:
            return False
        digest = max(later)[2]
        last = running[digest].ref
        why = NoSpace(
            f"{last} gave its disk space to the pull of {ref}; make room (p2pcache prune) and ask again"
        )
        log.warning("%s", why)
        await self._downloads.end(running[digest], why)
        with contextlib.suppress(Conflict):  # somebody else pulls it by now
            await self._downloads.forget(digest)
            await asyncio.to_thread(store.remove_model, digest)
        return True

    async def _follow(self, download: Download) -> None:
        """Hold a download back while an earlier one gets on, until it ends or is wanted."""
        while not download.ended.done():
            self._hold(download, back=self._others_get_on(download.turn))
            if download.turn is Priority.USUAL:
                return
            await asyncio.wait([download.ended], timeout=TICK_S)

    def _hold(self, download: Download, *, back: bool) -> None:
        scheduler = download.swarm.scheduler
        if scheduler is None:
            return  # it looks through what is here already
        if back and scheduler.wanted:
            self._held.add(download)
            download.swarm.post(e.Wanted(0))
        elif not back and not scheduler.wanted and download.wanted:
            self._held.discard(download)
            download.swarm.post(e.Wanted(download.wanted))

    def _others_get_on(self, turn: Priority) -> bool:
        """Whether a download with an earlier turn gets on."""
        return any(
            other.turn < turn and self._gets_on(other)
            for other in list(self._downloads.running.values())
        )

    def _gets_on(self, download: Download) -> bool:
        now, done = self._parts.now(), download.swarm.bytes_done
        before = self._seen.get(download)
        if download in self._held:  # it goes on before who looks now does
            self._seen[download] = (done, now)
            return True
        if before is None or before[0] != done:
            self._seen[download] = before = (done, now)
        return now - before[1] < STUCK_S and not download.swarm.idle
