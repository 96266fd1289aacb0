"""Room in the cache: which models go above the high mark, for a pull that doesn't fit, or because somebody asks.

`core.pool.eviction` decides. Here are the facts that it needs, and the deed.
"""

import asyncio
import logging
import time
from functools import partial

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.jobs.housekeeping import local_model
from p2pcache.agent.journal import Journal
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.pool.eviction import Limits, Victim, runs_to_go
from p2pcache.core.pool.settings import COST_PEER, FRESH_S
from p2pcache.core.units import parse_part
from p2pcache.errors import Conflict, NoSpace, NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.disk.disk import disk_bytes
from p2pcache.io.disk.store_info import ModelInfo
from p2pcache.io.models import room
from p2pcache.io.models.room import Choice, Wanted
from p2pcache.io.models.store import Store

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between two looks at the marks
REST_S = 2.0  # what isn't needed at once goes so much later: first the pull gets its first bytes
PART_SLACK_BYTES = 4 << 20
_FRESH = "it was used minutes ago: its client may open it any moment"
_COMES = "it is what needs the room"
_NO_WAY_BACK = "neither storage nor another node has it"


def check_marks(settings: AgentSettings) -> None:
    """Refuse marks that are no shares, or of which the low one is above the high one.

    Raises:
        UsageError: they are so.
    """
    if not 0 < settings.cache_low <= settings.cache_high <= 1:
        raise UsageError(
            f"cache_low is {settings.cache_low:g} and cache_high {settings.cache_high:g}: shares of the quota are "
            "above 0 and at most 1, and the low mark isn't above the high one"
        )


def limits_of(settings: AgentSettings, store: Store) -> Limits:
    """How full the cache may be.

    Raises:
        UsageError: the settings make no sense.
    """
    check_marks(settings)
    text = settings.cache_quota
    try:
        quota = parse_part(text, disk_bytes(store.root)) if text else 0
    except UsageError as error:
        raise UsageError(f"cache_quota: {error}") from None
    return Limits(quota, settings.cache_high, settings.cache_low)


