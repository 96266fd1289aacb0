"""Runs one download after it has begun: local copies, swarm, flushes, its end, its row in the history."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.agent.downloads.give_up import odd_storage
from p2pcache.agent.journal import Journal
from p2pcache.core.swarm.events import Source
from p2pcache.errors import Cancelled, P2PCacheError, Unreachable
from p2pcache.io import pools

log = logging.getLogger(__name__)

# A download of a part ends when it has had no client for this long: clients come a moment after they join.
PART_END_S = 1.0
SHOWN_S = 5.0  # a finished download is noted when a client has published it, or after this
TICK_S = 0.25  # between two looks of a running download at flushing, clients and trouble
# The first looks at a download are closer together: what is waited for at a look counts for the whole time until the
# next one, and at the first look nothing is known of any peer.
FIRST_TICK_S = 0.01

Bringing = Callable[[Download], AbstractAsyncContextManager[object]]


class DownloadRunner:
    """Runs downloads, each in a task of its own, and notes each one once."""

    def __init__(
        self, context: AgentContext, journal: Journal, bringing: Bringing = contextlib.nullcontext
    ) -> None:
        """`bringing`: for the length of its block runs come from elsewhere than peers and storage."""
        self.why_stopped: P2PCacheError = Unreachable(
            "the agent is stopping; pull again: it resumes"
        )
        self._context = context
        self._journal = journal
        self._bringing = bringing
        self._unnoted: set[Download] = set()  # ended, and not in the history yet

    async def run_download(self, download: Download, on_end: Callable[[], object]) -> None:
        """Run one download to its end: local copies first, then the swarm, with a flush from time to time.

        `on_end` is called as soon as it runs no more, before it is noted.
        """
        swarm = download.swarm
        try:
            copied = await pools.PULLS.run(swarm.store.copy_local)
            if copied:
                swarm.on_proved(copied, Source.LOCAL)
            download.timeline.reached("local", self._context.now())
            download.timeline.expect(download.bytes_total - swarm.bytes_done)
            swarm.on_bytes = download.timeline.took
            async with self._bringing(download):
                download.start()
                if swarm.complete:
                    download.succeed()
                await self._watch(download)
            if why := self._context.origin.take_wrong(swarm.digest):
                self._context.origin.odd = (download.ref, why)
                log.warning("%s", odd_storage(str(download.ref), why))
        except P2PCacheError as error:
            download.fail(error)
        finally:
            on_end()
            self.leave_alone(swarm)
            swarm.pulled = False
            if not swarm.complete:
                swarm.pause()
            swarm.store.unpin()
            download.fail(self.why_stopped)
            self._unnoted.add(download)
            if download.error is not None or not download.whole:
                self.note_download(download)
            else:
                asyncio.get_running_loop().call_later(SHOWN_S, self.note_download, download)

    def note_download(self, download: Download) -> None:
        """Write a download into the history, once."""
        self._unnoted.discard(download)
        if download.noted:
            return
        download.noted = True
        now, swarm = self._context.now(), download.swarm
        action, ref = download.action, download.ref
        self._journal.record(
            action, ref=ref.short if action == "keep" else str(ref), digest=swarm.digest,
            size_bytes=download.bytes_total if download.whole else swarm.bytes_done,
            seconds=now - download.started, sources=download.sources(),
            error=download.error, report=download.report(now),
        )  # fmt: skip

    def stop(self, running: Iterable[Download]) -> None:
        """End what runs, and write all ended downloads into the history: the agent stops."""
        for download in running:
            download.fail(self.why_stopped)
        for download in list(self._unnoted):
            self.note_download(download)

    def leave_alone(self, swarm: SwarmDriver) -> None:
        """Set what a swarm does without a download: it repairs runs that a check found bad, and publishes again."""

        def repaired() -> None:
            work = pools.PULLS.run(self._publish_again, swarm)
            self._context.tasks.spawn_contained(work, name=f"repair-{swarm.digest[:12]}")

        def failed(error: P2PCacheError) -> None:
            log.warning("blake3:%s: %s", swarm.digest, error)
            swarm.pause()

        swarm.on_finished, swarm.on_failed = repaired, failed
        swarm.on_bytes = lambda *_: None

    def _publish_again(self, swarm: SwarmDriver) -> None:
        for ref in self._context.store.tags_of(swarm.digest):
            swarm.store.publish(ref, None)

    async def _watch(self, download: Download) -> None:
        settings = self._context.settings
        swarm = download.swarm
        flushed = wanted = self._context.now()
        tick_s = FIRST_TICK_S
        while not download.ended.done():
            began = self._context.now()
            held_up = swarm.scheduler.waits_for(began) if swarm.scheduler is not None else ""
            await asyncio.wait([download.ended], timeout=tick_s)
            now, tick_s = self._context.now(), min(TICK_S, 2 * tick_s)
            download.timeline.waited(held_up, now - began)
            download.rate(now)  # a client that joins later sees the rate of the last seconds
            due = now - flushed >= settings.flush_interval_s and swarm.unflushed_bytes > 0
            if due or swarm.unflushed_bytes >= settings.flush_bytes:
                swarm.unflushed_bytes, flushed = 0, now
                await pools.PULLS.run(swarm.store.flush)
            if download.clients:
                wanted = now
            elif swarm.idle and not download.whole and now - wanted > PART_END_S:
                await pools.PULLS.run(swarm.store.flush)
                if not download.clients and not download.whole:
                    download.succeed()
            elif now - wanted > settings.abandon_after_s:
                raise Cancelled("nobody waits for this pull any more; pull again: it resumes")
            trouble = swarm.why_give_up(now)
            if trouble is not None:
                raise trouble
        download.ended.result()
        download.timeline.finished(self._context.now())
