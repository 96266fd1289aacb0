"""Pushes: blobs arrive over the local socket, are proved into the cache, then uploaded.

A push is an import into this cache first, so this node seeds the model afterwards. The client must send every
blob that the cache lacks: to name a digest gives no access to its bytes.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import NamedTuple

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.priority import EvictFor
from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.agent.jobs.events import Events
from p2pcache.agent.jobs.received_blobs import receive_blob
from p2pcache.agent.journal import Journal
from p2pcache.agent.uses.begun_pushes import PushRequest
from p2pcache.core import bitset
from p2pcache.core.format import manifest as manifests
from p2pcache.core.format.compile_cache_key import permit_programs
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.source_record import SourceRecord
from p2pcache.core.format.tag_record import TagRecord, decode_tag
from p2pcache.core.swarm.events import Source
from p2pcache.errors import (
    NoSpace,
    NotFound,
    OverQuota,
    P2PCacheError,
    Unreachable,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.http.bodies import Body
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.origins.repo import OriginRepo, PushResult
from p2pcache.io.tasks import Turns

log = logging.getLogger(__name__)

MOVED_S = 2.0  # a tracker reads a tag anew after so long by itself
OPENING_S = 5.0  # storage that takes longer is said to be opening
PROGRESS_S = 0.25  # between two events, as of a pull
CHECKS = 2  # manifests that are checked at once


class Missing(NamedTuple):
    """A blob that the client has to send, and one path under which it has it."""

    blob: str
    path: str


class Pushes:
    """The pushes of this agent. Each is of one manifest."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, resolver: Resolver, journal: Journal,
        evict_for: EvictFor, need_signature: Callable[[Ref, str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._evict_for = evict_for
        self._need_signature = need_signature
        self._context = context
        self._downloads = downloads
        self._resolver = resolver
        self._journal = journal
        # A manifest may have 256 MiB, and becomes a few times as much while it is checked.
        self._checking = asyncio.Semaphore(CHECKS)
        self._turns = Turns()

    async def take_in_turn(
        self, client: str, encoded: bytes, unproved: Callable[[Layout], set[str]]
    ) -> tuple[str, list[Missing]]:
        """`take_manifest`, in turn: one of a client, and few of all clients at once."""
        async with self._turns.of(client), self._checking:
            return await self.take_manifest(encoded, unproved)

    async def take_manifest(
        self, encoded: bytes, unproved: Callable[[Layout], set[str]]
    ) -> tuple[str, list[Missing]]:
        """Take a manifest; return its digest and the blobs that the client must send.

        Args:
            encoded: the manifest's bytes.
            unproved: gives the ids of blobs that the caller must send although they are here; it may block.

        Raises:
            InvalidManifest: a rule of format v1 is broken.
            NoSpace: this cache can't hold the model.
        """
        layout = await pools.WORK.run(lambda: Layout(manifests.decode(encoded)))
        with self._downloads.pushes.request(layout.digest) as request:
            try:
                swarm = await self._add(layout, encoded)
            except P2PCacheError:
                request.last = True
                raise
            model = swarm.store
            copied = await pools.WORK.run(model.copy_local)
            if copied:
                swarm.on_proved(copied, Source.LOCAL)
            return layout.digest, await pools.WORK.run(lambda: _missing(model, unproved(layout)))

    async def _add(self, layout: Layout, encoded: bytes) -> SwarmDriver:
        """Make a model known; on a full disk pushes that never ended, and old models, make room for it."""
        while True:
            try:
                return await self._downloads.add_pushed(layout, encoded)
            except NoSpace as error:
                made = await self._downloads.remove_begun_push()
                if not (made or await self._evict_for(error, layout.digest)):
                    raise

    async def receive(self, digest: str, blob_id: str, body: Body) -> int:
        """Prove and store one blob from a request's body; returns its bytes.

        Raises:
            NotFound: no such push, or the manifest doesn't name the blob.
            IntegrityError: the bytes don't match the manifest: the file changed meanwhile.
        """
        swarm = self._downloads.swarms.get(digest)
        if swarm is None:
            raise NotFound("no push of this manifest is under way; start the push again")
        layout = swarm.layout
        number = layout.blob_of_id.get(blob_id)
        if number is None:
            raise NotFound("the manifest names no such blob")
        blob = layout.blobs[number]
        with self._downloads.pushes.request(digest):
            await receive_blob(swarm.store, blob, body)
            fresh = await pools.WORK.run(lambda: bitset.of(set(map(layout.run_of, blob.chunks))))
            swarm.on_proved(fresh & swarm.store.have_runs(), Source.LOCAL)
        return blob.size

    def start(
        self, ref: Ref, digest: str, *, spelling: str = "", force: bool, repair: bool,
        record: SourceRecord | None = None,
    ) -> "Push":  # fmt: skip
        """Upload the blobs that the origin lacks, then the manifest, then the tag; then publish here.

        The upload goes on when the client leaves.

        Args:
            ref: the tag to write.
            digest: of a manifest; all its blobs are here.
            spelling: how the name is written; "": in lower case.
            force: write the tag even if another push moves it meanwhile.
            repair: upload also blobs that the origin has, because its bytes were found wrong.
            record: where the blobs lie; then no blob is uploaded.

        Raises:
            NotFound: the model isn't complete here.
            NotAllowed: it is a compile cache, and its namespace isn't trusted with programs.
            UsageError: no origin to push to.
            Unreachable: the tracker, which names the origin, can't be asked now, or the origin is being opened.
        """
        swarm = self._downloads.swarms.get(digest)
        if swarm is None or not swarm.complete:
            raise NotFound("the model isn't complete in this cache; send its missing blobs first")
        trusted = self._context.settings.compile_cache_namespaces
        permit_programs(trusted, ref, swarm.layout.manifest)
        repo = self.need_origin()
        push = Push(swarm.layout.manifest.size_bytes)
        upload = partial(
            self._upload_blocking, push, repo, spelling=spelling, force=force, repair=repair, record=record,
        )  # fmt: skip
        held = contextlib.ExitStack()
        request = held.enter_context(self._downloads.pushes.request(digest))
        self._downloads.protect(swarm, held)
        work = self._upload(push, upload, swarm.store, ref, request, held)
        self._context.tasks.spawn_contained(work, name=f"push-{digest[:12]}")
        return push

    def need_origin(self) -> OriginRepo:
        """The origin to push to.

        Raises:
            UsageError: there is none.
            Unreachable: the tracker, which names it, can't be asked now, or it is being opened.
        """
        repo = self._resolver.repo
        if repo is None:
            link, trouble = self._context.link, self._resolver.origin_error
            if trouble is not None or (link is not None and not link.connected):
                raise self._resolver.no_answer("can't push")
            if not self._context.origin.settled.is_set():
                raise Unreachable("the origin is being opened; push again in a moment")
            raise UsageError(
                "this agent has no origin to push to; start it with --origin, or with a tracker"
            )
        return repo

    async def events(
        self, ref: Ref, digest: str, *, spelling: str = "", force: bool, repair: bool
    ) -> Events:
        """`progress` about four times a second, then `done`. The arguments and errors are `start`'s."""
        began = time.monotonic()
        try:
            with self._downloads.pushes.request(digest) as request:
                await self._await_origin()
                with self._journal.failures("push", str(ref)):
                    await self._admit(ref, digest, request)
                    push = self.start(ref, digest, spelling=spelling, force=force, repair=repair)
        except OverQuota:
            await self._downloads.remove_nameless(digest)  # no sooner: its own request protects it
            raise
        while not push.ended.done():
            await asyncio.wait([push.ended], timeout=PROGRESS_S)
            trouble = self._resolver.storage_trouble
            yield {
                "event": "progress", "bytes_done": push.bytes_done, "bytes_total": push.bytes_total,
                **({"trouble": str(trouble)} if trouble is not None else {}),
            }  # fmt: skip
        result = push.ended.result()
        yield {
            "event": "done", "ref": str(ref), "digest": digest, "bytes": push.bytes_total,
            "bytes_uploaded": result.bytes_uploaded, "generation": result.generation,
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip

    async def _await_origin(self) -> None:
        """Wait a moment, right after a start, until storage is known."""
        await self._resolver.first_contact()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                await self._context.origin.settled.wait()

    async def _admit(self, ref: Ref, digest: str, request: PushRequest) -> None:
        if (known := self._downloads.swarms.get(digest)) is not None:
            try:
                await self._downloads.admit(ref, digest, known.layout.manifest.size_bytes)
            except OverQuota:
                request.last = True
                raise

    async def _upload(
        self, push: "Push", upload: Callable[[ModelStore, Ref], PushResult], store: ModelStore, ref: Ref,
        request: PushRequest, held: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        """Upload, publish, and say how it ended. `held`: what protects the model until then."""
        began, home = time.monotonic(), self._context.store
        with held:
            try:
                await self._need_signature(ref, store.digest)
                # If it is higher than what the push writes, storage was restored; else another push was later.
                seen = await pools.STEPS.run(home.generation_seen, ref)
                result = await pools.WORK.run(upload, store, ref)
                number = result.generation
                await pools.WORK.run(store.publish, ref, number, back=number <= seen)
                request.last = True
                self._downloads.swarms[store.digest].show_as(home.written(ref))
                if (link := self._context.link) is not None:
                    try:
                        await link.ask("moved", ref.short, timeout_s=MOVED_S)
                    except P2PCacheError as error:  # the push is done all the same
                        log.info("%s: the tracker wasn't told that it moved: %s", ref.short, error)
            except P2PCacheError as error:
                push.fail(error)
                request.last = not error.retryable  # else it is likely to be tried again soon
            else:
                log.info("pushed %s blake3:%s generation %d", ref.short, store.digest, number)
                push.ended.set_result(result)
            finally:
                push.fail(Unreachable("the agent is stopping; push again: it resumes"))
                self._journal.record(
                    "push", ref=str(ref), digest=store.digest, size_bytes=push.bytes_total,
                    seconds=time.monotonic() - began, error=push.error,
                )  # fmt: skip

    def _upload_blocking(
        self, push: "Push", repo: OriginRepo, store: ModelStore, ref: Ref, *,
        spelling: str, force: bool, repair: bool, record: SourceRecord | None,
    ) -> PushResult:  # fmt: skip
        tls = self._context.tls
        if tls is not None and not repo.origin.conditional_put:
            tls.member.need_pusher()  # the tracker would say so, too, when everything is uploaded
        store.publish()  # every blob under its own name, durable
        blobs = self._context.store.root / "blobs"

        def open_blob(number: int) -> int:
            return os.open(blobs / store.layout.blobs[number].id, os.O_RDONLY | os.O_CLOEXEC)

        link, loop = self._context.link, push.ended.get_loop()

        def through_tracker(ref: Ref, digest: str, expected: int | None) -> TagRecord:
            assert link is not None
            wish = {"ref": ref.short, "digest": digest, "expect_generation": expected}
            asking = link.ask("tag_put", msgspec.json.encode(wish).decode(), timeout_s=60)
            answer = asyncio.run_coroutine_threadsafe(asking, loop).result()
            return decode_tag(answer.data)

        result = repo.push(
            store.layout, ref, spelling=spelling, open_blob=open_blob, on_bytes=push.count, force=force,
            repair=repair, record=record, write_tag=through_tracker if link is not None else None,
        )  # fmt: skip
        self._context.store.spell(ref, spelling or ref.full_name)
        return result


class Push:
    """One upload under way."""

    def __init__(self, bytes_total: int) -> None:
        self.bytes_done = 0
        self.bytes_total = bytes_total
        self.ended: asyncio.Future[PushResult] = asyncio.get_running_loop().create_future()

    def count(self, size: int) -> None:
        """Count bytes that have reached the origin. Upload threads call it, one at a time."""
        self.bytes_done += size

    @property
    def error(self) -> P2PCacheError | None:
        """Why it failed; None: it didn't, or hasn't ended."""
        error = self.ended.exception() if self.ended.done() else None
        return error if isinstance(error, P2PCacheError) else None

    def fail(self, error: P2PCacheError) -> None:
        """End it with an error, unless it has ended."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # asyncio logs an exception that nobody has asked for


def _missing(model: ModelStore, owed: Container[str]) -> list[Missing]:
    """The blobs that aren't here, and those that the client owes."""
    layout = model.layout
    paths = {blob: path for path, blob in reversed(layout.blob_of_file.items())}
    return [
        Missing(blob.id, paths[number])
        for number, blob in enumerate(layout.blobs)
        if blob.id in owed or not all(map(model.has_chunk, blob.chunks))
    ]
