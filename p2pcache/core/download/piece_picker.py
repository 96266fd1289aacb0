"""Which neighbour to ask next, and for which run (rarest first in a window: Cohen 2003)."""

import math
from collections.abc import Iterable
from random import Random

from p2pcache.core import bitset
from p2pcache.core.download.settings import TIE_LIMIT
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import EVERYWHERE, Reach
from p2pcache.ids import RunIndex, RunSet


def choose_run(
    runs: RunSet, urgent: RunSet, window: RunSet, rarity: Rarity | None, dice: Random
) -> RunIndex:
    """The run to ask a neighbour for, of those that it may be asked for.

    1. urgent runs, the lowest first;
    2. the rarest run in the window;
    3. the rarest run beyond it. The window is a preference: a link is never left idle for it.
    """
    if runs & urgent:
        return bitset.first(runs & urgent)
    near = runs & window or runs
    return any_of(rarity.rarest(near) if rarity else near, dice)


def any_of(runs: RunSet, dice: Random) -> RunIndex:
    """One of the lowest few of these runs, by dice."""
    skip = int(dice.random() * min(runs.bit_count(), TIE_LIMIT))
    for _ in range(skip):
        runs &= runs - 1
    return bitset.first(runs)


def choose_peer(
    peers: Iterable[Peer], wanted: RunSet, now: float, per_peer: int, dice: Random,
    reach: Reach = EVERYWHERE, *, full: bool = False,
) -> tuple[Peer | None, float]:  # fmt: skip
    """The neighbour to ask next: the fewest requests in flight, then dice.

    A neighbour that doesn't deliver is asked for one run at a time whenever its rest is over. Returns None if nobody
    can be asked now, and when the first neighbour that has something ends its rest; inf: none rests. One neighbour may
    owe `per_peer` runs beside those that its link holds. `reach` is what may be asked for, by distance, `full` whether
    those that have no free slot are asked, too.
    """
    within = wanted, wanted & reach[1], wanted & reach[2]
    best: Peer | None = None
    best_in_flight = ties = 0
    retry_at = math.inf
    for peer in peers:  # the cheapest test first: this loop is a tenth of a storm's work
        in_flight = peer.in_flight
        if in_flight >= per_peer and in_flight >= per_peer + peer.extra_requests:
            continue
        if in_flight and not peer.delivers:
            continue
        if not peer.have & within[peer.distance] & ~peer.owed:
            continue
        rest_until = peer.rest_until if full else peer.free_at
        if rest_until > now:
            retry_at = min(retry_at, rest_until)
        elif best is None or in_flight < best_in_flight:
            best, best_in_flight, ties = peer, in_flight, 1
        elif in_flight == best_in_flight:
            ties += 1
            if dice.random() * ties < 1:
                best = peer
    return best, retry_at
