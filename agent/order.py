"""Pulls that somebody waits for come before those in the background, here and in peers' queues."""

import asyncio
import weakref

from p2pcache.agent.download import Download
from p2pcache.agent.downloads import TICK_S, Downloads
from p2pcache.agent.parts import Parts
from p2pcache.core import events as e

STUCK_S = 10.0  # a pull that got nothing for so long keeps nobody from anything


class Order:
    """Knows which downloads are in the background, and holds them back.

    One that is held back wants nothing for the moment: it keeps what it has, finishes what is on
    its way, and gives its leases to others.
    """

    def __init__(self, parts: Parts, downloads: Downloads) -> None:
        self._parts = parts
        self._downloads = downloads
        self._behind: weakref.WeakKeyDictionary[Download, bool] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakKeyDictionary[Download, tuple[int, float]] = (
            weakref.WeakKeyDictionary()
        )

    def asked(self, download: Download, *, background: bool) -> None:
        """A client joined a download. It is in the background while all of its clients are."""
        before = self._behind.get(download)
        self._behind[download] = background and before is not False
        self._parts.net.put_behind(download.swarm.digest, behind=self._behind[download])
        if background and before is None and not download.ended.done():
            work = self._follow(download)
            self._parts.tasks.spawn_contained(work, name=f"order-{download.swarm.digest[:12]}")

    async def _follow(self, download: Download) -> None:
        """Hold a background download back while another one gets on, until it ends or is wanted."""
        while not download.ended.done():
            behind = self._behind[download]
            self._hold(download, back=behind and self._others_get_on())
            if not behind:
                return
            await asyncio.wait([download.ended], timeout=TICK_S)

    def _hold(self, download: Download, *, back: bool) -> None:
        scheduler = download.swarm.scheduler
        if scheduler is None:
            return  # it looks through what is here already
        if back and scheduler.wanted:
            download.swarm.wish(e.Wanted(0))
        elif not back and not scheduler.wanted and download.wanted:
            download.swarm.wish(e.Wanted(download.wanted))

    def _others_get_on(self) -> bool:
        return any(
            not self._behind.get(other, False) and self._gets_on(other)
            for other in list(self._downloads.running.values())
        )

    def _gets_on(self, download: Download) -> bool:
        now, done = self._parts.now(), download.swarm.bytes_done
        before = self._seen.get(download)
        if before is None or before[0] != done:
            self._seen[download] = before = (done, now)
        return now - before[1] < STUCK_S and not download.swarm.idle
