"""What this node knows of its neighbours in one swarm, and how it judges them.

A peer is judged by progress: bytes proved over the time in which it owed us something. Time
spent in its upload queue counts, on purpose: a crowded peer is a slow peer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from p2pcache.core import backoff
from p2pcache.core.peers.bdp import Way
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import Boundaries, Reach
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.snapshot import PeerView

_FADE = 0.8  # weight of the past per ended request: the last five or so requests decide
_MEDIAN_OF = 3  # peers that must have been measured before one of them can be called slow
_LEAST_REST_S = 0.01  # after a BUSY, whoever has room again: a hundred refusals a second, half of what the wire allows
_MOST_MORE = 2  # requests of who is behind: enough to catch up, and no burden where a slow link is the reason
_MOST = 0.75  # of the neighbours: what so many have is old
_OLD = 0.4  # of what is in reach: in a gust of new runs everybody lacks some that many have, a tenth of all
_FAR = 8  # times what it asks for at once in reach: such a one came late, or has a slow link
_STALL_PAUSE_S = 1.0  # doubled with every stall in a row
_STALL_PAUSE_MAX_S = 30.0


class Peer:
    """One connected neighbour that we can ask for runs."""

    __slots__ = ("asked", "clock", "delivers", "distance", "have", "load", "node", "rated_bytes", "rated_s",
                 "refusals", "refused_at", "refused_since", "rest_until", "slow", "stalls", "way")  # fmt: skip

    def __init__(
        self, node: int, have: int, now: float, distance: int = 0, rtt_s: float = 0.0
    ) -> None:
        self.node = node
        self.distance = distance  # as `Boundaries` has it
        self.have = have  # bits over runs, as it told us
        self.load = 0  # peers that it serves or that wait there, as it last said
        self.asked = 0  # our requests that it hasn't answered
        self.rest_until = 0.0  # it was busy or stalled: not asked before this time
        self.clock = now  # last progress, or when it began to owe us something
        self.rated_bytes = 0.0
        self.rated_s = 0.0
        self.slow = False
        self.delivers = (
            True  # False: what it says that it has counts for nothing until it sends a run
        )
        self.stalls = 0  # in a row
        self.refusals = 0  # BUSY in a row
        self.refused_since = self.refused_at = 0.0  # the first of them, and the last
        self.way = Way(rtt_s, now)  # between it and us

    @property
    def ahead(self) -> int:
        """Requests beyond the usual ones that the way to it holds: what is under way, and the next."""
        return self.way.runs + 1 if self.way.runs else 0

    def owes(self, now: float) -> None:
        """A request goes out to it."""
        if not self.asked:
            self.clock = now
            self.way.idle_until(now)
        self.asked += 1

    def paid(self, nbytes: int, now: float) -> None:
        """One of its requests ended with `nbytes` proved bytes (0: it failed us)."""
        self.asked -= 1
        self.rated_bytes = self.rated_bytes * _FADE + nbytes
        self.rated_s = self.rated_s * _FADE + now - self.clock
        self.clock = now
        self.way.carried(nbytes, now)
        if nbytes:
            self.stalls = self.refusals = 0

    def excused(self, now: float) -> None:
        """One of its requests ended in a way that says nothing about its speed."""
        self.asked -= 1
        self.clock = now

    def busy(self, now: float, pause_s: float, most_s: float) -> None:
        """It has no slot free: don't ask it for a while, twice as long each time up to the most."""
        self.rest_until = now + backoff.pause_s(pause_s, most_s, self.refusals)
        self.refused_at = now
        self.refused_since = self.refused_since if self.refusals else now
        self.refusals += 1

    def has_room(self, now: float) -> bool:
        """It says that it has a slot free again; whether that is news."""
        if not self.refusals or self.stalls:
            return False  # or it rests for another reason
        self.refused_since = now  # it serves somebody
        self.rest_until = min(self.rest_until, max(now, self.refused_at + _LEAST_REST_S))
        return True

    def stalled(self, now: float) -> None:
        """It owed us bytes and sent none: leave it alone for a while, longer each time."""
        if now < self.rest_until and self.stalls:
            return  # requests that are in flight together see one silence
        self.rest_until = now + backoff.pause_s(_STALL_PAUSE_S, _STALL_PAUSE_MAX_S, self.stalls)
        self.stalls += 1

    def rate(self, now: float, patience_s: float) -> float | None:
        """Bytes per second, what it owes at this moment included; None: too early to say."""
        seconds = self.rated_s + (now - self.clock if self.asked else 0.0)
        if seconds <= 0 or (not self.rated_bytes and seconds < patience_s):
            return None
        return self.rated_bytes / seconds


