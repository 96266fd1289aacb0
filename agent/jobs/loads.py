"""Loads: the events of loaders that read a model while it arrives, and the runs that they need first."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download, Sources
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.jobs.events import Events, while_waiting
from p2pcache.agent.jobs.pulls import Pulls
from p2pcache.core import bitset
from p2pcache.errors import NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.tasks import Turns

TICK_S = 0.01  # between two `ready` events of a loader; shorter costs CPU time with several loaders
PROGRESS_S = 0.25  # between two `progress` events, as of a pull
OPENS_S = 5.0  # a loader has opened its model so long after it was told where: it takes milliseconds on an idle machine


@dataclass(slots=True)
class Load:
    """One attached loader."""

    id: str  # a secret of its loader: POST /v1/demand is allowed with it
    client: str
    download: Download
    needed: bool
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Loads:
    """All attached loaders of this agent. It is used on the loop's thread."""

    def __init__(self, context: AgentContext, downloads: DownloadManager, pulls: Pulls) -> None:
        self._context = context
        self._downloads = downloads
        self._pulls = pulls
        self._live: dict[str, Load] = {}
        self._showing = Turns()

    async def events(self, ref: Ref, *, needed: bool, client: str) -> Events:
        """The events of one loader: `resolved`, then `ready` and `progress`, then `done`.

        Args:
            ref: of the model.
            needed: fetch only the runs that the loader demands.
            client: of the call; only it may demand.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as use:
            beginning = asyncio.gather(
                self._pulls.begin_download(ref, use, force=False, whole=not needed)
            )
            waits = while_waiting(beginning, lambda: self._pulls.asked, self._pulls.storage_trouble)
            async with contextlib.aclosing(waits) as waiting:
                async for event in waiting:
                    yield event
            ((resolved, download),) = beginning.result()
            digest, before = resolved.digest, download.sources_before(began)
            manifest = download.swarm.layout.manifest
            named = {
                "ref": str(ref), "digest": digest, "bytes": manifest.size_bytes,
                "models_dir": str(self._context.store.root / "models"),
            }  # fmt: skip
            runs = download.swarm.layout.run_count
            if not download.swarm.complete:
                async with self._attached(download, ref, client, needed=needed) as load:
                    shown = download.swarm.store.arriving
                    arriving = shown.path if shown is not None else ""
                    yield {
                        "event": "resolved", **named, "files": len(manifest.files), "runs": runs,
                        "load": load.id, "arriving": arriving, "bytes_had": download.bytes_before,
                    }  # fmt: skip
                    async with contextlib.aclosing(self._ticks(load, before)) as ticks:
                        async for event in ticks:
                            yield event
            download.ended.result()
            path = await self._downloads.publish_model(download, ref, resolved.generation)
            sources = download.sources(before)
            if ref.digest is not None:
                work = self._set_asked(download, ref)
                self._context.tasks.spawn_contained(work, name=f"asked-{digest[:12]}")
            # The loader has time to open the path that it is told. From then on its open files protect the model.
            asyncio.get_running_loop().call_later(OPENS_S, use.pop_all().close)
            yield {
                "event": "done", **named, "path": path, **sources,
                "bytes_local": max(
                    0, manifest.size_bytes - sources["bytes_origin"] - sources["bytes_peers"]
                ),
                "seconds": round(time.monotonic() - began, 3),
            }  # fmt: skip

    async def _set_asked(self, download: Download, ref: Ref) -> None:
        """Set the tag of a load by digest, if a client asked by it and it still means the model; else forget it.

        A loader that asked by a tag attaches by its digest to an agent that was started anew, which remembers only that
        the tag was asked for.
        """
        asked, digest = self._context.store.removal, download.swarm.digest
        tag = ref._replace(digest=None)
        if not await pools.STEPS.run(asked.is_asked, tag, digest):
            return
        with contextlib.suppress(P2PCacheError):  # the next such load tries again
            generation = await self._pulls.generation_of(tag, digest)
            if not generation:
                await pools.STEPS.run(asked.forget_asked, tag, digest)
                return

            def show() -> None:
                if asked.is_asked(tag, digest):  # it may have been removed since
                    download.swarm.store.publish(tag, generation, back=False)

            await self._downloads.in_turn(digest, lambda: pools.PULLS.run(show))

    async def _ticks(self, load: Load, before: Sources) -> AsyncGenerator[dict[str, object], None]:
        download = load.download
        store, sent, shown_at = download.swarm.store, -1, 0.0
        while not download.ended.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_S):
                    await load.changed.wait()
            load.changed.clear()
            ready = store.have_runs().bit_count()
            if ready != sent:
                sent = ready
                yield {"event": "ready", "runs_ready": ready, **download.sources(before)}
            now = time.monotonic()
            if now - shown_at >= PROGRESS_S:
                shown_at = now
                yield {
                    "event": "progress", "bytes_done": store.bytes_done,
                    "bytes_total": download.bytes_total, **download.sources(before),
                    "peers": download.swarm.peer_count,
                }  # fmt: skip
            await asyncio.sleep(TICK_S)

    @contextlib.asynccontextmanager
    async def _attached(
        self, download: Download, ref: Ref, client: str, *, needed: bool
    ) -> AsyncIterator[Load]:
        load = Load(secrets.token_hex(16), client, download, needed)
        swarm = download.swarm
        with download.client(ref):
            try:
                async with self._showing.of(swarm.digest):
                    await pools.PULLS.run(self._show, download)
                self._listen(download)
                self._live[load.id] = load
                download.ended.add_done_callback(lambda _: load.changed.set())
                yield load
            finally:
                self._live.pop(load.id, None)
                if all(other.download.swarm is not swarm for other in self._live.values()):
                    swarm.store.on_ready = None
                download.forget_wish(load.id)

    def _show(self, download: Download) -> None:
        manifest = self._context.store.manifest(download.swarm.digest)
        if manifest is None:
            raise NotFound(f"model blake3:{download.swarm.digest} was removed from this cache")
        download.swarm.store.show_arriving(manifest)

    def _listen(self, download: Download) -> None:
        """Have the store's threads wake the loaders of this model, at most once in each pass of the loop."""
        loop, pending = asyncio.get_running_loop(), False
        digest = download.swarm.digest

        def ring() -> None:
            nonlocal pending
            pending = False
            for load in self._live.values():
                if load.download.swarm.digest == digest:
                    load.changed.set()

        def on_ready() -> None:
            nonlocal pending
            if not pending:
                pending = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(ring)

        download.swarm.store.on_ready = on_ready

    def on_demand(
        self, load_id: str, client: str, pairs: list[tuple[int, int]], *, urgent: bool
    ) -> int:
        """Note the runs that a loader needs; return how many of them aren't here yet.

        Args:
            load_id: of the attached loader.
            client: of the call.
            pairs: runs as half-open ranges [start, end).
            urgent: the loader waits for them now.

        Raises:
            NotFound: no load of this client has that id, or has it any more.
            UsageError: the model has no such runs.
        """
        load = self._live.get(load_id)
        if load is None or load.client != client:
            raise NotFound(
                "no such load is attached; the agent may have been restarted: load again"
            )
        swarm = load.download.swarm
        count, runs = swarm.layout.run_count, 0
        for start, end in pairs:
            if not 0 <= start < end <= count:
                raise UsageError(f"no runs [{start}, {end}): the model has {count}")
            runs |= bitset.full(end - start) << start
        missing = runs & ~swarm.have_runs()
        if load.needed:
            load.download.wish(load.id, runs)
        if urgent and missing:
            load.download.on_urgent(missing)
        return missing.bit_count()
