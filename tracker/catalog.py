"""Refs and manifests from the origin, read once for everybody.

A storm of 1,000 agents that resolve one ref costs one read: equal questions share one flight,
answers (bad ones too) are kept for a moment, manifests until newer ones need their room.
"""

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.errors import (
    IntegrityError,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
    UsageError,
)
from p2pcache.ids import Ref, is_digest
from p2pcache.io.origins import OriginSettings, open_origin
from p2pcache.io.origins.base import NoContainer
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.tasks import Tasks, Threads

T = TypeVar("T")

TAG_TTL_S = 2.0  # a moved tag is seen within two seconds, also when nobody told us
FRESH = 0.5  # of that: who asks later begins the next read, and is answered with what is known
MANIFEST_CACHE_BYTES = 512 << 20  # two of the largest, thousands of usual ones
MAX_TAGS = 10_000  # remembered for their two seconds, before the expired ones are swept
THREADS = 8  # reads at once; each is for a different ref or manifest
TAG_WAIT_S = 8.0  # an agent waits 15 s for an answer and goes on with what it knows
TROUBLE_WAIT_S = 1.0  # while storage doesn't answer anyway: nobody should wait for it
MANIFEST_WAIT_S = 50.0  # 256 MiB over a slow link; the agent waits 60 s
RETRY_FOR_S = 4.0  # shorter than an agent's own retries: a refusal lets it look elsewhere


