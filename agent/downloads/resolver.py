"""Resolves refs and reads manifests: from the tracker, else from the origin, else from this node's cache."""

import asyncio
import contextlib
import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from p2pcache.core.format import manifest
from p2pcache.core.format.near_refs import hint_within
from p2pcache.errors import (
    InvalidManifest,
    NotAllowed,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
)
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.models.store import Store
from p2pcache.io.origins.base import NoContainer
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.tag_patience import TagPatience
from p2pcache.io.signatures.in_origin import read_signatures, split
from p2pcache.io.tasks import Shared, Threads, mark_retrieved

if TYPE_CHECKING:
    from p2pcache.agent.tracker_link import TrackerLink

log = logging.getLogger(__name__)


MAX_QUESTIONS = 8  # at once; the tracker allows one member 16
LOOK_S = 0.1  # between two looks whether storage is away
HINT_S = 2.0  # to look for names that may have been meant
MAX_HINTS = 2000  # names that are looked at: two pages of a listing
MAX_TAGS = 1000  # of one model; each is a small read
FIRST_CONTACT_S = 5.0  # to wait for the first connection to the tracker, which takes milliseconds


_SILENT = (Unreachable, OriginUnavailable)
_AWAY = (*_SILENT, NotAllowed, NoContainer)  # a model that is complete here needs neither of them


class Resolved(NamedTuple):
    """The meaning of a ref. `stale`: neither tracker nor origin answered, so it is the last known one."""

    digest: str
    generation: int
    stale: bool = False
    trouble: str = ""  # why it is stale


class _Answer(msgspec.Struct):
    digest: str
    generation: int = 0


def _first_refs(repo: OriginRepo, namespace: str) -> list[Ref]:
    return list(islice(repo.refs(namespace), MAX_HINTS))


def _tags_of(repo: OriginRepo, ref: Ref) -> list[tuple[Ref, str]]:
    found = islice(repo.list_tags(ref.namespace, ref.name), MAX_TAGS)
    return [(one, record.digest) for one, record in found]


