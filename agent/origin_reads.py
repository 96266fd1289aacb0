"""Reads of leased runs from the origin, and what is known of those that went wrong."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pcache.core.format.layout import Layout
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError, without_frames
from p2pcache.ids import Ref, RunIndex
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.origins.fetch import fetch_runs
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.peers.protocol.limits import BothRates, TokenBucket
from p2pcache.io.sources.referenced import SourcedReads
from p2pcache.io.sources.source import Sources
from p2pcache.io.tasks import THREAD_IDLE_S, Threads

OPENING_S = (
    30.0  # to wait for imports and for credentials from instance roles; a lease lives about as long
)
# As many reads as one swarm has at most: one connection to S3 is slow, and leases are the limit.
ORIGIN_THREADS = SwarmSettings().origin_fetches + SwarmSettings().origin_ahead

WRONG_KEPT = (
    1000  # notes of wrong reads; the pulls of a model stop at its second one, so this is plenty
)


CANCELLED_S = 1.0  # until reads that are cancelled have ended, at the end
# Seconds between two looks of the loop for runs in the middle of a request, which only a node alone has: no other node
# waits to hear of them, and clients are shown four figures a second. A thread that woke the loop would hold the
# interpreter's lock meanwhile, and all others would wait for it.
LOOK_S = 0.1


@dataclass(slots=True)
class LeasedRun:
    """A run to read.

    Attributes:
        run: which.
        cancelled: set when it isn't wanted any more.
        on_ended: called on the loop, once, with the seconds from the request's first byte on (0: none came).
        begun: its request has, so an agent that stops waits for it.
    """

    run: RunIndex
    cancelled: threading.Event
    on_ended: Callable[[Outcome, float], None]
    begun: bool = False
    ended: bool = False

    def end(self, outcome: Outcome, flow_s: float = 0.0) -> None:
        """Tell the end; later ends of the same run are ignored."""
        if not self.ended:
            self.ended = True
            self.on_ended(outcome, flow_s)


class OriginReads:
    """Reads leased runs from the origin on threads of its own.

    `settled` is clear while the origin is being opened.
    """

    def __init__(self, bytes_per_s: int, disk: TokenBucket, sources: Sources | None = None) -> None:
        """No storage yet.

        Args:
            bytes_per_s: cap on reads of the origin and of sources; 0: none.
            disk: the rate of writes to the cache, which reads keep, too.
            sources: that are configured on this node; None: none are.
        """
        self.sourced = SourcedReads(Sources({}) if sources is None else sources)
        self.repo: OriginRepo | None = None
        self.unopened: P2PCacheError | None = None  # why `repo` is None, if an origin is configured
        self.settled = asyncio.Event()
        self.settled.set()
        self.limiter = BothRates(TokenBucket(bytes_per_s), disk)
        self._threads = Threads(ORIGIN_THREADS, name="origin")
        self._reading = 0
        self._ends: deque[Callable[[], None]] = deque()  # of reads; the loop hasn't heard of them
        self._look: asyncio.TimerHandle | None = None  # runs while a request of several runs does
        self._at_rest: asyncio.TimerHandle | None = None  # runs while no read is in flight
        self._over = False  # no read may go on or begin: the store is about to be closed
        self._wrong: dict[tuple[str, int], str] = {}
        self._why: dict[str, P2PCacheError] = {}
        # A model that others have and our storage hasn't, and what was wrong; until a read succeeds again.
        self.odd: tuple[Ref, str] | None = None

    async def read(self, layout: Layout, store: ModelStore, runs: Sequence[LeasedRun]) -> None:
        """Read, prove and store runs in one request where they lie side by side; each is told of its end.

        Faults of the origin become outcomes, not errors.
        """
        # A lease that is granted while the origin is being opened must not be returned as failed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                await self.settled.wait()
        if self._over:
            for one in runs:
                one.end(Outcome.CANCELLED)
            return
        repo = self.repo
        if repo is None:
            self._why[layout.digest] = self.unopened or OriginUnavailable("no storage is open here")
            for one in runs:
                one.end(Outcome.UNAVAILABLE)
            return
        by_index = {one.run: one for one in runs}
        wrong: dict[RunIndex, str] = {}
        trouble: list[P2PCacheError] = []

        began: list[float] = []  # when the first bytes came

        def ended(run: RunIndex, outcome: Outcome) -> None:
            why = trouble[-1] if trouble else None
            flow_s = time.monotonic() - began[0] if began else 0.0
            self._ends.append(
                lambda: self._on_ended(
                    layout.digest, by_index[run], outcome, wrong.get(run, ""), why, flow_s
                )
            )

        def read() -> None:
            fetch_runs(
                self.sourced.blobs(repo, layout), layout, store, [one.run for one in runs], on_ended=ended,
                cancelled=lambda run: by_index[run].cancelled.is_set() or self._over, limiter=self.limiter,
                on_wrong=wrong.__setitem__, on_trouble=trouble.append,
                on_begin=lambda: began.append(time.monotonic()),
            )  # fmt: skip

        for one in runs:
            one.begun = True
        self._begin()
        if len(runs) > 1 and self._look is None:
            self._look_later()
        try:
            await self._threads.run(read)
        except NotAllowed as error:  # no thread to read with
            for one in runs:
                self._on_ended(layout.digest, one, Outcome.UNAVAILABLE, "", error)
        finally:
            self._end()
            self._deliver()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self._deliver()
        if self._reading:
            self._look_later()

    def _deliver(self) -> None:
        while self._ends:
            self._ends.popleft()()

    def _on_ended(
        self, digest: str, one: LeasedRun, outcome: Outcome, wrong: str, why: P2PCacheError | None,
        flow_s: float = 0.0,
    ) -> None:  # fmt: skip
        if outcome is Outcome.DONE:
            self.odd = None
        self._note_wrong(digest, one.run, wrong)
        self._why.pop(digest, None)
        if why is not None:
            self._why[digest] = without_frames(why)
        one.end(outcome, flow_s)

    def wrong_read(self, digest: str, run: RunIndex) -> str:
        """Why the last read of a run found other bytes than were pushed; "": it didn't, or there was none."""
        return self._wrong.get((digest, run), "")

    def last_error(self, digest: str) -> P2PCacheError | None:
        """Why the last read of a model failed; None: it didn't, or there was none."""
        return self._why.get(digest)

    def take_wrong(self, digest: str) -> str:
        """Why a read of a model found other bytes than were pushed since the last call of this; "": none did."""
        found = {key: why for key, why in self._wrong.items() if key[0] == digest}
        for key in found:
            del self._wrong[key]
        return next(iter(found.values()), "")

    def _begin(self) -> None:
        self._reading += 1
        if self._at_rest is not None:
            self._at_rest.cancel()
            self._at_rest = None

    def _end(self) -> None:
        self._reading -= 1
        if not self._reading:
            # Close idle connections when their threads end: many reads at once leave many, and storage drops them
            # before they would be used again.
            self._at_rest = asyncio.get_running_loop().call_later(THREAD_IDLE_S, self._rest)

    def _rest(self) -> None:
        if self.repo is not None:
            self.repo.origin.rest()
        self.sourced.rest()

    def _note_wrong(self, digest: str, run: RunIndex, wrong: str) -> None:
        self._wrong.pop((digest, run), None)
        if wrong:
            self._wrong[digest, run] = wrong
            if len(self._wrong) > WRONG_KEPT:
                del self._wrong[next(iter(self._wrong))]

    async def drained(self, limit_s: float) -> None:
        """Wait until all reads that have begun have ended, so that none writes into a closed store.

        Those that take longer than the limit are cancelled. None begins afterwards.
        """
        now = time.monotonic()
        over_at, deadline = now + limit_s, now + limit_s + CANCELLED_S
        while self._reading and now < deadline:
            self._over = now >= over_at
            await asyncio.sleep(0.02)
            now = time.monotonic()
        self._over = True
