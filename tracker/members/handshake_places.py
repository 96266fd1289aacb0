"""Places for handshakes: the limit of handshakes at once, and the choice of the one that makes room."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from p2pcache.core.membership.crowded_address import crowd_of, oldest_of_the_crowd
from p2pcache.errors import Unreachable

MOST = 256  # handshakes at once, because each costs memory
EACH = 64  # handshakes at once of one address, such as a rack behind NAT
# A crowd with more handshakes than ours and this makes room at once. A smaller lead doesn't count: a storm of agents,
# a few of each address, ends sooner if their handshakes are left alone.
CROWDED = 8
PLACE_S = 2.0  # a storm behind one address takes less; an honest handshake takes milliseconds


@dataclass(eq=False, slots=True)
class _Guest:
    crowd: str
    share: asyncio.Semaphore | None  # to be released; None: another handshake has taken it over
    turn_out: Callable[[], object]  # ends its connection
    since: float  # monotonic


class HandshakePlaces:
    """The handshakes under way, on the loop's thread.

    Invariant: `_guests` holds at most `MOST`, the oldest first, and at most `EACH` of one crowd.
    """

    def __init__(self) -> None:
        self._guests: dict[_Guest, None] = {}
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._present: Counter[str] = Counter()  # under way or waiting, by crowd; no zeros

    def __len__(self) -> int:
        return len(self._guests)

    @contextlib.asynccontextmanager
    async def hold_place(self, address: str, turn_out: Callable[[], object]) -> AsyncIterator[None]:
        """Hold a place for a handshake. If its address has its share of places, it waits a little first.

        Args:
            address: of the connection.
            turn_out: ends the connection when another handshake gets the place.

        Raises:
            Unreachable: every handshake that could make room has only just begun.
        """
        crowd = crowd_of(address)
        share = self._shares.setdefault(crowd, asyncio.Semaphore(EACH))
        self._present[crowd] += 1
        try:
            await self._wait_for_share(crowd, share)
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

    async def _wait_for_share(self, crowd: str, share: asyncio.Semaphore) -> None:
        """Wait for one of the crowd's places; after `PLACE_S` its oldest handshake gives one up."""
        try:
            async with asyncio.timeout(PLACE_S):
                await share.acquire()
        except TimeoutError:
            oldest = self._overdue(crowd)
            oldest.share = None  # this handshake holds it now
            self._turn_out(oldest)

    def _make_room(self, crowd: str) -> None:
        """If all places are taken, end the oldest handshake of the most crowded address."""
        if len(self._guests) < MOST:
            return
        oldest = oldest_of_the_crowd(self._guests, lambda guest: guest.crowd)
        of = Counter(guest.crowd for guest in self._guests)
        ahead = 0 if oldest is None else of[oldest.crowd] - of[crowd]
        if oldest is None or ahead <= 0:
            oldest = self._overdue(crowd)
        elif ahead <= CROWDED and _held_s(oldest) < PLACE_S:
            raise _busy()
        self._turn_out(oldest)

    def _overdue(self, crowd: str) -> _Guest:
        """The oldest handshake of a crowd, if it has lasted longer than an honest one needs."""
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