class Resolver:
    """Finds tags and manifests. Tracker and origin may be missing, and may come and go."""

    def __init__(self, store: Store, link: "TrackerLink | None") -> None:
        self.repo: OriginRepo | None = None
        self.origin_error: P2PCacheError | None = (
            None  # why `repo` is None, if an origin is configured
        )
        self._store = store
        self._link = link
        self._awaits_tracker = False  # a ref waits for the first attempt to connect to it
        self._asking = Shared[Resolved]()  # many pods that start at once share one question
        # Never joined, because storage may hang.
        self._threads = Threads(MAX_QUESTIONS, name="resolve")
        self._patience = TagPatience()
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    @property
    def storage_trouble(self) -> P2PCacheError | None:
        """Why the last call to storage failed; None: it didn't, or there is no storage."""
        return self.origin_error if self.repo is None else self.repo.trouble

    @property
    def tracker_trouble(self) -> str:
        """Why the tracker is away; "": it isn't, or there is none."""
        return "" if self._link is None or self._link.connected else self._link.trouble

    @property
    def asked(self) -> str:
        """The tracker or storage that resolves refs now, in words for people."""
        if self._link is not None and self._link.connected:
            return f"tracker {self._link.url} and the storage behind it"
        if self._link is not None and self._awaits_tracker:
            return f"tracker {self._link.url}"
        if self.repo is not None:
            return f"storage {self.repo.url}"
        return "tracker and storage" if self._link is None else f"tracker {self._link.url}"

    def asks_for(self, ref: Ref) -> bool:
        """Whether an answer to what a ref names is awaited now."""
        return ref.short in self._asking

    async def resolve(self, ref: Ref, *, hint: bool = True) -> Resolved:
        """The digest and generation that a ref names now.

        A ref with a digest names it itself. When neither tracker nor origin answers, the result is the last known
        meaning, marked stale: a node must be able to start its pods during an outage.

        Args:
            ref: of the model.
            hint: a tag that doesn't exist is worth a look for what may have been meant.

        Raises:
            NotFound: the tag doesn't exist.
            Unreachable: there is no tracker and no origin, and the tag was never seen here.
            OriginUnavailable: the origin doesn't answer, and the tag was never seen here.
        """
        if ref.digest is not None:
            return Resolved(ref.digest, 0)
        try:
            return await self._asking.share(ref.short, lambda: self._resolve(ref))
        except NotFound as error:
            if isinstance(error, NoContainer) or not hint:
                raise
            raise NotFound(f"{error}{await self._hint(ref)}") from None

    async def _hint(self, ref: Ref) -> str:
        """What may have been meant, as far as cache and storage know it."""
        known = await pools.STEPS.run(self._store.refs)
        if self.repo is not None:
            # Keys that may not list, or slow storage.
            with contextlib.suppress(P2PCacheError, TimeoutError):
                async with asyncio.timeout(HINT_S):
                    known += await self._threads.run(_first_refs, self.repo, ref.namespace)
        return hint_within(ref, known)

    async def spelling(self, ref: Ref) -> str:
        """How the model's name is written, as its push had it; in lower case where nobody answers soon."""
        try:
            async with asyncio.timeout(HINT_S):
                return await self.read_spelling(ref)
        except (P2PCacheError, TimeoutError):
            return ref.full_name

    async def read_spelling(self, ref: Ref) -> str:
        """How the model's name is written, as its push had it.

        Raises:
            P2PCacheError: neither tracker nor storage says it.
        """
        if self._link is not None and self._link.connected:
            with contextlib.suppress(
                P2PCacheError
            ):  # a tracker of the last release doesn't know the question
                return (await self._link.ask("spelling", ref.short)).data.decode("ascii", "replace")
        if self.repo is None:
            raise self.no_answer(f"can't ask how {ref.full_name} is written")
        return await self._threads.run(self.repo.spelling, ref)

    async def stored_tags(self, ref: Ref) -> list[tuple[Ref, str]]:
        """The tags of a model's name in storage, each with the digest that it means; none where storage isn't known.

        Raises:
            P2PCacheError: storage refuses, or doesn't answer.
        """
        if self.repo is None:
            return []
        return await self._threads.run(_tags_of, self.repo, ref)

    async def _resolve(self, ref: Ref) -> Resolved:
        complete = await pools.STEPS.run(self._complete, ref)
        enough = _AWAY if complete else _SILENT
        try:
            async with self._questions:
                return await (self._ask_briefly(ref) if complete else self._ask(ref))
        except enough as error:
            known = await pools.STEPS.run(self._store.tag_of, ref)
            if known is None:
                raise
            log.warning("%s: %s; going on with what this cache last knew", ref.short, error)
            return Resolved(known.digest, known.generation, stale=True, trouble=str(error))

    def _complete(self, ref: Ref) -> bool:
        """Whether the model that a tag last meant is complete here."""
        known = self._store.tag_of(ref)
        model = None if known is None else self._store.get(known.digest)
        return model is not None and model.complete

    async def _ask_briefly(self, ref: Ref) -> Resolved:
        """As `_ask`, for as long as a healthy tracker or storage may take.

        Raises:
            OriginUnavailable: no answer by then; what `_ask` raises comes, too.
        """
        began = time.monotonic()
        work = asyncio.gather(self._ask(ref))
        work.add_done_callback(mark_retrieved)  # it may fail after we have left
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK_S)
                waited = time.monotonic() - began
                trouble = self.storage_trouble
                if not work.done() and waited >= self._patience.limit_s(
                    trouble=trouble is not None
                ):
                    why = f": {trouble}" if trouble is not None else ""
                    raise OriginUnavailable(f"{self.asked} didn't answer in {waited:.1f} s{why}")
            (resolved,) = work.result()
            if not resolved.stale:
                self._patience.learn(time.monotonic() - began)
            return resolved
        finally:
            work.cancel()

    async def first_contact(self) -> None:
        """Wait a moment, right after a start, until the tracker was dialled once."""
        if self._link is None or self._link.tried.is_set():
            return
        self._awaits_tracker = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_CONTACT_S):
                    await self._link.tried.wait()
        finally:
            self._awaits_tracker = False

    async def _ask(self, ref: Ref) -> Resolved:
        trouble: P2PCacheError | None = None
        await self.first_contact()
        if self._link is not None and self._link.connected:
            try:
                answer = await self._link.ask("resolve", ref.short)
                record = msgspec.json.decode(answer.data, type=_Answer)
                return Resolved(record.digest, record.generation)
            except (Unreachable, OriginUnavailable, NotAllowed) as error:
                trouble = error  # of the tracker's storage or credentials; ours may be good
            except msgspec.MsgspecError as error:
                trouble = Unreachable(f"the tracker's answer makes no sense: {error}")
        if self.repo is not None:
            tag = await self._threads.run(self.repo.get_tag, ref)
            return Resolved(tag.digest, tag.generation)
        if trouble is not None:
            raise self._at_tracker(trouble)
        known = await pools.STEPS.run(self._store.tag_of, ref)
        if known is not None:
            why = str(self.no_answer("neither tracker nor storage can be asked"))
            return Resolved(known.digest, known.generation, stale=True, trouble=why)
        raise self.no_answer(f"can't resolve {ref.short}")

    async def manifest(self, digest: str) -> bytes:
        """The manifest's proved bytes.

        Raises:
            NotFound: neither tracker nor origin has it.
            InvalidManifest: the stored bytes don't match the digest.
            Unreachable, OriginUnavailable: neither answered.
        """
        trouble: P2PCacheError | None = None
        if self._link is not None and self._link.connected:
            try:
                encoded = await self._from_tracker(self._link, "manifest", digest)
                if manifest.digest_of(encoded) != digest:
                    raise InvalidManifest(
                        "the tracker sent a manifest that doesn't match its digest"
                    )
                return encoded
            except (Unreachable, OriginUnavailable, NotFound, NotAllowed) as error:
                trouble = error
        if self.repo is not None:
            return await self._threads.run(self.repo.get_manifest, digest)
        if trouble is not None:
            raise self._at_tracker(trouble)
        raise self.no_answer(f"can't fetch manifest blake3:{digest}")

    async def read_signatures(self, namespace: str, digest: str) -> list[str]:
        """The stored signatures of a model; nothing about them is proved.

        Raises:
            P2PCacheError: neither tracker nor storage says them.
        """
        if self._link is not None and self._link.connected:
            with contextlib.suppress(
                P2PCacheError
            ):  # a tracker of the last release doesn't know the question
                wanted = f"{namespace}/{digest}"
                return split(await self._from_tracker(self._link, "signatures", wanted))
        if self.repo is None:
            raise self.no_answer(f"can't read the signatures of blake3:{digest[:12]}")
        return await self._threads.run(read_signatures, self.repo, namespace, digest)

    async def _from_tracker(self, link: "TrackerLink", what: str, text: str) -> bytes:
        data = bytearray()
        while True:
            part = await link.ask(what, text, len(data), timeout_s=60)
            data += part.data
            if not part.total:
                return b""
            if part.total > manifest.MAX_MANIFEST_BYTES or len(data) > part.total or not part.data:
                raise InvalidManifest(f"the tracker sent a {what} of a wrong size")
            if len(data) == part.total:
                return bytes(data)

    def _at_tracker(self, trouble: P2PCacheError) -> P2PCacheError:
        """The error with the tracker's name where its credentials are refused: those of this node may be good."""
        if self._link is None or not isinstance(trouble, NotAllowed):
            return trouble
        return NotAllowed(f"tracker {self._link.url} can't read storage: {trouble}")

    def no_answer(self, what: str) -> P2PCacheError:
        """The error that says why neither tracker nor origin can be asked now; `what`: what can't be done so."""
        if self.origin_error is not None:
            return self.origin_error
        if self._link is not None and self._link.refusal is not None:
            return self._link.refusal
        if self._link is None:
            return Unreachable(
                f"{what}: this agent has neither a tracker nor an origin (--tracker, --origin)"
            )
        return Unreachable(
            f"{what}: {self._link.trouble}; check that it runs and can be reached from here"
        )