class RoomMaker:
    """Evicts models. One eviction at a time."""

    def __init__(self, context: AgentContext, downloads: DownloadManager, journal: Journal) -> None:
        self._context = context
        self._downloads = downloads
        self._journal = journal
        self._turn = asyncio.Lock()
        self._rounds = 0  # evictions that have ended
        self.for_parts_bytes = 0  # what parts that are ordered here may take, as of the last look
        self._rest_due = False  # it goes on to the low mark in a moment
        self._stuck = False  # the log has been told that nothing may go

    def start(self) -> None:
        """Begin to watch the marks."""
        if self._context.link is not None:
            self._context.tasks.every(LOOK_S, self.measure, name="room-for-parts")
        if self._context.store.limits.quota_bytes:
            self._context.tasks.spawn_contained(self._sweep(), name="room-swept")
            self._context.tasks.every(LOOK_S, self._look, name="room")

    async def evict_for(self, error: NoSpace, digest: str) -> bool:
        """Make the room that a model doesn't find; returns whether that was done.

        Only what it needs goes before this returns. The rest follows later.

        Args:
            error: how much it lacks.
            digest: of the model that comes, of which a part may be here; "": it isn't known.
        """
        store, seen = self._context.store, self._rounds
        if not store.limits.quota_bytes or error.short_bytes <= 0:
            return False
        async with self._turn:
            if self._rounds != seen:
                return True  # somebody else made room meanwhile; it may do
            kept = self._kept(fresh=True) | {digest: _COMES}
            choice = await self._choose(error.short_bytes, 0, kept)
            freed = 0
            for victim in choice.plan.victims:
                freed += await self._evict(victim)
            self._rounds += 1
        if freed and not self._rest_due and store.limits.may_go_on(error.coming_bytes):
            self._rest_due = True
            self._context.tasks.spawn_contained(self._free_rest(), name="room-rest")
        return freed > 0

    async def _free_rest(self) -> None:
        """Go on to the low mark, a moment after room was made for a model that fits below it."""
        try:
            await asyncio.sleep(REST_S)
        finally:
            self._rest_due = False
        store = self._context.store
        usage = await pools.STEPS.run(store.usage)  # with what was reserved for the model
        if (over := store.limits.excess_bytes(usage.filled_bytes)) > 0:
            await self._free(over)

    async def evict_to(self, to_bytes: int | None, *, dry_run: bool) -> dict[str, object]:
        """Evict the least valuable models until the cache has at most this; None: its low mark.

        Raises:
            UsageError: there is no quota, so no low mark.
            P2PCacheError: the disk refused.
        """
        store = self._context.store
        limits = store.limits
        if to_bytes is None and not limits.quota_bytes:
            raise UsageError(
                "this agent has no cache_quota: name a model, or say how much may stay (p2pcache prune --to SIZE)"
            )
        async with self._turn:
            usage = await pools.STEPS.run(store.usage)
            over = (
                limits.excess_bytes(usage.filled_bytes) if to_bytes is None
                else max(0, usage.filled_bytes - to_bytes)
            )  # fmt: skip
            choice = await self._choose(0, over, self._kept(fresh=False), rehearsal=dry_run)
            return await self._answer(choice, dry_run=dry_run)

    async def evict_ref(self, ref: Ref, *, dry_run: bool) -> dict[str, object]:
        """Evict one model, by whatever name.

        Raises:
            NotFound: it isn't here.
            Conflict: it is in use, or could not come back.
            P2PCacheError: the disk refused.
        """
        store = self._context.store
        async with self._turn:
            known = await local_model(store, ref)
            if known.remote:
                raise NotFound(f"{ref} was evicted already; `p2pcache pull {ref}` brings it back")
            wanted = Wanted(0, 0, self._costs(), self._kept(fresh=False))  # all of it goes
            choice = await pools.WORK.run(room.only, store, known.digest, wanted, time.time())
            if why := choice.kept.get(known.digest):
                raise Conflict(f"{ref} stays: {why}")
            return await self._answer(choice, dry_run=dry_run)

    async def state(self) -> dict[str, object]:
        """How full the cache is, in the form of docs/api.md."""
        kept = self._kept(fresh=False)
        return await pools.STEPS.run(room.state, self._context.store, kept, time.time())

    async def measure(self) -> None:
        """Look what parts that are ordered here may take: the tracker is told from the start, and places them by it."""
        kept = self._kept(fresh=False)
        work = pools.STEPS.run(room.for_parts, self._context.store, kept, time.time())
        self.for_parts_bytes = await work

    async def _sweep(self) -> None:
        """Give back what a crash may have left of models of which a part went."""
        store = self._context.store
        for known in await pools.STEPS.run(store.models):
            if known.partly_evicted:
                model = await pools.STEPS.run(store.get, known.digest)
                if model is not None:
                    await pools.WORK.run(store.removal.free_holes, model)

    async def _look(self) -> None:
        """Evict down to the low mark if the cache is above its high one, or the disk short of free space."""
        store = self._context.store
        try:
            usage = await pools.STEPS.run(store.usage)
            due = max(
                store.limits.due_bytes(usage.filled_bytes),
                store.min_free_bytes + usage.promised_bytes - usage.free_bytes,
            )
            if due <= 0:
                self._stuck = False
                return
            victims = await self._free(due)
            if not victims and not self._stuck:
                log.warning("the cache is %d bytes too full, and no model may go", due)
            self._stuck = not victims
        except P2PCacheError as error:
            log.warning("making room: %s", error)

    async def _free(self, wanted: int) -> int:
        """Evict until so many bytes are free, as far as that can be had; returns how many models were to go."""
        async with self._turn:
            choice = await self._choose(0, wanted, self._kept(fresh=True))
            for victim in choice.plan.victims:
                await self._evict(victim)
            self._rounds += 1
        return len(choice.plan.victims)

    async def _choose(
        self, needed: int, more: int, kept: dict[str, str], *, rehearsal: bool = False
    ) -> Choice:
        store = self._context.store
        wanted = Wanted(needed, more, self._costs(), kept, self._last_copies(), rehearsal)
        return await pools.WORK.run(room.choose, store, wanted, time.time())

    def _costs(self) -> dict[str, float]:
        far = self._context.settings.origin_cost
        swarms = self._downloads.swarms
        known = {d: COST_PEER if swarm.replicated else far for d, swarm in swarms.items()}
        return dict.fromkeys(self._downloads.unopened, far) | known

    def _last_copies(self) -> set[str]:
        """Models that no other node of the cluster is known to have."""
        if self._context.link is None:
            return set()
        swarms = self._downloads.swarms
        # Nothing is heard yet of those that aren't opened since the start. One that can't be opened is no copy.
        unopened = self._downloads.unopened.keys() - self._downloads.unusable
        return {d for d in {*swarms, *unopened} if d not in swarms or not swarms[d].replicated}

    def _kept(self, *, fresh: bool) -> dict[str, str]:
        """Why models must not go, by digest. `fresh`: nobody has named one, so those just used stay, too."""
        kept: dict[str, str] = {}
        if not self._context.settings.origin and self._context.link is None:
            swarms = self._downloads.swarms
            kept |= {
                digest: _NO_WAY_BACK for digest in self._context.store.used_since(0.0)
                if digest not in swarms or not swarms[digest].replicated
            }  # fmt: skip
        if fresh:
            kept |= dict.fromkeys(self._context.store.used_since(time.time() - FRESH_S), _FRESH)
        return kept | self._downloads.busy()

    async def _evict(self, victim: Victim) -> int:
        """Evict one model; returns the bytes of disk freed, 0 if somebody has begun to use it."""
        store, began = self._context.store, time.monotonic()
        known = await pools.STEPS.run(store.model_info, victim.digest)
        name = _name(known) if known is not None else ""
        claims = await pools.STEPS.run(lambda: room.claimed(store, time.time(), ordered=False))
        if victim.digest in claims:  # since it was chosen: others went first, which takes time
            log.info("%s isn't evicted: %s", name, claims[victim.digest])
            return 0
        try:
            freed = await self._evict_part(victim) if victim.bytes_left else 0
            if not freed:
                freed = await self._downloads.evict(victim.digest, victim.value)
        except (Conflict, NotFound) as error:
            log.info("%s isn't evicted: %s", name, error)
            return 0
        log.info("evicted %s (%d bytes freed)", name, freed)
        self._journal.record(
            "evict", ref=name if known and known.names else "", digest=victim.digest, size_bytes=freed,
            seconds=time.monotonic() - began,
        )  # fmt: skip
        return freed

    async def _evict_part(self, victim: Victim) -> int:
        """Give back a part of a model, and serve the rest; returns the bytes of disk freed, 0: all of it must go.

        Raises:
            Conflict, NotFound: it is in use, or not here.
            P2PCacheError: the disk refused.
        """
        work = partial(self._let_go, victim)
        return await self._downloads.in_turn(victim.digest, work)

    async def _let_go(self, victim: Victim) -> int:
        store, downloads, digest = self._context.store, self._downloads, victim.digest
        swarm = downloads.swarms.get(digest)
        if swarm is None or digest in downloads.in_use:
            raise Conflict("somebody uses it, or it has just gone")
        may_go = swarm.store.have_runs() & ~store.orders.runs(digest)
        elsewhere = swarm.neighbours.runs_elsewhere()
        # More than asked, for blocks and ends of runs: who needs the room mustn't find that it lacks some.
        size = victim.bytes_freed + PART_SLACK_BYTES
        runs = runs_to_go(swarm.layout.run_bytes, may_go, elsewhere, size)
        runs |= swarm.store.dear_to_keep(runs, may_go)
        if not swarm.store.have_runs() & ~runs:
            return 0
        swarm.pause()  # it would fetch again what it lost
        try:
            return await pools.WORK.run(store.removal.let_go, swarm.store, runs)
        except Conflict as error:
            users = await pools.WORK.run(store.users_of, [digest])
            if digest in users.held or swarm.store.pins:
                raise
            log.info("%s", error)  # a part that can't stay doesn't keep all of it
            return 0
        except NoSpace as error:
            if store.orders.runs(digest):
                raise Conflict(f"what is kept of it can't be copied: {error}") from error
            log.info("%s", error)
            return 0

    async def _answer(self, choice: Choice, *, dry_run: bool) -> dict[str, object]:
        """Perform a choice unless it's a rehearsal, and say what went and what stayed."""
        infos = {i.digest: i for i in await pools.STEPS.run(self._context.store.models)}
        body = room.told(choice, infos, self._costs(), time.time())
        freed = choice.plan.bytes_freed
        if not dry_run:
            freed = 0
            for victim in choice.plan.victims:
                freed += await self._evict(victim)
            self._rounds += 1
        return {**body, "bytes_freed": freed, "dry_run": dry_run}


def _name(known: ModelInfo) -> str:
    return str(known.names[0]) if known.names else f"blake3:{known.digest}"
