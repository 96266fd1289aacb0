"""Pulls: the events that each client of a download gets, for a whole model or some of its files."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from p2pcache.agent.downloads.download import Download, Sources, action_of
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.priority import DownloadOrder
from p2pcache.agent.downloads.resolver import Resolved, Resolver
from p2pcache.agent.downloads.spellings import Spellings
from p2pcache.agent.jobs.events import Events, while_waiting
from p2pcache.agent.journal import Journal
from p2pcache.core import bitset
from p2pcache.core.format.file_filter import name_of, pick_paths, runs_of
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import IntegrityError, NotFound
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.store import Store
from p2pcache.io.origins.base import NoContainer

PROGRESS_S = 0.25  # a terminal's bar wants about four a second
PROGRESS_CLIENTS = 50  # each further 50 clients of one model make its progress events as much rarer
QUIET_S = 2.0  # without a byte; progress then says why
_LOOK_S = 0.05  # between two looks whether the wanted files are complete


Bring = Callable[[Ref, str, NotFound], Awaitable[None]]
"""From a tag, the URL of the model that it stands for ("": of none), and the error that it is missing."""


class Pulls:
    """Resolves a ref and follows its download, for each client."""

    def __init__(
        self, store: Store, resolver: Resolver, downloads: DownloadManager, journal: Journal,
        order: DownloadOrder, spellings: Spellings, abandon_after_s: float, bring: Bring | None = None,
    ) -> None:  # fmt: skip
        """`bring`: sees to it that a missing tag of a model of a hub appears; None: nothing does."""
        self._bring = bring
        self._bringing: Counter[str] = Counter()  # how many pulls wait for the import of a URL
        self._store = store
        self._abandon_after_s = abandon_after_s
        self._resolver = resolver
        self._downloads = downloads
        self._order = order
        self._spellings = spellings
        self._journal = journal
        self._models_dir = str(store.root / "models")

    async def resolve(self, ref: Ref, *, force: bool = False, url: str = "") -> Resolved:
        """What a ref means now; `url`: the model of a hub that its tag stands for, brought in if it is missing.

        Raises:
            IntegrityError: the tag went back to an older generation, and `force` isn't set.
            P2PCacheError: as `Resolver.resolve`.
        """
        try:
            resolved = await self._resolver.resolve(ref)
        except NotFound as error:
            if self._bring is None or isinstance(error, NoContainer):
                raise
            if not url:
                await self._bring(ref, "", error)
                raise
            self._bringing[url] += 1
            try:
                await self._bring(ref, url, error)
            finally:
                self._bringing[url] -= 1
                self._bringing += Counter()  # forgets zeros
            resolved = await self._resolver.resolve(ref)
        if ref.digest is None and not force:
            seen = await pools.STEPS.run(self._store.generation_seen, ref)
            if resolved.generation < seen:
                raise IntegrityError(
                    f"tag {ref.short} went back from generation {seen} to {resolved.generation}: the origin was "
                    "restored or tampered with; pull with --force-generation to accept it"
                )
        return resolved

    async def generation_of(self, tag: Ref, digest: str) -> int:
        """The generation by which a tag means this model now; 0: it means another one, or nothing.

        Raises:
            P2PCacheError: that can't be had now.
        """
        try:
            resolved = await self._resolver.resolve(tag, hint=False)
        except NoContainer:
            raise
        except NotFound:
            return 0
        return resolved.generation if resolved.digest == digest else 0

    async def events(
        self, ref: Ref, *, force: bool, include: list[str], exclude: list[str], background: bool, url: str = "",
    ) -> Events:  # fmt: skip
        """`resolved`, `progress` about four times a second, `done`.

        Args:
            ref: of the model.
            force: accept a tag that went back to an older generation.
            include: patterns of the files that are wanted; none: all but `exclude`.
            exclude: patterns of files that aren't wanted.
            background: other pulls go first.
            url: as of `resolve`.

        Raises:
            P2PCacheError: as `begin_download`, or why the fetch failed.
        """
        began = time.monotonic()
        with contextlib.ExitStack() as use:
            some = bool(include or exclude)
            priority = Priority.BACKGROUND if background else Priority.USUAL
            begun = self.begin_download(
                ref, use, force=force, whole=not some, priority=priority, url=url
            )
            work = asyncio.gather(begun)
            waits = while_waiting(
                work,
                lambda: f"the import of {url}" if self._bringing[url] else self.asked,
                self.storage_trouble,
            )
            async with contextlib.aclosing(waits) as waiting:
                async for event in waiting:
                    yield event
            ((resolved, download),) = work.result()
            manifest = download.swarm.layout.manifest
            paths = [file.path for file in manifest.files]
            if some:
                known = list(download.swarm.layout.blob_of_file)
                paths = await pools.WORK.run(pick_paths, known, include, exclude)
                if len(paths) == len(manifest.files):
                    some, download = (
                        False,
                        await self._downloads.join_or_begin(ref, resolved.digest, use),
                    )
            sizes = {file.path: file.size for file in manifest.files}
            size = sum(sizes[path] for path in paths)
            named = {"ref": str(ref), "digest": resolved.digest}
            yield {
                "event": "resolved", **named, "bytes": size, "files": len(paths), "stale": resolved.stale,
                "abandon_after_s": self._abandon_after_s,
                **({"trouble": resolved.trouble} if resolved.trouble else {}),
            }  # fmt: skip
            before = download.sources_before(began)
            follow = (
                self._part(download, ref, paths, before)
                if some
                else self._whole(download, ref, before)
            )
            async with contextlib.aclosing(follow):
                async for event in follow:
                    yield event
            if some:
                path = await self._downloads.publish_files(download, ref, paths)
                named["selection"] = name_of(paths)
            else:
                path = await self._downloads.publish_model(
                    download, ref, resolved.generation, force=force
                )
            sources = download.sources(before)
            moved = not some and any(sources.values())  # else a report would be empty
            had = max(0, size - sources["bytes_origin"] - sources["bytes_peers"])
            yield {
                "event": "done", **named, "path": path, "models_dir": self._models_dir,
                "bytes": size, **sources, "bytes_local": had, "seconds": round(time.monotonic() - began, 3),
                **({"report": self._downloads.report(download)} if moved else {}),
            }  # fmt: skip

    @property
    def asked(self) -> str:
        """Tracker or storage, whichever a resolve waits for now."""
        return self._resolver.asked

    def storage_trouble(self) -> str:
        """Why the last call to storage failed; "": it didn't, or there was none."""
        trouble = self._resolver.storage_trouble
        return "" if trouble is None else str(trouble)

    def _progress(self, download: Download, before: Sources) -> dict[str, object]:
        now = time.monotonic()
        quiet = now - download.swarm.last_progress >= QUIET_S
        trouble = self._why_quiet(download, now) if quiet else ""
        known = {"trouble": trouble} if trouble else {}
        return {"event": "progress", **download.progress(now), **download.sources(before), **known}

    def _why_quiet(self, download: Download, now: float) -> str:
        """Why nothing comes: storage fails, or nobody reads yet, for the tracker may have leased it; "": neither."""
        scheduler = download.swarm.scheduler
        if (trouble := self.storage_trouble()) or scheduler is None:
            return trouble
        return self._resolver.tracker_trouble if scheduler.waits_for(now) == "tracker" else ""

    async def begin_download(
        self, ref: Ref, use: contextlib.ExitStack, *, force: bool, whole: bool,
        priority: Priority = Priority.USUAL, url: str = "",
    ) -> tuple[Resolved, Download]:  # fmt: skip
        """Resolve, and join or start the model's download; a failure goes into the history.

        Args:
            ref: of the model.
            use: until it is closed, nobody removes the model.
            force: accept a tag that went back to an older generation.
            whole: all of the model is wanted, not only runs that a loader will name.
            priority: the priority among the downloads of this node.
            url: as of `resolve`.

        Raises:
            P2PCacheError: as `resolve` and `DownloadManager.join_or_begin`.
        """
        with self._journal.failures(action_of(priority), str(ref)):
            timeline = self._downloads.timeline()
            resolved = await self.resolve(ref, force=force, url=url)
            self._downloads.on_phase(timeline, "resolve")

            def begin() -> Awaitable[Download]:
                return self._downloads.join_or_begin(
                    ref, resolved.digest, use, whole=whole, timeline=timeline
                )

            digest = resolved.digest
            download = await self._order.begin_making_room(begin, ref, digest, priority)
            self._downloads.asked_tags.remember_tag(ref, resolved.digest, resolved.generation)
            self._spellings.learn(ref, download)
            self._order.on_client(download, priority)
            return resolved, download

    async def _whole(self, download: Download, ref: Ref, before: Sources) -> Events:
        with download.client(ref):
            while not download.ended.done():
                pause = PROGRESS_S * (1 + download.clients // PROGRESS_CLIENTS)
                await asyncio.wait([download.ended], timeout=pause)
                yield self._progress(download, before)
            download.ended.result()

    async def _part(
        self, download: Download, ref: Ref, paths: list[str], before: Sources
    ) -> Events:
        """Progress until the chunks of these files are here."""
        layout, store = download.swarm.layout, download.swarm.store
        runs = await pools.WORK.run(runs_of, layout, paths)
        total = sum(layout.run_bytes[run] for run in bitset.members(runs))
        client = f"pull-{id(paths)}"
        with download.client(ref):
            try:
                download.wish(client, runs)
                shown_at = 0.0
                while missing := runs & ~store.have_runs():
                    await asyncio.wait([download.ended], timeout=_LOOK_S)
                    if download.ended.done():
                        download.ended.result()
                    if time.monotonic() - shown_at >= PROGRESS_S:
                        shown_at = time.monotonic()
                        left = sum(layout.run_bytes[run] for run in bitset.members(missing))
                        done = {"bytes_done": total - left, "bytes_total": total}
                        yield {**self._progress(download, before), **done}
            finally:
                download.forget_wish(client)
