"""When a node looks at what waits for it beyond a boundary of racks or sites. Pure."""

import math
from collections.abc import Iterable

from p2pcache.core.download.in_flight import Asked
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.request_timing import Timing
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunBook


class Lookout:
    """What a neighbour beyond a boundary has waits for its bridge, but not for ever: see `PeerBook.look_beyond`."""

    def __init__(
        self, mine: RunBook, book: PeerBook, timing: Timing, settings: SwarmSettings, now: float
    ) -> None:
        self._mine = mine
        self._book = book
        self._timing = timing
        self._settings = settings
        self._looked_at = now
        self._fed_at = math.inf  # since when something waits there and nothing comes; inf: never

    def fed(self, now: float) -> None:
        """A run came."""
        self._fed_at = now

    def look(self, requests: Iterable[Asked], now: float) -> float:
        """See what waits beyond the boundaries, if it is time to; returns when to look again."""
        if not self._book.bounded or not self._mine.needed:
            self._fed_at = math.inf
            return math.inf
        # While storage is slow nothing waits out there, and what comes up then is left to its bridge.
        waits = any(self._book.beyond(self._mine.needed))
        self._fed_at = min(self._fed_at, now) if waits else now
        # Or one who waits for a full uplink, as all do, would seem to have forgotten it.
        least_s = self._settings.cross_after_s
        pause_s = self._timing.look_away_s(least_s)
        if now >= self._looked_at + pause_s:
            ages = [now - a.started for a in requests if a.live and a.peer.distance]
            pause_s = max(pause_s, self._timing.look_away_s(least_s, ages))
        if now >= self._looked_at + pause_s or (self._looks_sooner and self._starved(now)):
            self._looked_at = now
            self._book.look_beyond(self._mine.needed, starved=self._starved(now))
        # By then more may be known of how long a request takes.
        return min(self._looked_at + pause_s, now + least_s)

    @property
    def _looks_sooner(self) -> bool:
        """Whether who starves doesn't wait for its next look: once, if it never had a run and others want other ones.

        A bridge that doesn't want a run doesn't bring it. (One that does may have a thin uplink: looking sooner
        then, 24 nodes had 0.33 of the bound for 0.41, and 2.8 copies crossed for 2.2.)
        """
        mine, due = self._mine, self._fed_at + self._settings.stuck_after_s
        return self._timing.is_unknown and mine.wanted != mine.full and self._looked_at < due

    def _starved(self, now: float) -> bool:
        """Nothing has come for long, and nothing is on its way."""
        busy = self._mine.asked | self._mine.fetching | self._mine.leased
        return not busy and now >= self._fed_at + self._settings.stuck_after_s
