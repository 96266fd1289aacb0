"""Reads of leased runs from the origin, and what is known of those that went wrong."""

import asyncio
import contextlib
import threading
import time

from p2pcache.core.format.layout import Layout
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError, without_frames
from p2pcache.ids import Ref, RunIndex
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.origins.fetch import fetch_run
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.peers.protocol.limits import BothRates, TokenBucket
from p2pcache.io.tasks import THREAD_IDLE_S, Threads

OPENING_S = (
    30.0  # to wait for imports and for credentials from instance roles; a lease lives about as long
)
# As many reads as one swarm has at most: one connection to S3 is slow, and leases are the limit.
ORIGIN_THREADS = SwarmSettings().origin_fetches + SwarmSettings().origin_ahead

WRONG_KEPT = (
    1000  # notes of wrong reads; the pulls of a model stop at its second one, so this is plenty
)


class OriginReads:
    """Reads leased runs from the origin on threads of its own.

    `settled` is clear while the origin is being opened.
    """

    def __init__(self, bytes_per_s: int, disk: TokenBucket) -> None:
        """No storage yet.

        Args:
            bytes_per_s: cap on reads of the origin; 0: none.
            disk: the rate of writes to the cache, which reads keep, too.
        """
        self.repo: OriginRepo | None = None
        self.unopened: P2PCacheError | None = None  # why `repo` is None, if an origin is configured
        self.settled = asyncio.Event()
        self.settled.set()
        self._limiter = BothRates(TokenBucket(bytes_per_s), disk)
        self._threads = Threads(ORIGIN_THREADS, name="origin")
        self._reading = 0
        self._at_rest: asyncio.TimerHandle | None = None  # runs while no read is in flight
        self._wrong: dict[tuple[str, int], str] = {}
        self._why: dict[str, P2PCacheError] = {}
        # A model that others have and our storage hasn't, and what was wrong; until a read succeeds again.
        self.odd: tuple[Ref, str] | None = None

    async def fetch(
        self, layout: Layout, store: ModelStore, run: RunIndex, cancelled: threading.Event
    ) -> Outcome:
        """Read, prove and store one run, until `cancelled` is set. Faults of the origin become outcomes, not errors."""
        # A lease that is granted while the origin is being opened must not be returned as failed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                await self.settled.wait()
        repo = self.repo
        if repo is None:
            self._why[layout.digest] = self.unopened or OriginUnavailable("no storage is open here")
            return Outcome.UNAVAILABLE
        wrong: list[str] = []
        trouble: list[P2PCacheError] = []

        def read() -> Outcome:
            return fetch_run(
                repo, layout, store, run,
                on_bytes=lambda count: None, cancelled=cancelled.is_set, limiter=self._limiter,
                on_wrong=wrong.append, on_trouble=trouble.append,
            )  # fmt: skip

        self._begin()
        try:
            outcome = await self._threads.run(read)
            if outcome is Outcome.DONE:
                self.odd = None
            return outcome
        except NotAllowed as error:  # no thread to read with
            trouble.append(error)
            return Outcome.UNAVAILABLE
        finally:
            self._end()
            self._note_wrong(layout.digest, run, wrong)
            self._why.pop(layout.digest, None)
            if trouble:
                self._why[layout.digest] = without_frames(trouble[-1])

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

    def _note_wrong(self, digest: str, run: RunIndex, wrong: list[str]) -> None:
        self._wrong.pop((digest, run), None)
        if wrong:
            self._wrong[digest, run] = wrong[-1]
            if len(self._wrong) > WRONG_KEPT:
                del self._wrong[next(iter(self._wrong))]

    async def drained(self, limit_s: float) -> None:
        """Wait until cancelled reads have ended, so that none writes into a closed store."""
        deadline = time.monotonic() + limit_s
        while self._reading and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.02)
