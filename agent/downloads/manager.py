"""Downloads of this agent: manifest, space, swarm, publishing. Clients of one model share one download."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TypeVar

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.agent.downloads.runner import Bringing, DownloadRunner
from p2pcache.agent.journal import Journal
from p2pcache.agent.uses.asked_tags import AskedTags
from p2pcache.agent.uses.begun_pushes import BegunPushes
from p2pcache.core.format import manifest as manifests
from p2pcache.core.format.compile_cache_key import permit_programs
from p2pcache.core.format.layout import Layout
from p2pcache.core.host.pull_timeline import Timeline
from p2pcache.core.settings import SwarmSettings
from p2pcache.errors import Cancelled, Conflict, NoSpace, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.tasks import Turns

log = logging.getLogger(__name__)

LEAVE_LOOK_S = 0.02  # between two looks whether a download has left: a flush takes milliseconds

T = TypeVar("T")

Admit = Callable[[Ref, str, int], Awaitable[None]]
"""Raises `OverQuota` if the pool may not hold one more copy of a model: its ref, digest and bytes."""


class DownloadManager:
    """All models of this agent: those that it only serves, and those that it downloads."""

    def __init__(
        self, context: AgentContext, read_manifest: Callable[[Ref, str], Awaitable[bytes]],
        settings: SwarmSettings, journal: Journal, need_signature: Callable[[Ref, str], Awaitable[None]],
        bringing: Bringing,
    ) -> None:  # fmt: skip
        """No model yet.

        Args:
            context: what all swarms of this agent share.
            read_manifest: gives the proved manifest of a digest, from tracker, origin or another site.
            settings: of the schedulers.
            journal: is told how each download ends.
            need_signature: raises if a namespace takes signed models only, and this one isn't.
            bringing: as of `DownloadRunner`.
        """
        self.swarms: dict[str, SwarmDriver] = {}
        self.running: dict[str, Download] = {}
        self.admit: Admit = _admitted
        self._context = context
        self._read_manifest = read_manifest
        self._settings = settings
        self._journal = journal
        self._need_signature = need_signature
        self._trusted = context.settings.compile_cache_namespaces
        self.opening = Turns()
        self.unopened: dict[str, str] = {}  # names of the models here that no swarm has yet
        self.unusable: set[str] = set()  # those of them that can't be opened
        self._runner = DownloadRunner(context, journal, bringing)
        self.pushes = BegunPushes(context.now)
        self.asked_tags = AskedTags()

    def join_swarm(self, model: ModelStore, label: str) -> SwarmDriver:
        """Take part in a model's swarm with the runs that the store has; `label`: a ref, for people."""
        swarm = self._live_swarm(model.digest)
        if swarm is None:
            swarm = self.swarms[model.digest] = SwarmDriver(self._context, model, self._settings)
            swarm.label = label
            self._runner.leave_alone(swarm)
            self._context.net.add_swarm(swarm)
            self._context.told.enter(swarm)
        return swarm

    @property
    def in_use(self) -> set[str]:
        """Digests of the models that can't be removed now."""
        pinned = {digest for digest, swarm in self.swarms.items() if swarm.store.pins}
        return pinned | self.running.keys() | self.pushes.sending

    async def in_turn(self, digest: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do work while nobody else opens, shows or removes the model.

        It is done to its end although its caller is cancelled: a thread that removes a model can't be stopped, and
        until it has ended nobody may open the model again.
        """

        async def in_its_turn() -> T:
            async with self.opening.of(digest):
                return await work()

        return await self._context.tasks.finish(in_its_turn(), name=f"turn-{digest[:12]}")

    @contextlib.asynccontextmanager
    async def _turn(self, swarm: SwarmDriver, ref: Ref) -> AsyncIterator[None]:
        """Inside the block nobody else shows or removes the model."""
        async with self.opening.of(swarm.digest):
            if self.swarms.get(swarm.digest) is not swarm:
                raise _removed(ref)
            yield

    def _refuse_used(self, digest: str) -> None:
        if digest in self.in_use:
            raise Conflict("a pull, a load or a push uses it; try again when that has ended")

    async def perform_removal(self, digest: str, removal: Callable[[], Awaitable[T]]) -> T:
        """Remove something of a model in its turn and outside of its swarm; the rest is served again.

        Raises:
            Conflict: it is in use.
        """
        self._refuse_used(digest)  # at once: its user may have its turn for long
        return await self.in_turn(digest, lambda: self.leave_for(digest, removal))

    async def leave_for(self, digest: str, removal: Callable[[], Awaitable[T]]) -> T:
        """As `perform_removal`, for a caller that has the model's turn.

        Raises:
            Conflict: it is in use.
        """
        self._refuse_used(digest)
        swarm, unopened = self.swarms.get(digest), self.unopened.pop(digest, "")
        label = unopened if swarm is None else swarm.label
        if swarm is not None:
            self._forget_swarm(swarm)
        try:
            return await removal()
        finally:
            try:
                model = await pools.STEPS.run(self._context.store.get, digest)
            except P2PCacheError as error:  # an error of the removal itself is raised
                log.warning("%s isn't served until a restart: %s", label or digest, error)
            else:
                if model is None:
                    self.asked_tags.take_tags(digest)
                else:
                    self.join_swarm(model, label)

    def _live_swarm(self, digest: str) -> SwarmDriver | None:
        """A model's swarm; one whose model was removed behind its back is left."""
        swarm = self.swarms.get(digest)
        if swarm is not None and swarm.store.closed:
            self._forget_swarm(swarm)
        return self.swarms.get(digest)

    def _forget_swarm(self, swarm: SwarmDriver) -> None:
        """Leave a swarm: its model goes, or has gone."""
        swarm.pause()
        del self.swarms[swarm.digest]
        self._context.net.remove_swarm(swarm.digest)
        self._context.told.exit(swarm.digest)

    async def add_pushed(
        self, layout: Layout, encoded: bytes, *, reserve: bool = True
    ) -> SwarmDriver:
        """Make a model known whose bytes a client brings, and take part in its swarm.

        Args:
            layout: of the model.
            encoded: its manifest.
            reserve: first reserve disk space for all of it.

        Raises:
            Conflict: it is being pulled.
            NoSpace: it doesn't fit.
        """

        async def add() -> SwarmDriver:
            if layout.digest in self.running:
                raise Conflict("this agent pulls this model right now; try again when it is done")
            store = self._context.store
            model = await pools.WORK.run(store.add_model, layout, encoded, reserve=reserve)
            self.pushes.on_sent(layout.digest)
            return self.join_swarm(model, "")

        return await self.in_turn(layout.digest, add)

    async def evict(self, digest: str, value: float) -> int:
        """Evict a model of this value; return the bytes of disk freed.

        Raises:
            Conflict: it is in use.
            P2PCacheError: the disk refused.
        """
        evict = self._context.store.evict_model
        return await self.perform_removal(digest, lambda: pools.WORK.run(evict, digest, value))

    def busy(self) -> dict[str, str]:
        """Why models can't be evicted now, for people, by digest."""
        reasons = dict.fromkeys(self.pushes.promised, "it is being pushed")
        reasons |= dict.fromkeys(self.in_use - reasons.keys(), "a pull, a load or a push uses it")
        return reasons | dict.fromkeys(self.running, "it is being pulled")

    async def remove_begun_push(self) -> bool:
        """Remove a push that has begun and for which nobody sends any more; False: there is none.

        Its disk space is promised to it for as long as somebody sends. An interrupted pull by digest goes so, too: no
        name asks for its bytes.
        """
        stays = self.in_use | self.pushes.promised
        idle = [
            digest for digest, swarm in self.swarms.items()
            if not swarm.complete and digest not in stays
        ]  # fmt: skip
        for digest in sorted(idle, key=self.pushes.sent_at):
            if await self.remove_nameless(digest):
                log.warning("removed what was sent of blake3:%s: its push never ended", digest)
                return True
        return False

    async def remove_nameless(self, digest: str) -> bool:
        """Remove a model that no name asks for; False: it has one, is kept here, or is in use."""

        async def removal() -> bool:
            if not await self._nameless(digest):
                return False
            self.pushes.forget(digest)
            await pools.WORK.run(self._context.store.remove_model, digest)
            return True

        if await self._nameless(digest):
            with contextlib.suppress(Conflict):  # somebody uses it again
                return await self.perform_removal(digest, removal)
        return False

    async def _nameless(self, digest: str) -> bool:
        store = self._context.store
        names = await pools.STEPS.run(store.names_of, digest)
        return not names and not store.orders.kept_of(digest)

    async def running_as(self, ref: Ref) -> Download | None:
        """The running download of a model that has this name; None: there is none."""
        for digest, download in list(self.running.items()):
            if ref.digest is not None:
                if ref.digest == digest:
                    return download
                continue
            names = await pools.STEPS.run(self._context.store.names_of, digest)
            if ref.tag_key in {name.tag_key for name in (download.ref, *names)}:
                return download
        return None

    async def end(self, download: Download, why: P2PCacheError) -> None:
        """End a running download for all its clients; return when it has left its model."""
        download.fail(why)
        # Polled: it is rare, and nothing else needs an event for it.
        while self.running.get(download.swarm.digest) is download:  # noqa: ASYNC110
            await asyncio.sleep(LEAVE_LOOK_S)

    def on_command_ended(self) -> None:
        """The agent stops since its command has ended. Runs whose reads have begun still come, and count."""
        self._runner.why_stopped = Cancelled("its command ended before it; pull again: it resumes")

    def stop(self) -> None:
        """End every running download: the agent stops."""
        self._runner.stop(self.running.values())

    def timeline(self) -> Timeline:
        """The timeline of a pull that begins now."""
        return Timeline(self._context.now())

    def on_phase(self, timeline: Timeline, phase: str) -> None:
        """A phase of a pull ends now."""
        timeline.reached(phase, self._context.now())

    def report(self, download: Download) -> dict[str, object]:
        """Where a pull's time goes or went."""
        return download.report(self._context.now())

    async def join_or_begin(
        self, ref: Ref, digest: str, use: contextlib.ExitStack, *, whole: bool = True,
        timeline: Timeline | None = None, kept: bool = False,
    ) -> Download:  # fmt: skip
        """Join the running download of a model, or start one.

        Args:
            ref: the client's name of the model.
            digest: of the model.
            use: until it is closed, nobody removes the model.
            whole: all of it is wanted; else only the runs that `Download.wish` will name.
            timeline: of the client's pull; the download keeps that of its first client.
            kept: it is ordered by the tracker, so that no client waits for it at first.

        Raises:
            NoSpace: it doesn't fit; this is checked before the first byte.
            Conflict: it was removed meanwhile.
            P2PCacheError: it isn't admitted, its manifest can't be had, or names programs that aren't trusted.
        """
        await self._need_signature(ref, digest)
        async with self.opening.of(digest):
            swarm = self._live_swarm(digest)
            permit_programs(self._trusted, ref, swarm.layout.manifest if swarm else None)
            running = self.running.get(digest)
            if running is not None and whole and not running.whole:
                await self._open(ref, digest)  # checks the space for all of it
                running = self.running.get(digest)  # it may have ended meanwhile
            if running is not None:
                if whole and not running.whole:
                    running.want_whole()
                    running.swarm.pulled = True
                self.protect(running.swarm, use)
                return running
            if swarm is not None and not await pools.STEPS.run(swarm.store.recheck):
                swarm.on_lost()
            if swarm is None or not swarm.complete:
                model = await self._open(ref, digest, reserve=whole)
                if model.closed:
                    raise _removed(ref)
                swarm = self.join_swarm(model, ref.short)
            self.protect(swarm, use)
            swarm.label = self._context.store.written(ref)
            timeline = timeline or self.timeline()
            self.on_phase(timeline, "manifest")
            download = Download(
                ref, swarm, timeline, self._context.now(), time.time(), whole=whole, kept=kept
            )  # fmt: skip
            if swarm.complete:
                self._journal.hits += 1
                download.noted = True
                download.succeed()
                return download
            self.running[digest] = download
            swarm.pulled = whole
            swarm.store.pin()
            swarm.on_finished, swarm.on_failed = download.succeed, download.fail
            work = self._runner.run_download(download, lambda: self.running.pop(digest, None))
            self._context.tasks.spawn_contained(work, name=f"pull-{digest[:12]}")
            return download

    def protect(self, swarm: SwarmDriver, use: contextlib.ExitStack) -> None:
        """Nobody removes or evicts the model until `use` is closed."""
        swarm.store.pin()
        use.callback(swarm.store.unpin)

    async def publish_model(
        self, download: Download, ref: Ref, generation: int, *, force: bool = False
    ) -> str:
        """Publish the finished model under `ref`; return its path below the models directory.

        Tags are set, also those that other clients asked for, unless they have moved meanwhile. With `force` the
        client's own goes back, too.

        Raises:
            Conflict: it was removed meanwhile.
            P2PCacheError: the disk refused.
        """
        swarm = download.swarm
        seen = None if ref.digest is not None else generation  # a digest has no generation
        async with self._turn(swarm, ref):
            try:
                if not download.noted:
                    await pools.PULLS.run(swarm.store.flush)
                    self.on_phase(download.timeline, "flush")
                path = await pools.PULLS.run(swarm.store.publish, ref, seen, back=force)
                names = self.asked_tags.take_tags(swarm.digest)
                await pools.PULLS.run(self._publish_names, swarm, names)
                self.on_phase(download.timeline, "publish")
            finally:
                self._runner.note_download(download)
            return path  # loaders may still open the arriving one: the janitor removes it later

    def _publish_names(self, swarm: SwarmDriver, names: dict[Ref, int]) -> None:
        for ref, generation in names.items():
            with contextlib.suppress(NoSpace):  # the model is published under `ref` all the same
                swarm.store.publish(ref, generation, back=False)

    async def publish_files(self, download: Download, ref: Ref, paths: Collection[str]) -> str:
        """Publish some files whose chunks are here; return their path below the models directory."""
        store = download.swarm.store
        async with self._turn(download.swarm, ref):
            return await pools.PULLS.run(self._context.store.publish_files, store, ref, paths)

    async def _open(self, ref: Ref, digest: str, *, reserve: bool = True) -> ModelStore:
        store = self._context.store
        encoded = await pools.STEPS.run(store.manifest, digest)
        encoded = encoded or await self._read_manifest(ref, digest)
        layout = await pools.PULLS.run(lambda: Layout(manifests.decode(encoded, digest), digest))
        permit_programs(self._trusted, ref, layout.manifest)
        if reserve:
            await self.admit(ref, digest, layout.manifest.size_bytes)
        model = await pools.PULLS.run(store.add_model, layout, encoded, reserve=reserve)
        if ref.digest is None:
            await pools.STEPS.run(store.ask, ref, digest)
        return model


async def _admitted(_ref: Ref, _digest: str, _size_bytes: int) -> None:
    """Without a cluster there is no quota of its namespaces."""


def _removed(ref: Ref) -> Conflict:
    return Conflict(f"{ref} was removed while it was pulled; pull it again")
