"""Imports: a model comes from a configured source into this cache, and its tag into the origin.

Each byte is read once. Afterwards this node seeds the model, and other nodes read the source by lease.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.priority import EvictFor
from p2pcache.agent.jobs.events import WAITING_S, Events
from p2pcache.agent.jobs.pushes import PROGRESS_S, Push, Pushes
from p2pcache.core.format.file_filter import pick_paths
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File, encode, make_manifest
from p2pcache.core.format.source_record import SourceRecord
from p2pcache.core.swarm.events import Source as Taken
from p2pcache.core.units import format_bytes
from p2pcache.errors import NoSpace, NotAllowed, OverQuota, P2PCacheError, Unreachable
from p2pcache.ids import Ref, RunSet
from p2pcache.io.config import redacted
from p2pcache.io.disk.disk import disk_errors, free_bytes
from p2pcache.io.imports.import_folder import FOLDER, ImportFolder, folder_name, sweep
from p2pcache.io.imports.importing import Importing, Progress, record_of
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.source import Source, Sources
from p2pcache.io.tasks import Threads

AT_ONCE = 4  # imports; each reads several files at once


class Wish(NamedTuple):
    """What is to be imported. Equal wishes share one import."""

    url: str  # as a person typed it; it must lie in a configured source
    ref: Ref  # the tag to write
    spelling: str = ""  # how its name is written
    include: tuple[str, ...] = ()  # patterns as of a pull
    exclude: tuple[str, ...] = ()
    copy: bool = False  # store the blobs in the origin, too
    force: bool = False  # write the tag even if somebody else moves it meanwhile


class Imported(NamedTuple):
    """The result of an import."""

    digest: str
    generation: int
    bytes_read: int  # from the source, by this try
    bytes_total: int
    files: int


@dataclass(slots=True)
class Import:
    """One import under way."""

    ended: "asyncio.Future[Imported]"
    source: str  # which is read, for people
    followers: int = 0
    progress: Callable[[], Progress] | None = None
    uploaded: Callable[[], tuple[int, int]] | None = None  # with `copy`: bytes done, bytes in all
    cancelled: threading.Event = field(default_factory=threading.Event)


class Imports:
    """The imports of this agent."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, pushes: Pushes, evict_for: EvictFor,
        sources: Sources,
    ) -> None:  # fmt: skip
        self._context = context
        self._downloads = downloads
        self._pushes = pushes
        self._evict_for = evict_for
        self._sources = sources
        self._running: dict[Wish, Import] = {}
        # Never joined, because a source may hang.
        self._threads = Threads(AT_ONCE, name="importing")

    def source_for(self, url: str, ref: Ref) -> tuple[Source, str]:
        """The source that a URL lies in, and the place inside of it.

        Raises:
            UsageError: no configured source holds it.
            NotAllowed: it isn't for the ref's namespace.
        """
        source, place = self._sources.holding(url)
        named = {name.strip() for name in source.settings.namespaces.split(",")}
        if "*" not in named and ref.namespace not in named:
            raise NotAllowed(
                f"source {source.name!r} isn't for namespace {ref.namespace!r} (namespaces in its section)"
            )
        return source, place

    async def import_events(self, wish: Wish) -> Events:
        """`waiting` until the source tells its files, `progress` about four times a second, then `done`.

        An import that nobody follows any more ends soon.

        Raises:
            UsageError: no configured source holds it, no origin for the tag, or what is there can't be a model.
            NotAllowed: the source isn't for the ref's namespace.
            P2PCacheError: the source, the disk or the origin failed.
        """
        began = said = self._context.now()
        job = self._follow(wish)
        try:
            while not job.ended.done():
                await asyncio.wait([job.ended], timeout=PROGRESS_S)
                now = self._context.now()
                if (event := _progress(job)) is not None:
                    yield event
                elif now - said >= WAITING_S and not job.ended.done():
                    said = now
                    yield {"event": "waiting", "for": job.source, "seconds": round(now - began, 1)}
            result = job.ended.result()
        finally:
            self._leave(wish, job)
        yield {
            "event": "done", "ref": str(wish.ref), "digest": result.digest, "bytes": result.bytes_total,
            "bytes_read": result.bytes_read, "files": result.files, "generation": result.generation,
            "seconds": round(self._context.now() - began, 3),
        }  # fmt: skip

    async def import_shared(self, wish: Wish) -> Imported:
        """Import, or wait for the same import that runs already. The errors are those of `import_events`."""
        job = self._follow(wish)
        try:
            return await asyncio.shield(job.ended)
        finally:
            self._leave(wish, job)

    def on_stopping(self) -> None:
        """End all imports; those who follow them hear so at once."""
        for job in self._running.values():
            _end(job)

    def _follow(self, wish: Wish) -> Import:
        job = self._running.get(wish)
        if job is None or job.cancelled.is_set():
            source, place = self.source_for(wish.url, wish.ref)
            self._pushes.need_origin()
            url = redacted(source.settings.url)
            job = Import(
                asyncio.get_running_loop().create_future(), f"source {source.name} ({url})"
            )
            self._running[wish] = job
            work = self._work(wish, job, source, place)
            self._context.tasks.spawn_contained(work, name=f"import-{source.name}")
        job.followers += 1
        return job

    def _leave(self, wish: Wish, job: Import) -> None:
        job.followers -= 1

        def abandon() -> None:
            if not job.followers and self._running.get(wish) is job:
                job.cancelled.set()

        if not job.followers and not job.ended.done():
            asyncio.get_running_loop().call_later(self._context.settings.abandon_after_s, abandon)

    async def _work(self, wish: Wish, job: Import, source: Source, place: str) -> None:
        try:
            result = await self._import(wish, job, source, place)
        except P2PCacheError as error:
            _fail(job, error)
        else:
            if not job.ended.done():
                job.ended.set_result(result)
        finally:
            _end(job)
            if self._running.get(wish) is job:
                del self._running[wish]

    async def _import(self, wish: Wish, job: Import, source: Source, place: str) -> Imported:
        files = await self._threads.run(_listed, source, place, wish)
        parent = self._context.store.root / FOLDER
        path = parent / folder_name(source.name, place)
        await self._threads.run(sweep, parent)
        folder = await self._threads.run(ImportFolder, path)
        try:
            known = [whole for file in files if (whole := folder.whole(file)) is not None]
            if len(known) == len(files):  # what was refused before costs no byte of the source
                await self._admitted(wish, folder, known)
            await self._make_room(files, folder)
            if not wish.copy:
                await self._threads.run(source.need_parts, files, job.cancelled.is_set)
            reading = Importing(
                source, files, folder, keep=True, limiter=self._context.origin.limiter,
                cancelled=job.cancelled.is_set,
            )  # fmt: skip
            job.progress = lambda: reading.progress
            hashed = await self._threads.run(reading.read_files)
            layout = await self._admitted(wish, folder, hashed)
            with self._downloads.pushes.request(layout.digest):
                await self._seed(layout, folder)
                record = None if wish.copy else record_of(source, files, hashed)
                push = self._begin_tag(wish, layout.digest, record)
            if wish.copy:
                job.uploaded = lambda: (push.bytes_done, push.bytes_total)
            generation = (await asyncio.shield(push.ended)).generation
            await self._threads.run(folder.discard)
            progress = reading.progress
            return Imported(
                layout.digest, generation, progress.bytes_read, progress.bytes_total, len(files)
            )
        finally:
            folder.close()

    async def _admitted(self, wish: Wish, folder: ImportFolder, hashed: list[File]) -> Layout:
        """The model that these files are, if its namespace has room for it; else their bytes go.

        Raises:
            OverQuota: it hasn't.
        """
        layout = await self._threads.run(lambda: Layout(make_manifest(hashed)))
        try:
            await self._downloads.admit(wish.ref, layout.digest, layout.manifest.size_bytes)
        except OverQuota:
            await self._threads.run(folder.drop_parts, [file.path for file in hashed])
            raise
        return layout

    async def _make_room(self, files: list[SourceFile], folder: ImportFolder) -> None:
        """Check that the disk holds what is still to come, before the first byte of it."""
        store = self._context.store
        while True:
            coming = await self._threads.run(lambda: sum(folder.lacks(file) for file in files))
            free = await self._threads.run(free_bytes, store.root)
            quota = store.limits.quota_bytes
            usage = await self._threads.run(store.usage)
            short = coming + store.min_free_bytes - free
            over = usage.filled_bytes + coming - quota if quota else 0
            if not coming or max(short, over) <= 0:
                return
            lacking = format_bytes(max(short, over))
            error = NoSpace(
                f"the model needs {format_bytes(coming)} more in {store.root}, {lacking} more than are free; make room "
                "with `p2pcache rm` or `p2pcache prune --all`",
                coming_bytes=coming, short_bytes=max(short, over),
            )  # fmt: skip
            if not await self._evict_for(error, ""):
                raise error

    async def _seed(self, layout: Layout, folder: ImportFolder) -> None:
        """Take the bytes into the cache, and serve them."""
        encoded = await self._threads.run(encode, layout.manifest)
        swarm = await self._downloads.add_pushed(layout, encoded, reserve=False)
        fresh = await self._threads.run(_adopt, swarm.store, folder)
        if fresh:
            swarm.on_proved(fresh, Taken.ORIGIN)

    def _begin_tag(self, wish: Wish, digest: str, record: SourceRecord | None) -> Push:
        push = self._pushes.start(
            wish.ref, digest, spelling=wish.spelling, force=wish.force, repair=False, record=record
        )
        if record is not None:
            self._context.origin.sourced.unlearn(digest)
        return push


