"""The end of a pull: a second request for a run that takes far too long (end game: Cohen 2003)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from p2pcache.core.download import piece_picker
from p2pcache.core.download.in_flight import PeerRequest, Requests
from p2pcache.core.download.settings import ANYWHERE, NOT_YET, REVIEW_S
from p2pcache.core.origin.readings import Reading
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.settings import FIRST_STEPS_S
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.racks.bridges import EVERYWHERE, WITHIN
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import RunIndex


class Endgame:
    """Chooses duplicates: which request or read gets one, and which neighbour is asked.

    A request within the rack may be duplicated within the rack only, until it is late twice over. A run that is late
    across a boundary is late mostly because of the boundary, and a second request there makes it worse.
    """

    def __init__(self, context: SwarmContext, requests: Requests, timing: RequestTiming) -> None:
        """Nothing is overdue."""
        self._context = context
        self._requests = requests
        self._timing = timing
        self.deadline = math.inf  # of the next duplicate, as of the last `candidates`

    def patience_s(self, peer: Peer | None) -> float:
        """Seconds that a request to a neighbour may take before it is overdue; None: a read of the origin."""
        settings = self._context.settings
        usual_s = self._timing.usual_s(across=peer is not None and peer.distance > 0)
        if usual_s == math.inf:  # no request has ended yet, and this one may never
            usual_s = FIRST_STEPS_S
        return max(settings.duplicate_min_s, settings.duplicate_after * usual_s)

    def candidates(
        self, readings: Iterable[Reading], now: float
    ) -> Iterator[tuple[RunIndex, Peer]]:
        """Each run whose request or read is overdue, and whom to ask for it; the caller asks before it goes on."""
        states, book, requests = self._context.states, self._context.book, self._requests
        self.deadline = math.inf
        times = NOT_YET if states.free else 1
        in_flight: list[PeerRequest | Reading] = [*requests.live.values()]
        if states.fetching & book.rarity.held:
            in_flight += readings
        # The run of a probe is free: it is asked of others without a duplicate.
        in_flight = [one for one in in_flight if isinstance(one, Reading) or one.peer.delivers]
        times_fetched = Counter(one.run for one in in_flight)
        for one in in_flight:
            if not requests.may_ask(requests.usual, across=True):
                return
            first = one.peer if isinstance(one, PeerRequest) else None
            since = one.since if isinstance(one, PeerRequest) else one.started
            if times_fetched[one.run] > 1:
                continue
            limit_s = times * self.patience_s(first)
            if now < since + limit_s:
                self.deadline = min(self.deadline, since + limit_s)
                continue
            reach = EVERYWHERE if now >= since + ANYWHERE * limit_s else WITHIN
            others = [p for p in book.peers.values() if p is not first and p.delivers]
            other, _ = piece_picker.choose_peer(
                others, 1 << one.run, now, requests.per_peer, self._context.dice, reach
            )
            if other is not None:
                yield one.run, other
            else:  # Nobody else can be asked now. The next have batch may change that.
                self.deadline = min(self.deadline, now + REVIEW_S)
