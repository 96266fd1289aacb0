"""One model's way onto this node: resolve, manifest, space, swarm, publish. Shared by its clients."""

import asyncio
import logging
import time
from collections.abc import Collection

from p2pcache.agent.journal import Journal
from p2pcache.agent.parts import Parts
from p2pcache.agent.resolver import Resolver
from p2pcache.agent.swarm import Swarm
from p2pcache.core import commands as c
from p2pcache.core import events as e
from p2pcache.core import manifest as manifests
from p2pcache.core.compilecache import permit_programs
from p2pcache.core.events import Source
from p2pcache.core.layout import Layout
from p2pcache.core.messages import Enter, Exit
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.timeline import Timeline
from p2pcache.errors import Conflict, P2PCacheError, TimedOut, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.modelstore import ModelStore
from p2pcache.io.tasks import Turns

log = logging.getLogger(__name__)

PART_END_S = (
    1.0  # a part that nobody waits for any more has ended; clients come a moment after `begin`
)
SHOWN_S = 5.0  # clients show a finished model at once; then its time is complete, and noted
TICK_S = 0.25  # how often a running pull looks at flushing, clients and trouble
RATE_WINDOW_S = 5.0  # the rate that progress shows is a mean over so long


class Download:
    """The fetch of one model. Any number of clients wait for it; it ends once, for all of them."""

    def __init__(
        self, ref: Ref, swarm: Swarm, timeline: Timeline, started: float, started_unix: float, *,
        whole: bool,
    ) -> None:  # fmt: skip
        self.ref = ref
        self.swarm = swarm
        self.timeline = timeline
        self.noted = False  # in the history
        self.whole = whole  # somebody wants all of it
        self._wishes: dict[str, int] = {}  # else: what each loader needs (bits over runs)
        self._urgent = 0  # what loaders waited for before the swarm was asked for anything
        self.started = started  # monotonic
        self.started_unix = started_unix
        self.clients = 0
        self.bytes_before = swarm.bytes_done
        self._traffic_before = dict(swarm.traffic)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples: list[tuple[float, int]] = []

    @property
    def bytes_total(self) -> int:
        """Distinct bytes of the model."""
        return self.swarm.layout.total_bytes

    @property
    def wanted(self) -> int:
        """Runs that somebody wants (bits)."""
        union = 0
        for runs in self._wishes.values():
            union |= runs
        return c.ALL if self.whole else union

    def wish(self, who: str, runs: int) -> None:
        """A loader needs these runs, too."""
        before = self._wishes.get(who, 0)
        if runs & ~before:
            self._wishes[who] = before | runs
            self._tell_wanted()

    def forget_wish(self, who: str) -> None:
        """A loader has left."""
        if self._wishes.pop(who, 0):
            self._tell_wanted()

    def demand(self, runs: int) -> None:
        """A loader waits for these runs (bits)."""
        if self.swarm.scheduler is None:
            self._urgent |= runs
        self.swarm.wish(e.Demanded(runs))

    def start(self) -> None:
        """Ask for what is wanted, what loaders wait for first."""
        self.swarm.start(self.wanted)
        if self._urgent:
            self.swarm.wish(e.Demanded(self._urgent))

    def want_whole(self) -> None:
        """Somebody wants all of it now."""
        self.whole = True
        self.swarm.wish(e.Wanted(c.ALL))

    def _tell_wanted(self) -> None:
        if not self.whole:
            self.swarm.wish(e.Wanted(self.wanted))

    def fail(self, error: P2PCacheError) -> None:
        """End it badly, once."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # heard, even when no client is left

    def finish(self) -> None:
        """End it well, once."""
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def error(self) -> P2PCacheError | None:
        """What it ended with; None: well, or not yet."""
        error = self.ended.exception() if self.ended.done() else None
        return error if isinstance(error, P2PCacheError) else None

    def sources(self) -> dict[str, int]:
        """Bytes that this fetch took, by source."""
        before, now = self._traffic_before, self.swarm.traffic
        return {
            "bytes_origin": now[Source.ORIGIN] - before[Source.ORIGIN],
            "bytes_peers": now[Source.PEER] - before[Source.PEER],
            "bytes_local": now[Source.LOCAL] - before[Source.LOCAL],
        }

    def report(self, now: float) -> dict[str, object]:
        """Where the time goes or went, as docs/api.md has it."""
        return {"bytes": self.bytes_total, **self.sources(), **self.timeline.report(now)}

    def progress(self, now: float) -> dict[str, object]:
        """How far it is, as docs/api.md has it."""
        return {
            "bytes_done": self.swarm.bytes_done, "bytes_total": self.bytes_total, **self.sources(),
            "peers": self.swarm.peer_count, "rate": round(self.rate(now)),
        }  # fmt: skip

    def rate(self, now: float) -> float:
        """Bytes per second over the last few seconds."""
        done = self.swarm.bytes_done
        self._samples.append((now, done))
        while len(self._samples) > 2 and self._samples[0][0] < now - RATE_WINDOW_S:
            self._samples.pop(0)
        begin, had = self._samples[0]
        if now - begin < 0.2:
            return (done - self.bytes_before) / max(0.2, now - self.started)
        return (done - had) / (now - begin)


class Downloads:
    """All models of this agent: those that are only served, and those that are being pulled."""

    def __init__(
        self, parts: Parts, resolver: Resolver, settings: SwarmSettings, journal: Journal
    ) -> None:
        self.swarms: dict[str, Swarm] = {}
        self.running: dict[str, Download] = {}
        self._parts = parts
        self._resolver = resolver
        self._settings = settings
        self._journal = journal
        self._trusted = parts.settings.compile_cache_namespaces
        self._opening = Turns()
        self._unnoted: set[Download] = set()  # done, and not in the history yet

    async def seed_all(self) -> None:
        """Serve what the cache holds from earlier lives, partial models included."""
        for known in await asyncio.to_thread(self._parts.store.models):
            try:
                model = await asyncio.to_thread(self._parts.store.get, known.digest)
            except P2PCacheError as error:
                log.warning("model blake3:%s in the cache can't be used: %s", known.digest, error)
                continue
            if model is not None:
                self.add(model, known.tags[0].short if known.tags else "")

    def add(self, model: ModelStore, label: str) -> Swarm:
        """Take part in a model's swarm with what the store has of it; `label`: a ref, for people."""
        swarm = self.swarms.get(model.digest)
        if swarm is None:
            swarm = self.swarms[model.digest] = Swarm(self._parts, model, self._settings)
            swarm.label = label
            self._unattended(swarm)
            self._parts.net.add_swarm(swarm)
            if self._parts.link is not None:
                self._parts.link.send(Enter(swarm.state()))
        return swarm

    def refuse_while_pulled(self, ref: Ref) -> None:
        """A model's first pull gives it its tag only at the end; until then the ref is taken.

        Raises:
            Conflict: this very ref is being pulled.
        """
        for digest, download in self.running.items():
            if ref.digest in (None, digest) and download.ref.tag_key == ref.tag_key:
                raise Conflict(f"{ref} is being pulled right now; stop the pull or wait for it")

    async def forget(self, digest: str) -> None:
        """Leave a model's swarm, before its bytes go.

        Raises:
            Conflict: it is being pulled.
        """
        if digest in self.running:
            raise Conflict("the model is being pulled right now; stop the pull or wait for it")
        swarm = self.swarms.pop(digest, None)
        if swarm is not None:
            swarm.pause()
            self._parts.net.remove_swarm(digest)
            if self._parts.link is not None:
                self._parts.link.send(Exit(digest))

    def stop(self) -> None:
        """End every running pull: the agent is going away."""
        for download in self.running.values():
            download.fail(Unreachable("the agent is stopping; pull again: it resumes"))
        for done in list(self._unnoted):
            self._note(done)

    def timeline(self) -> Timeline:
        """Of a pull that is asked for now."""
        return Timeline(self._parts.now())

    def reached(self, timeline: Timeline, phase: str) -> None:
        """A phase of a pull has ended now."""
        timeline.reached(phase, self._parts.now())

    def report(self, download: Download) -> dict[str, object]:
        """Where a pull's time goes or went."""
        return download.report(self._parts.now())

    async def begin(
        self, ref: Ref, digest: str, *, whole: bool = True, timeline: Timeline | None = None
    ) -> Download:
        """Join the running fetch of a model, or start one.

        Args:
            ref: what it is called by the one who wants it.
            digest: of the model.
            whole: whether all of it is wanted; else only what `Download.wish` will name.
            timeline: of the client's pull; that of who comes first is the fetch's.

        Raises:
            NoSpace: checked before the first byte.
            P2PCacheError: the manifest can't be had, is invalid, or has programs that aren't trusted.
        """
        async with self._opening.of(digest):
            swarm = self.swarms.get(digest)
            permit_programs(self._trusted, ref, swarm.layout.manifest if swarm else None)
            running = self.running.get(digest)
            if running is not None:
                if whole and not running.whole:
                    await self._open(ref, digest)  # checks the space for all of it
                    running.want_whole()
                return running
            if swarm is not None and not await asyncio.to_thread(swarm.store.recheck):
                swarm.lost()
            if swarm is None or not swarm.complete:
                swarm = self.add(await self._open(ref, digest, reserve=whole), ref.short)
            swarm.label = ref.short
            timeline = timeline or self.timeline()
            self.reached(timeline, "manifest")
            download = Download(
                ref, swarm, timeline, self._parts.now(), time.time(), whole=whole
            )  # fmt: skip
            if swarm.complete:
                self._journal.hits += 1
                download.noted = True
                download.finish()
                return download
            self.running[digest] = download
            swarm.store.pin()
            swarm.on_finished, swarm.on_failed = download.finish, download.fail
            self._parts.tasks.spawn_contained(self._run(download), name=f"pull-{digest[:12]}")
            return download

    async def publish(self, download: Download, ref: Ref, generation: int) -> str:
        """Make the finished model visible under `ref`; returns its path below the models directory."""
        swarm = download.swarm
        seen = None if ref.digest is not None else generation  # only a tag has a generation
        async with self._opening.of(swarm.digest):
            try:
                if not download.noted:
                    await asyncio.to_thread(swarm.store.flush)
                    self.reached(download.timeline, "flush")
                path = await asyncio.to_thread(swarm.store.publish, ref, seen)
                self.reached(download.timeline, "publish")
            finally:
                self._note(download)
            if not download.clients:
                await asyncio.to_thread(swarm.store.hide_arriving)
            return path

    async def publish_files(self, download: Download, ref: Ref, paths: Collection[str]) -> str:
        """Make some files visible, whose chunks are here; returns their path below the models directory."""
        store = download.swarm.store
        async with self._opening.of(store.digest):
            return await asyncio.to_thread(self._parts.store.publish_files, store, ref, paths)

    async def _open(self, ref: Ref, digest: str, *, reserve: bool = True) -> ModelStore:
        store = self._parts.store
        encoded = await asyncio.to_thread(store.manifest, digest)
        if encoded is None:
            encoded = await self._resolver.manifest(digest)
        layout = await asyncio.to_thread(lambda: Layout(manifests.decode(encoded, digest), digest))
        permit_programs(self._trusted, ref, layout.manifest)
        return await asyncio.to_thread(store.add_model, layout, encoded, reserve=reserve)

    async def _run(self, download: Download) -> None:
        """Drive one fetch to its end: local copies first, then the swarm, flushing as bytes come."""
        swarm = download.swarm
        try:
            copied = await asyncio.to_thread(swarm.store.copy_local)
            if copied:
                swarm.proved(copied, Source.LOCAL)
            self.reached(download.timeline, "local")
            download.timeline.expect(download.bytes_total - swarm.bytes_done)
            swarm.on_bytes = download.timeline.took
            download.start()
            if swarm.complete:
                download.finish()
            await self._watch(download)
        except P2PCacheError as error:
            download.fail(error)
        finally:
            self.running.pop(swarm.digest, None)
            self._unattended(swarm)
            if not swarm.complete:
                swarm.pause()
            swarm.store.unpin()
            download.fail(Unreachable("the agent is stopping; pull again: it resumes"))
            self._unnoted.add(download)
            if download.error is not None or not download.whole:
                self._note(download)
            else:
                asyncio.get_running_loop().call_later(SHOWN_S, self._note, download)

    def _note(self, download: Download) -> None:
        """Into the history, once: by who shows the model, else when nobody does."""
        self._unnoted.discard(download)
        if download.noted:
            return
        download.noted = True
        now, swarm = self._parts.now(), download.swarm
        self._journal.note(
            "pull", ref=str(download.ref), digest=swarm.digest,
            size_bytes=download.bytes_total if download.whole else swarm.bytes_done,
            seconds=now - download.started, sources=download.sources(),
            error=download.error, report=download.report(now),
        )  # fmt: skip

    def _unattended(self, swarm: Swarm) -> None:
        """No client waits: bytes that a check found bad are fetched again, then shown again."""

        def mended() -> None:
            work = asyncio.to_thread(self._show_again, swarm)
            self._parts.tasks.spawn_contained(work, name=f"mend-{swarm.digest[:12]}")

        def failed(error: P2PCacheError) -> None:
            log.warning("blake3:%s: %s", swarm.digest, error)
            swarm.pause()

        swarm.on_finished, swarm.on_failed = mended, failed
        swarm.on_bytes = lambda *_: None

    def _show_again(self, swarm: Swarm) -> None:
        for ref in self._parts.store.tags_of(swarm.digest):
            swarm.store.publish(ref, None)

    async def _watch(self, download: Download) -> None:
        settings = self._parts.settings
        swarm = download.swarm
        flushed = wanted = self._parts.now()
        while not download.ended.done():
            began = self._parts.now()
            held_up = swarm.scheduler.waits_for(began) if swarm.scheduler is not None else ""
            await asyncio.wait([download.ended], timeout=TICK_S)
            now = self._parts.now()
            download.timeline.waited(held_up, now - began)
            due = now - flushed >= settings.flush_interval_s and swarm.unflushed_bytes > 0
            if due or swarm.unflushed_bytes >= settings.flush_bytes:
                swarm.unflushed_bytes, flushed = 0, now
                await asyncio.to_thread(swarm.store.flush)
            if download.clients:
                wanted = now
            elif swarm.idle and not download.whole and now - wanted > PART_END_S:
                await asyncio.to_thread(swarm.store.flush)
                if not download.clients and not download.whole:
                    download.finish()
            elif now - wanted > settings.abandon_after_s:
                raise TimedOut("no client waits for this pull any more; pull again: it resumes")
            trouble = swarm.trouble(now)
            if trouble is not None:
                raise trouble
        download.ended.result()
        download.timeline.finished(self._parts.now())
