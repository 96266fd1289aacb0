"""Refs and manifests from the origin, read once for all members.

A storm of agents that resolve one ref costs one read. Equal questions at the same time share one read (single
flight). Tags, and errors of their reads, are kept for `TAG_TTL_S`; manifests until newer ones need their space.
"""

import asyncio
import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.errors import (
    NotAllowed,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    TimedOut,
    Unreachable,
    UsageError,
)
from p2pcache.ids import Ref, is_digest
from p2pcache.io.deadline_thread import DeadlineThread
from p2pcache.io.origins import OriginSettings, open_origin
from p2pcache.io.origins.base import NoContainer
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.signatures.in_origin import read_signatures
from p2pcache.io.tasks import Tasks, Threads

T = TypeVar("T")

TAG_TTL_S = 2.0  # a moved tag is seen within this, also without a message of the pusher
SPELLING_TTL_S = 60.0  # only a forced push changes it
FRESH = (
    0.5  # share of TAG_TTL_S after which a question begins the next read and gets the known answer
)
MANIFEST_CACHE_BYTES = 512 << 20  # two of the largest manifests, thousands of usual ones
MAX_TAGS = 10_000  # kept before expired ones are removed
THREADS = 8  # reads at once, each of another ref or manifest
TAG_WAIT_S = 8.0  # for a tag; an agent waits 15 s, then goes on with its last known meaning
OPEN_WAIT_S = 4.0  # to open storage before members are taken
TROUBLE_WAIT_S = 1.0  # for a tag while storage is in trouble
MANIFEST_WAIT_S = 50.0  # for the largest manifest over a slow link; an agent waits 60 s
RETRY_FOR_S = (
    4.0  # shorter than an agent's own retries, so that it can look elsewhere after a refusal
)


