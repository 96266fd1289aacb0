"""HandshakePlaces for handshakes: how many may be under way, and who makes room when strangers hold them all."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from p2pcache.core.membership.crowded_address import crowd_of, oldest_of_the_crowd
from p2pcache.errors import Unreachable

MOST = 256  # handshakes at once: each costs some 100 KiB ...
EACH = 64  # ... and one address (a rack behind NAT, a test) has no more of them
CROWDED = (
    8  # more than ours: at once; a storm of agents, a few of each address, ends quicker in peace
)
PLACE_S = 2.0  # a storm behind one address takes less; an honest handshake takes milliseconds


@dataclass(eq=False, slots=True)
class _Guest:
    crowd: str
    share: asyncio.Semaphore | None  # to be given back; None: somebody has taken it over
    turn_out: Callable[[], object]
    since: float  # monotonic


class HandshakePlaces:
    """Handshakes under way. All on the loop's thread.

    Invariant: `_guests` holds at most `MOST`, the oldest first, and at most `EACH` of one crowd.
    """

    def __init__(self) -> None:
        self._guests: dict[_Guest, None] = {}
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._present: Counter[str] = Counter()  # under way or waiting, by crowd; no zeros

    def __len__(self) -> int:
        return len(self._guests)

    @contextlib.asynccontextmanager
    async def one(self, address: str, turn_out: Callable[[], object]) -> AsyncIterator[None]:
        """A place for a handshake. Who comes from an address that has its share waits a little.

        Args:
            address: where it comes from.
            turn_out: ends its connection: somebody else needs the place more.

        Raises:
            Unreachable: those who could make room have only just come.
        """
        crowd = crowd_of(address)
        share = self._shares.setdefault(crowd, asyncio.Semaphore(EACH))
        self._present[crowd] += 1
        try:
            await self._turn(crowd, share)
            guest = _Guest(crowd, share, turn_out, time.monotonic())
            try:
                self._make_room(crowd)
                self._guests[guest] = None
                yield
            finally:
                self._leave(guest)
        finally:
            self._present[crowd] -= 1
            if not self._present[crowd]:
                del self._present[crowd], self._shares[crowd]

    async def _turn(self, crowd: str, share: asyncio.Semaphore) -> None:
        """Wait for one of the crowd's own places; who has held one for longer than that gives it up."""
        try:
            async with asyncio.timeout(PLACE_S):
                await share.acquire()
        except TimeoutError:
            oldest = self._patient(crowd)
            oldest.share = None  # ours from here on
            self._turn_out(oldest)

    def _make_room(self, crowd: str) -> None:
        """In a full house the oldest of the most crowded address goes."""
        if len(self._guests) < MOST:
            return
        oldest = oldest_of_the_crowd(self._guests, lambda guest: guest.crowd)
        of = Counter(guest.crowd for guest in self._guests)
        ahead = 0 if oldest is None else of[oldest.crowd] - of[crowd]
        if oldest is None or ahead <= 0:
            oldest = self._patient(crowd)
        elif ahead <= CROWDED and _held_s(oldest) < PLACE_S:
            raise _busy()
        self._turn_out(oldest)

    def _patient(self, crowd: str) -> _Guest:
        """The oldest of a crowd, if it has been at it for longer than an honest one needs."""
        oldest = next((guest for guest in self._guests if guest.crowd == crowd), None)
        if oldest is None or _held_s(oldest) < PLACE_S:
            raise _busy()
        return oldest

    def _turn_out(self, guest: _Guest) -> None:
        self._leave(guest)
        guest.turn_out()

    def _leave(self, guest: _Guest) -> None:
        self._guests.pop(guest, None)
        if guest.share is not None:
            guest.share.release()
            guest.share = None


def _held_s(guest: _Guest) -> float:
    return time.monotonic() - guest.since


def _busy() -> Unreachable:
    return Unreachable("the tracker is busy; try again in a moment")
