"""When a node looks at what its bridges haven't brought."""

import math
from collections.abc import Iterable, Sequence

from p2pcache.core.download.in_flight import PeerRequest
from p2pcache.core.download.settings import VERY_LATE
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.swarm_context import SwarmContext


class BridgeTimer:
    """A run beyond a boundary waits for its bridge, but not for ever: see `PeerBook.review_bridges`."""

    def __init__(self, context: SwarmContext, timing: RequestTiming, now: float) -> None:
        """The first look is due one pause from now."""
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self._on = context.on
        self._timing = timing
        self._looked_at = now
        self._waits_since = math.inf  # something waits out there and nothing came; inf: not so

    def on_run(self, now: float) -> None:
        """A run came."""
        self._waits_since = now

    def look_beyond(self, requests: Iterable[PeerRequest], now: float) -> float:
        """Look at what waits beyond the boundaries, if it is time to; returns the next deadline."""
        states, needed = self._states, self._states.needed
        if not self._book.has_boundaries or not needed or not self._on.bridge_review:
            self._waits_since = math.inf
            return math.inf
        # While storage is slow nothing waits out there, and the first runs that appear are left to their bridges.
        waits = any(self._book.only_beyond(needed))
        self._waits_since = min(self._waits_since, now) if waits else now
        starved_s, least_s = self._settings.stuck_after_s, self._settings.cross_after_s
        pause_s = self._patience_s()
        if self._timing.is_unknown and states.wanted != states.full:
            # A bridge doesn't bring runs that it doesn't want. One that wants them may have a thin uplink, so a node
            # that wants the whole model waits longer.
            pause_s = max(0.0, self._waits_since - self._looked_at) + starved_s
        elif now >= self._looked_at + pause_s:
            # A bridge behind a full uplink is as slow as our own requests across the boundary are at this moment.
            ages_s = [now - one.started for one in requests if one.peer.distance]
            pause_s = max(pause_s, self._patience_s(ages_s))
        if now >= self._looked_at + pause_s:
            self._looked_at = now
            busy = states.requested | states.fetching | states.leased
            starved = not busy and now >= self._waits_since + starved_s
            self._book.review_bridges(needed, starved=starved)
        # More may be known then of how long requests take.
        return min(self._looked_at + pause_s, now + least_s)

    def _patience_s(self, ages_s: Sequence[float] = ()) -> float:
        """Seconds to wait for a bridge: it asks for a run, then its rack asks it, and either request may be late.

        Before any request has ended it is waited for as an owner is.
        """
        settings, slower_s = self._settings, self._timing.slower_s(ages_s)
        late_s = VERY_LATE * settings.duplicate_after * slower_s
        return (
            max(settings.cross_after_s, late_s) if late_s < math.inf else settings.owner_patience_s
        )