class PeerBook:
    """The neighbours, and the counts of what they hold.

    Invariants (`check`): `rarity` counts exactly the have-sets of the `peers` that deliver; no barred node is a
    peer; `asked` of a peer is the number of live requests to it (checked by the scheduler); with
    boundaries, what a fit peer has is in `_near` of its distance and beyond, and `_in_rack` counts
    exactly the have-sets of those in our rack that deliver (without boundaries it is `rarity`).
    """

    def __init__(self, settings: SwarmSettings, boundaries: Boundaries) -> None:
        self._settings = settings
        self._boundaries = boundaries
        self._near = [0, 0, 0]  # runs that a fit peer has in our rack, our site, anywhere
        self.peers: dict[int, Peer] = {}
        self.rarity = Rarity()
        self._in_rack = self.rarity
        self.barred: dict[int, int] = {}  # sent us wrong bytes, of which run: never asked again

    def join(self, node: int, have: int, now: float, rtt_s: float = 0.0) -> Peer | None:
        """A neighbour connected (again), a round trip of so many seconds away; None if it is barred."""
        self.leave(node)
        if node in self.barred:
            return None
        peer = self.peers[node] = Peer(node, have, now, self._boundaries.distance(node), rtt_s)
        self._count(peer, have)
        self._noted(peer, have)
        return peer

    def doubt(self, peer: Peer) -> None:
        """What a neighbour says that it has counts for nothing: it doesn't deliver."""
        self._discount(peer, peer.have)
        peer.delivers, peer.slow = False, True
        self._survey()

    def believe(self, peer: Peer) -> None:
        """A neighbour that was doubted delivers."""
        peer.delivers, peer.slow = True, False
        self._count(peer, peer.have)
        self._survey()

    def leave(self, node: int) -> Peer | None:
        """A neighbour is gone; None if it wasn't one."""
        peer = self.peers.pop(node, None)
        if peer is not None:
            self._discount(peer, peer.have)
            self._survey()
        return peer

    def bar(self, node: int, run: int) -> None:
        """Never ask this node again: its bytes of `run` were wrong."""
        self.barred[node] = run
        self.leave(node)

    def gained(self, peer: Peer, runs: int) -> int:
        """A neighbour says that it has these runs; returns those that are news."""
        fresh = runs & ~peer.have
        if fresh:
            peer.have |= fresh
            if not peer.delivers:
                pass
            elif self._boundaries.active:
                self._count(peer, fresh)
                self._noted(peer, fresh)
            else:  # nine events of ten come by here
                self.rarity.add(fresh)
        return fresh

    def lacks(self, peer: Peer, runs: int) -> None:
        """A neighbour turned out not to have these runs."""
        gone = runs & peer.have
        peer.have &= ~gone
        self._discount(peer, gone)
        self._survey()

    def placed(self, nodes: Sequence[int], rack: tuple[int, ...], site: tuple[int, ...]) -> None:
        """The member list came; who of it shares our rack and our site."""
        self._boundaries.on_members(nodes, rack, site)
        for peer in self.peers.values():
            peer.distance = self._boundaries.distance(peer.node)
        self._in_rack = Rarity() if self._boundaries.active else self.rarity
        for peer in self.peers.values() if self._boundaries.active else ():
            if not peer.distance and peer.delivers:
                self._in_rack.add(peer.have)
        self._survey()

    @property
    def bounded(self) -> bool:
        """Whether anybody is beyond a boundary."""
        return self._boundaries.active

    @property
    def scarcity(self) -> Rarity:
        """How many hold each run where most of us may ask for it: what the rack has once is rare there."""
        return self._in_rack

    @property
    def reach(self) -> Reach:
        """Runs that we may ask for, per distance."""
        return self._boundaries.reach(self._near[0], self._near[1])

    @property
    def duty(self) -> int:
        """Runs (bits) beyond a boundary that are ours to bring."""
        if not self._boundaries.active:
            return 0
        _, site, elsewhere = self.reach
        return self._near[1] & site | self._near[2] & elsewhere

    def beyond(self, needed: int) -> tuple[int, int]:
        """Of these runs (bits), those that somebody fit has beyond our rack, and beyond our site, and nobody within."""
        near, site, anywhere = self._near
        return needed & site & ~near, needed & anywhere & ~site

    def look_beyond(self, needed: int, *, starved: bool) -> None:
        """What waits beyond the boundaries waits for one look more; `needed`: the runs that we lack."""
        self._boundaries.review(*self.beyond(needed), starved=starved)

    def _count(self, peer: Peer, runs: int) -> None:
        self.rarity.add(runs)
        if self._boundaries.active and not peer.distance:
            self._in_rack.add(runs)

    def _discount(self, peer: Peer, runs: int) -> None:
        if not peer.delivers:
            return
        self.rarity.remove(runs)
        if self._boundaries.active and not peer.distance:
            self._in_rack.remove(runs)

    def _noted(self, peer: Peer, runs: int) -> None:
        if self._boundaries.active and not peer.slow and not peer.stalls:
            for distance in range(peer.distance, 3):
                self._near[distance] |= runs

    def _survey(self) -> None:
        """See anew what is near: somebody moved, left, or is no longer fit; O(neighbours)."""
        if self._boundaries.active:
            self._near = [0, 0, 0]
            for peer in self.peers.values():
                self._noted(peer, peer.have)

    def lag_requests(self, lacking: int) -> int:
        """How many requests more to have out than the others, if we lack these runs (bits).

        Links are shared by flows, and a flow more is a share more. Without this whoever loses a second
        somewhere stays a second behind to the end, and the last node is what counts. We are behind by what most
        neighbours have and we don't: how many runs they have isn't known, as they tell us only of those that we lack.
        """
        usual = self._settings.outstanding
        most = math.ceil(_MOST * len(self.peers))
        in_reach = (lacking & self.rarity.held).bit_count()
        if not most or in_reach > _FAR * usual:
            return 0
        behind = (lacking & self.rarity.at_least(most)).bit_count()
        return min(behind // usual, _MOST_MORE) if behind >= _OLD * in_reach else 0

    def review(self, now: float) -> None:
        """Judge everybody's speed anew; O(neighbours)."""
        settings = self._settings
        rates: dict[int, float] = {}
        for peer in self.peers.values():
            if not peer.asked and now - peer.clock > settings.slow_retry_s:
                peer.rated_bytes = peer.rated_s = 0.0  # old evidence: it may try again
            rate = peer.rate(now, settings.duplicate_min_s)
            if rate is not None:
                rates[peer.node] = rate
        limit = settings.slow_peer_ratio * median(rates.values()) if len(rates) >= _MEDIAN_OF else 0
        for peer in self.peers.values():
            peer.slow = not peer.delivers or rates.get(peer.node, limit) < limit
        self._survey()

    def good_holders(self) -> int:
        """Runs that a neighbour has who isn't slow and isn't resting after a stall."""
        union = 0
        for peer in self.peers.values():
            if not peer.slow and not peer.stalls:
                union |= peer.have
        return union

    def views(self, needed: int, now: float) -> Iterator[PeerView]:
        """Everybody, for people; `needed`: the runs (bits) that we miss."""
        for peer in self.peers.values():
            yield PeerView(
                peer.node, (peer.have & needed).bit_count(), peer.asked, peer.load,
                peer.rate(now, self._settings.duplicate_min_s), peer.slow,
                max(0.0, peer.rest_until - now), peer.delivers,
            )  # fmt: skip

    def check(self) -> None:
        """Assert the invariants."""
        counted, near = Rarity(), Rarity()
        for peer in self.peers.values():
            counted.add(peer.have if peer.delivers else 0)
            near.add(peer.have if peer.delivers and not peer.distance else 0)
            assert peer.node not in self.barred
            assert peer.asked >= 0
        for kept, seen in ((self.rarity, counted), (self._in_rack, near)):
            assert kept.planes[: len(seen.planes)] == seen.planes, "counts differ from have-sets"
            assert not any(kept.planes[len(seen.planes) :])
        for peer in self.peers.values() if self.bounded else ():
            assert peer.distance == self._boundaries.distance(peer.node)


def median(values: Iterable[float]) -> float:
    """The upper median; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
