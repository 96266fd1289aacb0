"""Warms: models that are fetched before a client asks for them, by `p2pcache warm` here or by the tracker."""

import asyncio
import contextlib
import logging
from typing import NamedTuple

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.jobs.pulls import Pulls
from p2pcache.core import backoff
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import Cancelled, Conflict, P2PCacheError, TimedOut, Unreachable
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.http.audit_log import Entry
from p2pcache.io.notes.pending_warms import PendingWarms

log = logging.getLogger(__name__)

FILE = "warms.json"
MAX_WARMS = 64  # at once: about as many models as a large disk holds
AGAIN_S = (
    15.0  # before a second try: storage and tracker may start later than this node, or be away
)
LAST_AGAIN_S = 300.0  # before a later one: an outage of hours isn't to fill the log and the history
ASK_S = 110.0  # longer than the tracker may need for the manifest and for its rounds of questions to nodes


class Warmed(NamedTuple):
    """The answer of a warm: `state` is "had", "getting" or "started"."""

    ref: Ref
    digest: str
    size_bytes: int
    state: str


class _Warm:
    """A warm under way."""

    def __init__(self, download: Download) -> None:
        self.download = download
        # Done when its name was removed, while others wait for the download.
        self.removed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()  # it isn't followed any more


class Warms:
    """Starts warms and follows them. No client waits for a warm, so it counts as a client itself."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, pulls: Pulls, book: PendingWarms
    ) -> None:
        self._context = context
        self._book = book
        self._stopping = False
        self._downloads = downloads
        self._pulls = pulls
        # By digest, and the ref to publish it under.
        self._running: dict[tuple[str, Ref], _Warm] = {}
        self._beginning = 0
        self._waiting: set[Ref] = set()  # for the end of an outage; they keep their places

    async def start(self, ref: Ref) -> Warmed:
        """Fetch a model behind all pulls; returns as soon as its space is set aside.

        How it ends is in the history. A second warm of the same model is no error and starts nothing.

        Raises:
            NoSpace: it doesn't fit.
            Conflict: too many are under way.
            P2PCacheError: as `Pulls.begin_download`.
        """
        if len(self._running) + self._beginning + len(self._waiting - {ref}) >= MAX_WARMS:
            raise Conflict(f"{MAX_WARMS} models are being warmed here already; try again later")
        return await self._begin(ref, failures=0)

    async def _begin(self, ref: Ref, *, failures: int) -> Warmed:
        """`start`, after so many failures in a row; it has a place."""
        self._beginning += 1
        try:
            before = set(self._downloads.running)
            with contextlib.ExitStack() as use:
                resolved, download = await self._pulls.begin_download(
                    ref, use, force=False, whole=True, priority=Priority.WARM
                )
                digest, had = resolved.digest, download.swarm.complete
                if had:
                    await self._downloads.publish_model(download, ref, resolved.generation)
                elif (digest, ref) not in self._running:
                    warm = self._running[digest, ref] = _Warm(download)
                    work = self._follow(warm, ref, resolved.generation, failures, use.pop_all())
                    self._context.tasks.spawn_contained(work, name=f"warm-{digest[:12]}")
        finally:
            self._beginning -= 1
        state = "had" if had else "getting" if digest in before else "started"
        return Warmed(ref, digest, download.swarm.layout.manifest.size_bytes, state)

    async def _follow(
        self, warm: "_Warm", ref: Ref, generation: int, failures: int, use: contextlib.ExitStack
    ) -> None:
        """Be a client of the download, so that it isn't abandoned; then publish the model.

        What an outage ends is begun anew.
        """
        download, again = warm.download, False
        try:
            with use, download.client(ref):
                await pools.STEPS.run(self._book.remember, ref)
                await asyncio.wait([download.ended, warm.removed], return_when="FIRST_COMPLETED")
                if warm.removed.done():
                    return
                download.ended.result()
                await self._downloads.publish_model(download, ref, generation)
            log.info("warmed %s", ref.short)
        except P2PCacheError as error:
            log.warning("warming %s: %s", ref.short, error)
            again = _passes(error)
        finally:
            del self._running[download.swarm.digest, ref]
            warm.over.set()
            if not (again or self._stopping):
                await pools.STEPS.run(self._book.forget, ref)
        if again and not self._stopping and ref not in self._waiting:
            moved = download.swarm.bytes_done > download.bytes_before
            failures = 0 if moved else failures
            await self._pause(ref, failures)
            await self._again(ref, failures + 1)

    def resume(self) -> None:
        """Go on with warms that this agent hadn't finished when it stopped."""
        for ref in self._book.refs()[:MAX_WARMS]:
            self._context.tasks.spawn_contained(self._again(ref), name=f"warm-again-{ref.name}")

    async def _pause(self, ref: Ref, failures: int) -> None:
        pause_s = backoff.pause_s(AGAIN_S, LAST_AGAIN_S, failures)
        self._waiting.add(ref)
        try:
            await asyncio.sleep(pause_s * self._context.rng.uniform(0.8, 1.0))  # not all at once
        finally:
            self._waiting.discard(ref)

    async def _again(self, ref: Ref, failures: int = 0) -> None:
        said = ""
        while ref in self._book.refs():
            try:
                warmed = await self._begin(ref, failures=failures)
            except P2PCacheError as error:
                if not _passes(error):
                    log.warning("warming %s doesn't go on: %s", ref.short, error)
                    break
                level = logging.DEBUG if str(error) == said else logging.INFO
                log.log(level, "warming %s goes on when that has ended: %s", ref.short, error)
                said = str(error)
                await self._pause(ref, failures)
                failures += 1
            else:
                log.info("warming %s goes on", ref.short)
                if warmed.state == "had":
                    break
                return
        await pools.STEPS.run(self._book.forget, ref)

    def on_stopping(self) -> None:
        """The agent stops: keep the warms under way in the book, for `resume` after the next start."""
        self._stopping = True

    async def forget_pending(self, ref: Ref) -> bool:
        """Don't go on with a warm after the next start, nor with one that waits; whether there was one."""
        noted = [
            r for r in self._book.refs() if r.tag_key == ref.tag_key and r.digest == ref.digest
        ]
        for each in noted:
            self._waiting.discard(each)
            await pools.STEPS.run(self._book.forget, each)
        return bool(noted)

    async def stop(self, ref: Ref) -> str:
        """End the warm of this name because it is to be removed; return the model's digest, "" if there was none.

        A download that has other clients goes on for them: they may be of another namespace.
        """
        await self.forget_pending(ref)
        ended = ""
        for (digest, name), warm in list(self._running.items()):
            if name.tag_key != ref.tag_key or ref.digest not in (None, digest):
                continue
            if (
                warm.download.clients_named(name) > 1
            ):  # a pull of this name: it can't be removed now
                continue
            ended = digest
            if warm.download.clients <= 1:
                why = Cancelled(f"{ref} was removed while it was warmed")
                await self._downloads.end(warm.download, why)
            if not warm.removed.done():
                warm.removed.set_result(None)
            await warm.over.wait()
        return ended

    async def spread(self, ref: Ref, replicas: int) -> bytes:
        """Have the tracker warm a model on some nodes; return its answer as JSON.

        Args:
            ref: of the model.
            replicas: how many nodes should have it.

        Raises:
            Unreachable: there is no tracker.
            P2PCacheError: the tracker refused.
        """
        link = self._context.link
        if link is None:
            raise Unreachable("this agent has no tracker, so there are no other nodes to warm")
        wish = msgspec.json.encode({"ref": str(ref), "replicas": replicas}).decode()
        return (await link.ask("warm", wish, timeout_s=ASK_S)).data

    async def on_told(self, text: str) -> str:
        """The tracker asks this node to warm the model of a ref; returns the state as `Warmed` has it.

        Raises:
            P2PCacheError: as `start`.
        """
        link = self._context.link
        assert link is not None
        ref = Ref.parse(text)
        with Entry(f"tracker={link.url}", "warm", model=str(ref)) as entry:
            warmed = await self.start(ref)
            entry.fields |= {"digest": warmed.digest, "bytes": warmed.size_bytes}
        return warmed.state


def _passes(error: P2PCacheError) -> bool:
    """Whether a warm goes on after it: an outage that ends by itself."""
    return error.retryable or isinstance(error, TimedOut)
