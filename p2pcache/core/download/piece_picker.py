"""Which neighbour to ask next, and for which run. Pure functions of their arguments."""

import math
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.peers.peer_book import Peer
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import EVERYWHERE, Reach
from p2pcache.core.swarm.run_states import RunBook

_TIE_LIMIT = 64  # dice over at most so many equally rare runs: keeps a pick O(1)


class Choice(NamedTuple):
    """The outcome of a look at all neighbours."""

    peer: Peer | None  # whom to ask
    retry_at: float  # earliest end of a rest of a neighbour that has something; inf if none


def choose_run(mine: RunBook, offered: int, rarity: Rarity, window: int, dice: Random) -> int:
    """The run to take from a neighbour that offers these (bits), or -1 if none is wanted.

    What a loader waits for first, in order; then the rarest in the in-order window, then the rarest
    beyond it: the window is a preference, a link is never left idle for it.
    """
    wanted = offered & mine.free
    if not wanted:
        return -1
    if wanted & mine.demanded:
        return bitset.first(wanted & mine.demanded)
    return any_of(rarity.rarest(wanted & window or wanted), dice)


def any_of(runs: int, dice: Random) -> int:
    """One of the lowest few of these runs, by dice."""
    skip = int(dice.random() * min(runs.bit_count(), _TIE_LIMIT))
    for _ in range(skip):
        runs &= runs - 1
    return bitset.first(runs)


def choose_peer(
    peers: Iterable[Peer], wanted: int, now: float, per_peer: int, dice: Random,
    reach: Reach = EVERYWHERE,
) -> Choice:  # fmt: skip
    """The neighbour to ask next: fewest outstanding, then least loaded, then dice.

    Args:
        peers: all neighbours.
        wanted: bits of the runs to ask for, not empty.
        now: seconds.
        per_peer: how many requests one neighbour may owe us, beyond those that the way to it holds.
        dice: breaks ties.
        reach: what may be asked for at a neighbour's distance.
    """
    within = wanted, wanted & reach[1], wanted & reach[2]
    best: Peer | None = None
    best_asked = best_load = ties = 0
    retry_at = math.inf
    good = -1  # runs that a quick neighbour has too; computed only if a slow one comes up
    for peer in peers:
        asked = peer.asked  # first, as it costs least: this loop is a tenth of a storm's work
        if asked >= per_peer and asked >= per_peer + peer.ahead:
            continue
        rest_until = peer.rest_until
        if rest_until > now:
            if rest_until < retry_at and peer.have & within[peer.distance]:
                retry_at = rest_until
            continue
        offered = peer.have & within[peer.distance]
        if not offered:
            continue
        if peer.slow:
            # passed over unless nobody else has it, and then never more than one at a time; who doesn't deliver is
            # tried again whenever its rest is over
            if good < 0:
                good = _quick_holders(peers, reach)
            if asked or (peer.delivers and not offered & ~good):
                continue
        if best is None or asked < best_asked or (asked == best_asked and peer.load < best_load):
            best, best_asked, best_load, ties = peer, asked, peer.load, 1
        elif asked == best_asked and peer.load == best_load:
            ties += 1
            if dice.random() * ties < 1:
                best = peer
    return Choice(best, retry_at)


def offered_by(peer: Peer, peers: Iterable[Peer], reach: Reach) -> int:
    """What to take from this neighbour: all that is in reach, or of a slow one what nobody else has."""
    offered = peer.have & reach[peer.distance]
    return offered & ~_quick_holders(peers, reach) if peer.slow and peer.delivers else offered


def _quick_holders(peers: Iterable[Peer], reach: Reach) -> int:
    union = 0
    for peer in peers:
        if not peer.slow:
            union |= peer.have & reach[peer.distance]
    return union
