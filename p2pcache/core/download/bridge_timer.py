"""When a node looks at what its bridges haven't brought."""

import math
from collections.abc import Iterable

from p2pcache.core.download.in_flight import PeerRequest
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
        needed = self._states.needed
        if not self._book.has_boundaries or not needed or not self._on.bridge_review:
            self._waits_since = math.inf
            return math.inf
        # While storage is slow nothing waits out there, and the first runs that appear are left to their bridges.
        waits = any(self._book.only_beyond(needed))
        self._waits_since = min(self._waits_since, now) if waits else now
        least_s = self._settings.cross_after_s
        pause_s = self._timing.bridge_patience_s(least_s)
        if now >= self._looked_at + pause_s:
            # A bridge behind a full uplink is as slow as our own requests across the boundary are at this moment.
            ages_s = [now - one.started for one in requests if one.peer.distance]
            pause_s = max(pause_s, self._timing.bridge_patience_s(least_s, ages_s))
        if now >= self._looked_at + pause_s or (self._may_look_early and self._starved(now)):
            self._looked_at = now
            self._book.review_bridges(needed, starved=self._starved(now))
        # More may be known then of how long requests take.
        return min(self._looked_at + pause_s, now + least_s)

    @property
    def _may_look_early(self) -> bool:
        """Whether to skip the pause: once, for a node that wants part of the model and has received nothing.

        A bridge doesn't bring runs that it doesn't want. A bridge that does want them may have a thin uplink, so a
        node that wants the whole model doesn't look early.
        """
        states, due = self._states, self._waits_since + self._settings.stuck_after_s
        return (
            self._on.early_look
            and self._timing.is_unknown
            and states.wanted != states.full
            and self._looked_at < due
        )

    def _starved(self, now: float) -> bool:
        """Whether nothing has come for long and nothing is under way."""
        states = self._states
        busy = states.requested | states.fetching | states.leased
        return not busy and now >= self._waits_since + self._settings.stuck_after_s