class Catalog:
    """The origin as the tracker's members see it."""

    def __init__(self, url: str, tasks: Tasks) -> None:
        """No contact yet.

        Args:
            url: of the origin; "" for a tracker without one.
            tasks: owner of the reads under way.

        Raises:
            UsageError: not a URL of an origin, or one with credentials in it.
        """
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise UsageError(
                "the origin's URL holds credentials; they belong into the storage's own "
                "environment or files (AWS_ACCESS_KEY_ID, ~/.aws/credentials, ...)"
            )
        self.url = url
        self.trouble: P2PCacheError | None = None  # why the last contact failed
        self.reads = {"tag": 0, "manifest": 0}  # of the origin, for metrics
        self._tasks = tasks
        self._threads = Threads(THREADS, name="origin")
        self._repo: OriginRepo | None = None
        self._flights: dict[tuple[str, ...], asyncio.Future[Any]] = {}
        self._tags: dict[tuple[str, str, str], tuple[float, TagRecord | P2PCacheError]] = {}
        self._manifests: OrderedDict[str, bytes] = OrderedDict()
        self._manifest_bytes = 0
        self._writing = asyncio.Lock()
        if url:
            self._open_early()

    def close(self) -> None:
        """Drop the origin's connections."""
        if self._repo is not None:
            self._repo.origin.close()

    async def tag(self, ref: Ref) -> TagRecord:
        """What a ref's tag means now, at most two seconds old.

        Raises:
            NotFound: no such tag.
            OriginUnavailable: storage doesn't answer.
            Unreachable: this tracker has no origin.
        """
        record = self.known_tag(ref)
        if record is None:
            wait_s = TAG_WAIT_S if self.trouble is None else TROUBLE_WAIT_S
            record = await self._once(("tag", *ref.tag_key), lambda: self._read_tag(ref), wait_s)
        if isinstance(record, P2PCacheError):
            raise type(record)(str(record))
        return record

    def known_tag(self, ref: Ref) -> TagRecord | P2PCacheError | None:
        """What a read of the last two seconds found, if there was one.

        The next one begins in good time: who asks again and again never waits for storage.
        """
        known, now = self._tags.get(ref.tag_key), time.monotonic()
        if known is None or known[0] <= now:
            return None
        if known[0] <= now + (1 - FRESH) * TAG_TTL_S:
            _ = self._flight(("tag", *ref.tag_key), lambda: self._read_tag(ref))
        return known[1]

    async def manifest(self, digest: str) -> bytes:
        """A manifest's bytes, proved by their digest.

        Raises:
            NotFound, InvalidManifest, OriginUnavailable, Unreachable: as `tag`.
        """
        if not is_digest(digest):
            raise UsageError("not a manifest digest")
        known = self.known_manifest(digest)
        if known is not None:
            return known
        return await self._once(
            ("manifest", digest), lambda: self._read_manifest(digest), MANIFEST_WAIT_S
        )

    def known_manifest(self, digest: str) -> bytes | None:
        """A manifest that was read before."""
        if digest in self._manifests:
            self._manifests.move_to_end(digest)
        return self._manifests.get(digest)

    def moved(self, ref: Ref) -> None:
        """Somebody moved the tag: forget what was known, and what is being read."""
        self._tags.pop(ref.tag_key, None)
        self._flights.pop(("tag", *ref.tag_key), None)

    async def put_tag(self, ref: Ref, digest: str, expect_generation: int | None) -> TagRecord:
        """Move a tag on behalf of an agent whose origin has no conditional put.

        Raises:
            Conflict: another generation is there.
            NotFound: no such manifest at the origin.
        """
        async with self._writing:  # alone: that is what makes an unconditional put safe
            repo = await self._threads.run(self._get_repo)
            if not await self._threads.run(repo.has_manifest, digest):
                raise NotFound(f"no manifest blake3:{digest} at {repo.url}; push the model first")
            record = await self._threads.run(
                repo.put_tag, ref, digest, expect_generation=expect_generation, sole_writer=True
            )
        self.moved(ref)
        return record

    async def probe(self) -> None:
        """See whether the origin answers; the result is in `trouble`."""
        if self.url:
            try:
                await self._once(("probe",), self._probe, TAG_WAIT_S)
            except P2PCacheError as error:
                self.trouble = error

    async def ask_origin(
        self, key: tuple[str, ...], work: Callable[[OriginRepo], T], wait_s: float
    ) -> T:
        """What `work` finds at the origin, on a thread; `key` names it.

        Raises:
            OriginUnavailable: it took longer than so many seconds.
            P2PCacheError: of `work`, or there is no origin.
        """
        return await self._once(key, lambda: work(self._get_repo()), wait_s)

    # -- on worker threads -------------------------------------------------------------------------

    def _read_tag(self, ref: Ref) -> TagRecord | P2PCacheError:
        self.reads["tag"] += 1
        try:
            record: TagRecord | P2PCacheError = self._get_repo().get_tag(ref)
        except P2PCacheError as error:
            record = error
        return record

    def _read_manifest(self, digest: str) -> bytes:
        self.reads["manifest"] += 1
        return self._get_repo().get_manifest(digest)

    def _probe(self) -> None:
        self._get_repo().prove()

    def _get_repo(self) -> OriginRepo:
        if not self.url:
            raise Unreachable("this tracker has no origin; start it with --origin URL")
        if self._repo is None:  # twice at once is harmless: the later one is used
            settings = dataclasses.replace(OriginSettings.from_env(), retry_for_s=RETRY_FOR_S)
            self._repo = OriginRepo(open_origin(self.url, settings))
        return self._repo

    # -- single flight -----------------------------------------------------------------------------

    def _open_early(self) -> None:
        """A wrong URL ends the start; storage that can't be had yet doesn't."""
        try:
            self._get_repo()
        except UsageError:
            raise
        except P2PCacheError as error:
            self.trouble = error

    def _flight(self, key: tuple[str, ...], work: Callable[[], T]) -> "asyncio.Future[T]":
        """The read that is under way, begun here if there is none."""
        flight: asyncio.Future[T] | None = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_future()
            flight.add_done_callback(lambda f: f.cancelled() or f.exception())
            self._flights[key] = flight
            self._tasks.spawn_contained(self._fly(key, work, flight), name=" ".join(key))
        return flight

    async def _once(self, key: tuple[str, ...], work: Callable[[], T], wait_s: float) -> T:
        flight = self._flight(key, work)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(flight)
        except TimeoutError:
            raise OriginUnavailable(f"{self.url} didn't answer within {wait_s:.0f} s") from None

    async def _fly(
        self, key: tuple[str, ...], work: Callable[[], T], flight: "asyncio.Future[T]"
    ) -> None:
        try:
            result = await self._threads.run(work)
        except P2PCacheError as error:
            self._note(error)
            flight.set_exception(error)
        except BaseException:
            flight.set_exception(P2PCacheError("the tracker failed at this; see its log"))
            raise
        else:
            self._note(result if isinstance(result, P2PCacheError) else None)
            if self._flights.get(key) is flight:
                self._keep(key, result)
            flight.set_result(result)
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _note(self, error: P2PCacheError | None) -> None:
        """A missing or corrupt object says nothing about the storage as a whole; a missing bucket does."""
        if isinstance(error, NoContainer) or not isinstance(
            error, NotFound | IntegrityError | UsageError
        ):
            self.trouble = error

    def _keep(self, key: tuple[str, ...], result: object) -> None:
        if isinstance(result, TagRecord | P2PCacheError):
            now = time.monotonic()
            if len(self._tags) > MAX_TAGS:
                self._tags = {k: v for k, v in self._tags.items() if v[0] > now}
            self._tags[key[1], key[2], key[3]] = (now + TAG_TTL_S, result)
        elif isinstance(result, bytes) and len(result) <= MANIFEST_CACHE_BYTES:
            self._manifests[key[1]] = result
            self._manifest_bytes += len(result)
            while self._manifest_bytes > MANIFEST_CACHE_BYTES:
                _, old = self._manifests.popitem(last=False)
                self._manifest_bytes -= len(old)