def _listed(source: Source, place: str, wish: Wish) -> list[SourceFile]:
    """The wanted files of a place."""
    files = source.files(place)
    wanted = set(pick_paths([file.path for file in files], wish.include, wish.exclude))
    return [file for file in files if file.path in wanted]


def _adopt(model: ModelStore, folder: ImportFolder) -> RunSet:
    """Move all parts into the cache; returns the runs that became complete."""
    before = model.have_runs()
    with disk_errors(str(folder.path)):
        parent = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        done: set[int] = set()
        for path, number in model.layout.blob_of_file.items():
            if number not in done and model.layout.blobs[number].size:
                done.add(number)
                model.adopt(number, parent, Path(folder.part(path)).name)
        model.copy_local()
        model.flush()
    finally:
        os.close(parent)
    return model.have_runs() & ~before


def _end(job: Import) -> None:
    """End an import that hasn't ended: the threads that read for it end soon."""
    job.cancelled.set()
    _fail(job, Unreachable("the agent is stopping; import again: it goes on where it was"))


def _fail(job: Import, error: P2PCacheError) -> None:
    if not job.ended.done():
        job.ended.set_exception(error)
        job.ended.exception()  # asyncio logs an exception that nobody has asked for


def _progress(job: Import) -> dict[str, object] | None:
    if job.uploaded is not None:
        done, total = job.uploaded()
        return {"event": "progress", "phase": "upload", "bytes_done": done, "bytes_total": total}
    if job.progress is None:
        return None
    now = job.progress()
    return {
        "event": "progress", "phase": "import", "bytes_done": now.bytes_done, "bytes_total": now.bytes_total,
    }  # fmt: skip
