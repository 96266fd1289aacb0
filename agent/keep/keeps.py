"""Models and parts of models that the tracker orders this node to keep: they are fetched, shown and dropped here.

The list is in the cache dir (`store.orders`), so it holds over restarts and without a tracker. This looks at it again
and again, and does what is missing: no step depends on the one before having ended.
"""

import asyncio
import contextlib
import logging
import time
from math import inf

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.downloads.priority import DownloadOrder
from p2pcache.agent.downloads.spellings import Spellings
from p2pcache.agent.jobs.pulls import Pulls
from p2pcache.agent.keep.kept_report import KeptRows, refusal_of
from p2pcache.core import bitset
from p2pcache.core.pool.kept_models import KeptModel, OrderUpdate
from p2pcache.core.protocol.keep_orders import KeepOrders
from p2pcache.core.upload.priority import Priority
from p2pcache.errors import Conflict, NotFound, P2PCacheError, RemoteProtocolError
from p2pcache.ids import Ref, RunSet
from p2pcache.io import pools
from p2pcache.io.models import room
from p2pcache.io.models.model_chunks import ModelStore

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at what is missing
FETCHES = 4  # models at once: more would share the same link
WATCH_S = 0.25  # between two looks at a fetch
COUNT_S = 10.0  # between two counts of what a fetch has brought: each is a message to the tracker
AGAIN_S = 5.0  # before the first try again; twice as long each time
LONGEST_S = 300.0  # between two tries: somebody may have made room
SAME_USE_S = 2.0  # a use so soon after a model was shown is the showing itself
_CLIENT = "keep"


