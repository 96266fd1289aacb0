"""Removal, pruning and verifying of models in this cache, and the look-up of a model by its ref."""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import NamedTuple

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.jobs.events import Events
from p2pcache.agent.jobs.warms import Warms
from p2pcache.agent.journal import Journal
from p2pcache.core.format.near_refs import hint_within
from p2pcache.errors import Conflict, NotFound
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.disk.store_info import ModelInfo, Pruned, why_no_bytes
from p2pcache.io.imports.import_folder import FOLDER, remove_parts
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.room import claimed, users_and_claims
from p2pcache.io.models.store import Store

log = logging.getLogger(__name__)

PROGRESS_S = 0.25  # between two events of a verify, as of a pull


class Removed(NamedTuple):
    """What a removal took away."""

    digest: str
    bytes_freed: int  # 0 where other tags still name the model
    unsure: str = ""  # why a process may have it open all the same, for people


class Housekeeping:
    """Removes and proves models of this cache, beside pulls and pushes that may use them."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, warms: Warms, journal: Journal
    ) -> None:
        self._context = context
        self._downloads = downloads
        self._warms = warms
        self._journal = journal

    async def remove_ref(self, ref: Ref) -> Removed:
        """Remove a tag, and with its last tag the model.

        Raises:
            NotFound: it isn't in this cache.
            Conflict: a pull, a load or a push uses it, or another process has it open or mapped.
        """
        store, began, unsure = self._context.store, time.monotonic(), ""
        with self._journal.failures("rm", str(ref)):
            warmed = await self._warms.stop(ref)
            self._refuse_while_pulled(ref)
            digest = (await pools.STEPS.run(store.named, ref)) or warmed
            if not digest:
                raise await not_here(store, ref)
            freed, unsure = await self._remove(ref, digest)
        self._journal.record(
            "rm", ref=str(ref), digest=digest, size_bytes=freed, seconds=time.monotonic() - began
        )
        log.info("removed %s (%d bytes freed)", ref.short, freed)
        return Removed(digest, freed, unsure)

    def _refuse_while_pulled(self, ref: Ref) -> None:
        """Check that no running pull will publish this ref: a first pull writes the tag only at its end.

        Raises:
            Conflict: this ref is being pulled.
        """
        for digest, download in self._downloads.running.items():
            known = {name.tag_key for name in download.refs}
            if ref.digest in (None, digest) and ref.tag_key in known:
                raise Conflict(f"{ref} is being pulled right now; stop the pull or wait for it")

    async def _remove(self, ref: Ref, digest: str) -> tuple[int, str]:
        """Remove a name, and the model with its last one.

        Returns:
            The bytes of disk that this freed; what isn't known about other processes that use it, or "".

        Raises:
            Conflict: a process has a file of the model open or mapped.
        """
        store, downloads = self._context.store, self._downloads
        if ref.digest is not None:
            await local_model(store, ref)
        else:
            downloads.asked_tags.forget_tag(ref, digest)
            if await self._remove_further_tag(ref, digest):
                return 0, ""
            if digest in downloads.running:
                await pools.STEPS.run(store.remove_tag, ref)
                return 0, ""
        unsure = await pools.WORK.run(refuse_used, store, ref, digest)

        async def removal() -> tuple[int, str]:
            # A look at all processes takes long enough for a pull to give it another name.
            if ref.digest is None and await self._remove_further_tag(ref, digest):
                return 0, ""
            return await pools.WORK.run(store.remove_model, digest), unsure

        return await downloads.perform_removal(digest, removal)

    async def _remove_further_tag(self, ref: Ref, digest: str) -> bool:
        """Remove a tag of a model that has other names; False: it has none."""
        store = self._context.store
        if not set(await pools.STEPS.run(store.names_of, digest)) - {ref}:
            return False
        await pools.STEPS.run(store.remove_tag, ref)
        return True

    async def prune_cache(self, *, dry_run: bool, everything: bool) -> Pruned:
        """Remove models without a tag, and what interrupted imports left; with `everything` also models with a tag."""
        store = self._context.store
        known = await pools.STEPS.run(store.models)
        due = [info.digest for info in known if everything or not info.tags]
        users = await pools.WORK.run(users_and_claims, store, due, time.time())
        may_go, result = set(due) - self._downloads.in_use, Pruned([], 0, [])
        for digest in [] if dry_run else [d for d in due if d in may_go - users.held.keys()]:
            may_go.discard(digest)
            with contextlib.suppress(Conflict):  # somebody has begun to use it
                prune = partial(self._prune_one, digest, everything=everything)
                result = result.plus(await self._downloads.perform_removal(digest, prune))
        rest = await pools.WORK.run(
            store.prune, dry_run=dry_run, all_unused=everything, among=may_go, users=users
        )
        result = result.plus(rest)
        parts = await pools.WORK.run(remove_parts, store.root / FOLDER, dry_run=dry_run)
        result = result.plus(parts)
        if result.removed and not dry_run:
            self._journal.record("prune", size_bytes=result.bytes_freed)
        return result

    async def _prune_one(self, digest: str, *, everything: bool) -> Pruned:
        """Remove a model, in its turn, unless it was named or claimed since it was chosen: others went first."""
        store = self._context.store
        info = await pools.STEPS.run(store.model_info, digest)
        if info is None or (info.tags and not everything):
            return Pruned([], 0, [])
        claims = await pools.STEPS.run(claimed, store, time.time())
        if digest in claims:
            return Pruned([], 0, [f"{info.called}: {claims[digest]}"])
        freed = await pools.WORK.run(store.remove_model, digest)
        return Pruned([info.called], freed, [])

    async def verify_model(self, ref: Ref) -> Events:
        """Prove every chunk again; bad ones are dropped, to be fetched again."""
        began = time.monotonic()
        known = await local_model(self._context.store, ref)
        model = await open_model(self._context.store, self._downloads, ref, known)
        done, total = 0, model.layout.total_bytes

        def note(so_far: int, _of: int) -> None:
            nonlocal done
            done = so_far

        def prove() -> int:
            model.copy_local()  # files that changed behind our back are settled first
            return len(model.verify(note))

        work = asyncio.gather(pools.WORK.run(prove))
        while not work.done():
            await asyncio.wait([work], timeout=PROGRESS_S)
            yield {"event": "progress", "bytes_done": done, "bytes_total": total}
        (bad,) = work.result()
        layout = model.layout
        missing = sum(not model.has_chunk(chunk) for chunk in range(layout.chunk_count)) - bad
        swarm = self._downloads.swarms.get(model.digest)
        if swarm is not None:
            swarm.on_lost()
        yield {
            "event": "done", "ref": str(ref), "digest": model.digest, "bytes": total,
            "chunks": layout.chunk_count, "chunks_bad": bad, "chunks_missing": max(0, missing),
            "seconds": round(time.monotonic() - began, 3),
        }  # fmt: skip


def refuse_used(store: Store, ref: Ref, digest: str) -> str:
    """Check that no other process has a model open, and nobody claims it; return why that isn't sure, "" if it is.

    Raises:
        Conflict: somebody does.
    """
    users = users_and_claims(store, [digest], time.time())
    if digest in users.held:
        raise Conflict(f"{ref} stays: {users.held[digest]}; end that first")
    return users.unsure


async def local_model(store: Store, ref: Ref) -> ModelInfo:
    """The model that a ref names in this cache, complete or not.

    Raises:
        NotFound: it isn't here.
    """
    digest = await pools.STEPS.run(store.named, ref)
    known = await pools.STEPS.run(store.model_info, digest) if digest is not None else None
    if known is None:
        raise await not_here(store, ref)
    return known


async def not_here(store: Store, ref: Ref) -> NotFound:
    """The error for a model that isn't in this cache, with names of its namespace that are spelt alike."""
    near = hint_within(ref, await pools.STEPS.run(store.refs))
    return NotFound(f"model {ref} is not in this cache; `p2pcache ls` shows what is{near}")


async def open_model(
    store: Store, downloads: DownloadManager, ref: Ref, known: ModelInfo
) -> ModelStore:
    """The chunks of a model of this cache, shared with its swarm if there is one.

    Raises:
        NotFound: it was evicted, was removed meanwhile, or its manifest is damaged.
    """
    swarm = downloads.swarms.get(known.digest)
    if swarm is not None:
        return swarm.store
    model = await pools.STEPS.run(store.get, known.digest)
    if model is None:
        now = await pools.STEPS.run(store.model_info, known.digest)
        raise await not_here(store, ref) if now is None else NotFound(why_no_bytes(ref, now))
    return model