class Catalog:
    """The origin as the tracker's members see it."""

    def __init__(self, url: str, tasks: Tasks) -> None:
        """Check the URL, and try to open the storage.

        Args:
            url: of the origin; "" for a tracker without one.
            tasks: owner of the reads under way.

        Raises:
            UsageError: it is no URL of an origin, or has credentials in it.
        """
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise UsageError(
                "the origin's URL holds credentials; they belong into the storage's own "
                "environment or files (AWS_ACCESS_KEY_ID, ~/.aws/credentials, ...)"
            )
        self.url = url
        self.reads = {"tag": 0, "manifest": 0}  # of the origin, for metrics
        self._probe_failed: P2PCacheError | None = None  # the last probe
        self._reads_fail: P2PCacheError | None = None  # since the last good read or probe
        self._tasks = tasks
        self._threads = Threads(THREADS, name="origin")
        self._repo: OriginRepo | None = None
        self._flights: dict[tuple[str, ...], asyncio.Future[Any]] = {}
        self._tags: dict[tuple[str, str, str], tuple[float, TagRecord | P2PCacheError]] = {}
        self._spellings: dict[tuple[str, str], tuple[float, str]] = {}
        self._manifests: OrderedDict[str, bytes] = OrderedDict()
        self._manifest_bytes = 0
        self._writing = asyncio.Lock()
        if url:
            self._open_early()

    @property
    def trouble(self) -> P2PCacheError | None:
        """Why storage as a whole can't be used; None: it can, as far as is known.

        What the probe found stays until the next one: a read that is well says nothing of what the probe lacks.
        """
        return self._probe_failed or self._reads_fail

    def close(self) -> None:
        """Close the connections to the origin."""
        if self._repo is not None:
            self._repo.origin.close()

    async def tag(self, ref: Ref) -> TagRecord:
        """The record of a ref's tag, at most `TAG_TTL_S` old.

        Raises:
            NotFound: there is no such tag.
            OriginUnavailable: storage doesn't answer.
            Unreachable: this tracker has no origin.
        """
        record = self.known_tag(ref)
        if record is None:
            wait_s = TAG_WAIT_S if self.trouble is None else TROUBLE_WAIT_S
            record = await self._shared(("tag", *ref.tag_key), lambda: self._read_tag(ref), wait_s)
        if isinstance(record, P2PCacheError):
            raise type(record)(str(record))
        return record

    def known_tag(self, ref: Ref) -> TagRecord | P2PCacheError | None:
        """The result of the last read if it is at most `TAG_TTL_S` old; None: there is none.

        If it is older than a part of that, the next read begins, so frequent questions never wait for storage.
        """
        known, now = self._tags.get(ref.tag_key), time.monotonic()
        if known is None or known[0] <= now:
            return None
        if known[0] <= now + (1 - FRESH) * TAG_TTL_S:
            _ = self._flight(("tag", *ref.tag_key), lambda: self._read_tag(ref))
        return known[1]

    async def manifest(self, digest: str, *, telling: bool = True) -> bytes:
        """A manifest's bytes, proved by their digest; `telling` as in `ask_origin`.

        Raises:
            NotFound, InvalidManifest, OriginUnavailable, Unreachable: as `tag`.
        """
        if not is_digest(digest):
            raise UsageError("not a manifest digest")
        known = self.known_manifest(digest)
        if known is not None:
            return known
        return await self._shared(
            ("manifest", digest), lambda: self._read_manifest(digest), MANIFEST_WAIT_S,
            telling=telling,
        )  # fmt: skip

    def learn_manifest(self, digest: str, data: bytes) -> None:
        """Keep a manifest that a node gave, proved by its digest: storage doesn't answer."""
        self._keep(("manifest", digest), data)

    def known_manifest(self, digest: str) -> bytes | None:
        """A manifest that was read before and is still kept; None: it isn't."""
        if digest in self._manifests:
            self._manifests.move_to_end(digest)
        return self._manifests.get(digest)

    async def spelling(self, ref: Ref) -> str:
        """How a model's name is written, at most `SPELLING_TTL_S` old; errors as `tag`."""
        name, now = (ref.namespace, ref.name), time.monotonic()
        known = self._spellings.get(name)
        if known is None or known[0] <= now:
            text = await self.ask_origin(
                ("spelling", *name), lambda repo: repo.spelling(ref), TAG_WAIT_S
            )
            if len(self._spellings) > MAX_TAGS:
                self._spellings.clear()
            known = self._spellings[name] = (now + SPELLING_TTL_S, text)
        return known[1]

    async def stored_signatures(self, text: str) -> bytes:
        """The stored signatures of NAMESPACE/DIGEST, one a line; errors as `tag`."""
        namespace, _, digest = text.partition("/")
        if not is_digest(digest):
            raise UsageError("not a manifest digest")
        namespace = Ref.parse(f"{namespace}/x").namespace
        found = await self.ask_origin(
            ("signatures", namespace, digest),
            lambda repo: read_signatures(repo, namespace, digest), TAG_WAIT_S,
        )  # fmt: skip
        return "\n".join(found).encode()

    def moved(self, ref: Ref) -> None:
        """The tag was moved: forget its record, and any read that is in flight."""
        self._tags.pop(ref.tag_key, None)
        self._flights.pop(("tag", *ref.tag_key), None)

    async def put_tag(self, ref: Ref, digest: str, expect_generation: int | None) -> TagRecord:
        """Move a tag for an agent whose origin has no conditional put.

        Args:
            ref: of the tag.
            digest: of the manifest that it shall name.
            expect_generation: the generation that it must have; None: any.

        Raises:
            Conflict: the tag has another generation.
            NotFound: the manifest isn't at the origin.
            NotAllowed: the origin has conditional puts, so whoever may write there needs no tracker.
        """
        async with self._writing:  # one at a time, which makes an unconditional put safe
            repo = await self._threads.run(self._get_repo)
            if await self._threads.run(lambda: repo.origin.conditional_put):
                raise NotAllowed(
                    f"tags in {repo.url} are written with credentials of that storage, not through the tracker"
                )
            if not await self._threads.run(repo.has_manifest, digest):
                raise NotFound(f"no manifest blake3:{digest} at {repo.url}; push the model first")
            record = await self._threads.run(
                repo.put_tag, ref, digest, expect_generation=expect_generation, sole_writer=True
            )
        self.moved(ref)
        return record

    async def probe(self) -> None:
        """Check whether the origin answers; `trouble` has the result."""
        if self.url:
            try:
                await self._shared(("probe",), self._probe, TAG_WAIT_S, telling=False)
            except P2PCacheError as error:
                self._probe_failed = error
            else:
                self._probe_failed = self._reads_fail = None

    async def ask_origin(
        self,
        key: tuple[str, ...],
        work: Callable[[OriginRepo], T],
        wait_s: float,
        *,
        telling: bool = True,
    ) -> T:
        """Run `work` on a thread, with the open origin; return its result.

        Args:
            key: calls with an equal key at the same time share one run.
            work: the call.
            wait_s: for the result.
            telling: its end may say whether the storage as a whole answers, and so set `trouble`.

        Raises:
            OriginUnavailable: it took longer than `wait_s`.
            P2PCacheError: `work` failed, or there is no origin.
        """
        return await self._shared(key, lambda: work(self._get_repo()), wait_s, telling=telling)

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
        if (
            self._repo is None
        ):  # two threads may open it at once: the later one wins, and that is harmless
            settings = dataclasses.replace(OriginSettings.from_env(), retry_for_s=RETRY_FOR_S)
            self._repo = OriginRepo(open_origin(self.url, settings))
        return self._repo

    # -- single flight -----------------------------------------------------------------------------

    def _open_early(self) -> None:
        """Open the origin at the start. A wrong URL is an error; storage that doesn't answer yet is no error."""
        try:
            # A share whose server is away holds whoever looks at it.
            DeadlineThread(self._get_repo, limit_s=OPEN_WAIT_S, what=self.url).result()
        except TimedOut:
            self._probe_failed = OriginUnavailable(
                f"{self.url} didn't answer within {OPEN_WAIT_S:.0f} s"
            )
        except UsageError:
            raise
        except P2PCacheError as error:
            self._probe_failed = error

    def _flight(
        self, key: tuple[str, ...], work: Callable[[], T], *, telling: bool = True
    ) -> "asyncio.Future[T]":
        """The read of this key in flight; it begins here if there is none."""
        flight: asyncio.Future[T] | None = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_future()
            flight.add_done_callback(lambda f: f.cancelled() or f.exception())
            self._flights[key] = flight
            run = self._run_flight(key, work, flight, telling=telling)
            self._tasks.spawn_contained(run, name=" ".join(key))
        return flight

    async def _shared(
        self, key: tuple[str, ...], work: Callable[[], T], wait_s: float, *, telling: bool = True
    ) -> T:
        flight = self._flight(key, work, telling=telling)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(flight)
        except TimeoutError:
            raise OriginUnavailable(f"{self.url} didn't answer within {wait_s:.0f} s") from None

    async def _run_flight(
        self,
        key: tuple[str, ...],
        work: Callable[[], T],
        flight: "asyncio.Future[T]",
        *,
        telling: bool,
    ) -> None:
        try:
            result = await self._threads.run(work)
        except P2PCacheError as error:
            if telling:
                self._on_read(error)
            flight.set_exception(error)
        except BaseException:
            flight.set_exception(P2PCacheError("the tracker failed at this; see its log"))
            raise
        else:
            if telling:
                self._on_read(result if isinstance(result, P2PCacheError) else None)
            if self._flights.get(key) is flight:
                self._keep(key, result)
            flight.set_result(result)
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _on_read(self, error: P2PCacheError | None) -> None:
        """A read ended. Storage that doesn't answer, or has no bucket, is trouble of the whole.

        An object that is missing, corrupt or refused says nothing of the others: the probe asks about them.
        """
        if error is None or isinstance(error, NoContainer | OriginUnavailable):
            self._reads_fail = error

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