class Keeps:
    """What is ordered here. It is used on the loop's thread."""

    def __init__(
        self, context: AgentContext, downloads: DownloadManager, pulls: Pulls, order: DownloadOrder,
        spellings: Spellings,
    ) -> None:  # fmt: skip
        self._context = context
        self._downloads = downloads
        self._pulls = pulls
        self._order = order
        self._spellings = spellings
        self._parts = OrderUpdate()
        self._rows = KeptRows(context)
        self._looking = asyncio.Lock()
        self._fetching: set[str] = set()
        self._retry: dict[str, tuple[float, float]] = {}  # when to try again, and the pause before
        self._drop_at: dict[str, float] = {}  # when to look again whether a model is still used
        self._write_at = -inf
        self._swept: set[str] = set()  # what a crash may have left of these is gone

    def start(self) -> None:
        """Begin to look."""
        self._context.tasks.every(LOOK_S, self._look, name="keep")

    async def on_orders(self, part: KeepOrders) -> None:
        """The tracker sends a part of its list. One that breaks the rules changes nothing."""
        try:
            orders = self._parts.take_part(part)
        except RemoteProtocolError as error:
            log.warning("what the tracker orders to keep isn't heeded: %s", error)
            return
        if orders is None:
            return
        store = self._context.store
        async with self._looking:  # lists are taken in the order in which they came
            known = await pools.STEPS.run(store.models)
            present = {
                one.digest for one in known if one.bytes_done or (one.names and not one.remote)
            }
            before = {kept.digest: kept.ordered for kept in store.orders.all_kept()}
            await pools.STEPS.run(store.orders.replace, orders, present)
            for kept in store.orders.all_kept():
                if before.get(kept.digest) != kept.ordered:
                    self._retry.pop(kept.digest, None)  # another order may fit
            self._rows.on_new_list()
        await self._look()

    def figures(self) -> tuple[int, int, int]:
        """Bytes of ordered parts that are here; bytes ordered; ordered models that can't be kept.

        Bytes are those of open models: each one is a moment after the start.
        """
        had = wanted = 0
        for kept in self._context.store.orders.all_kept():
            swarm = self._downloads.swarms.get(kept.digest)
            if swarm is not None and kept.ordered:
                ordered = kept.ordered & bitset.full(swarm.layout.run_count)
                wanted += swarm.layout.bytes_of(ordered)
                had += swarm.layout.bytes_of(ordered & swarm.have_runs())
        return had, wanted, self._rows.refused

    async def _look(self) -> None:
        async with self._looking:
            for step in (self._drop, self._see_to):  # what comes may need the room of what goes
                for kept in self._context.store.orders.all_kept():
                    try:
                        await step(kept)
                    except P2PCacheError as error:
                        log.warning("keeping %s: %s", kept.ref.short, error)
            self._rows.tell_changes(self._context.store.orders.all_kept())
            await self._write_again()

    async def _write_again(self) -> None:
        """Write the list down that a full disk refused: after a restart it would be another."""
        now, orders = self._context.now(), self._context.store.orders
        if orders.unwritten and now >= self._write_at:
            self._write_at = now + AGAIN_S
            await pools.STEPS.run(orders.write_again)

    async def _see_to(self, kept: KeptModel) -> None:
        model = await self._model(kept.digest)
        if model is not None and kept.digest not in self._swept:
            self._swept.add(kept.digest)
            await pools.WORK.run(self._context.store.removal.free_holes, model)
        if not kept.ordered or kept.digest in self._fetching:
            return
        missing = model is None or bool(missing_runs(kept, model))
        due = missing or (kept.whole and not kept.shown_at)
        if not due:
            self._retry.pop(kept.digest, None)
            return
        again_at, _ = self._retry.get(kept.digest, (-inf, 0.0))
        if self._context.now() >= again_at and len(self._fetching) < FETCHES:
            self._fetching.add(kept.digest)
            work = self._keep(kept)
            self._context.tasks.spawn_contained(work, name=f"keep-{kept.digest[:12]}")

    async def _model(self, digest: str) -> ModelStore | None:
        swarm = self._downloads.swarms.get(digest)
        return swarm.store if swarm else await pools.STEPS.run(self._context.store.get, digest)

    # -- fetching ----------------------------------------------------------------------------------

    async def _keep(self, kept: KeptModel) -> None:
        """Fetch what is missing of a model; a failure is told, and tried again later."""
        digest = kept.digest
        try:
            began = time.monotonic()
            with contextlib.ExitStack() as use:
                download = await self._fetch(kept, use)
                if kept.whole:
                    await self._show(kept, download)
            self._rows.forgive(digest)
            self._retry.pop(digest, None)
            log.info(
                "keeping %s: all is here after %.1f s", kept.ref.short, time.monotonic() - began
            )
        except Conflict as error:  # the next look sees how things are
            log.info("keeping %s: %s", kept.ref.short, error)
        except P2PCacheError as error:
            code = refusal_of(error, self._context.store.limits.quota_bytes)
            _, pause = self._retry.get(digest, (0.0, AGAIN_S / 2))
            pause = min(LONGEST_S, 2 * pause)
            self._retry[digest] = self._context.now() + pause, pause
            if self._rows.refuse(kept.digest, code, str(error)):
                log.warning("keeping %s: %s", kept.ref.short, error)
        finally:
            self._fetching.discard(digest)

    async def _fetch(self, kept: KeptModel, use: contextlib.ExitStack) -> Download:
        """Fetch the ordered runs behind all pulls; return when they are here, or the order has changed.

        Raises:
            NoSpace: they don't fit.
            P2PCacheError: as `DownloadManager.join_or_begin`, or why the fetch failed.
        """

        async def begin() -> Download:
            download = await self._downloads.join_or_begin(
                kept.ref, kept.digest, use, whole=kept.whole, kept=True
            )
            if not kept.whole:
                layout, store = download.swarm.layout, download.swarm.store
                missing = layout.bytes_of(missing_runs(kept, store))
                await pools.STEPS.run(store.check_space, missing)
            return download

        download = await self._order.begin_making_room(
            begin, kept.ref, kept.digest, Priority.BACKGROUND
        )
        self._order.on_client(download, Priority.BACKGROUND)
        self._spellings.learn(kept.ref, download)
        store = download.swarm.store
        counted, count_at = 0, self._context.now() + COUNT_S

        def count() -> None:
            nonlocal counted
            before, counted = counted, _moved(download)
            self._rows.on_fetched(kept.digest, counted - before)

        with contextlib.ExitStack() as stack:
            stack.callback(count)
            if kept.whole or not download.whole:
                stack.enter_context(download.client(kept.ref))
            if not kept.whole:
                runs = kept.ordered & bitset.full(download.swarm.layout.run_count)
                download.wish(_CLIENT, runs)
                stack.callback(download.forget_wish, _CLIENT)
            while kept.whole or missing_runs(kept, store):
                await asyncio.wait([download.ended], timeout=WATCH_S)
                if self._context.now() >= count_at:
                    count_at = self._context.now() + COUNT_S
                    count()
                if download.ended.done():
                    download.ended.result()
                    break
                now = self._context.store.orders.kept_of(kept.digest)
                if now is None or now.ordered != kept.ordered:
                    raise Conflict("the order changed meanwhile")
                if download.whole and not kept.whole:
                    stack.close()  # a client pulls all of it: when it leaves, the pull ends
        await pools.PULLS.run(store.flush)
        return download

    async def _show(self, kept: KeptModel, download: Download) -> None:
        """Publish a whole model, under its tag if that still means it."""
        ref = kept.ref
        tag = Ref(ref.namespace, ref.name, ref.tag)
        resolved = await self._pulls.resolve(tag)
        named = tag if resolved.digest == kept.digest else ref
        await self._downloads.publish_model(download, named, resolved.generation)
        info = await pools.STEPS.run(self._context.store.model_info, kept.digest)
        shown_at = max(time.time(), info.last_used if info is not None else 0.0)
        await pools.STEPS.run(self._context.store.orders.change, kept._replace(shown_at=shown_at))

    # -- dropping ----------------------------------------------------------------------------------

    async def _drop(self, kept: KeptModel) -> None:
        """Give back what is ordered no more, unless somebody uses the model; then later."""
        if not kept.leaving:
            return
        store, digest = self._context.store, kept.digest
        done, model = kept._replace(leaving=0), await self._model(digest)
        if model is None or not kept.brought:
            await pools.STEPS.run(store.orders.change, done)
            return
        info = await pools.STEPS.run(store.model_info, digest)
        ours = (
            bool(kept.shown_at)
            and info is not None
            and info.last_used <= kept.shown_at + SAME_USE_S
        )
        names = await pools.STEPS.run(store.names_of, digest)
        # A tag without a tree is that of a model that was evicted before: it goes back to being `remote`.
        evicted = info is not None and bool(info.tags)
        shown = await pools.STEPS.run(store.removal.shows, digest)
        evicted, shown = evicted and not shown, shown or (bool(names) and not evicted)
        if shown and not ours:  # a client has pulled it since: it is a model like any other
            await pools.STEPS.run(store.orders.change, done._replace(brought=False))
            return
        claimed = await pools.STEPS.run(lambda: room.claimed(store, time.time(), ordered=False))
        if digest in self._downloads.in_use | self._fetching | claimed.keys():
            return
        if self._context.now() < self._drop_at.get(digest, -inf):
            return
        try:
            if (ours or evicted) and not kept.ordered:
                await self._downloads.evict(digest, 0.0)
            else:
                await self._downloads.in_turn(digest, lambda: self._let_go(kept))
        except (Conflict, NotFound) as error:
            # Later: a look at all processes isn't cheap, and an engine runs for days.
            self._drop_at[digest] = self._context.now() + AGAIN_S
            log.debug("%s is kept no more, and stays: %s", kept.ref.short, error)
            return
        self._drop_at.pop(digest, None)
        await pools.STEPS.run(store.orders.change, done._replace(shown_at=0.0))
        log.info("kept no more: %s", kept.ref.short)

    async def _let_go(self, kept: KeptModel) -> None:
        """Give back what is ordered no more; in the model's turn.

        Raises:
            Conflict: it is in use.
        """
        store, digest = self._context.store, kept.digest
        if digest in self._downloads.in_use:  # since it was looked at: the turn may have come late
            raise Conflict("a pull, a load or a push uses it")
        model = await self._model(digest)
        if model is None:
            return
        runs: RunSet = kept.leaving & model.have_runs() & ~kept.ordered
        await pools.WORK.run(store.removal.let_go, model, runs)
        if kept.shown_at:  # what is left is no model under its tag any more
            tag = Ref(kept.ref.namespace, kept.ref.name, kept.ref.tag)
            await pools.STEPS.run(store.remove_tag, tag)
        if not kept.ordered and not model.have_runs():
            await self._downloads.leave_for(
                digest, lambda: pools.WORK.run(store.remove_model, digest)
            )


def _moved(download: Download) -> int:
    """Bytes that it got from other nodes and from storage."""
    sources = download.sources()
    return sources["bytes_peers"] + sources["bytes_origin"]


def missing_runs(kept: KeptModel, model: ModelStore) -> RunSet:
    """The ordered runs that aren't here."""
    return kept.ordered & bitset.full(model.layout.run_count) & ~model.have_runs()
