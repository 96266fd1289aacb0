"""Which nodes keep which stripes of a model.

Weighted rendezvous hashing with bounded loads, and with a memory: what is placed stays where it is until its node goes.
The order of nodes for a stripe comes from hashes (Thaler and Ravishankar; shares by Schindelhauer and Schomaker).
A node whose load has reached its share is passed over (bounded loads: Mirrokni, Thorup and Zadimoghaddam 2018), for
hashing alone gives one of eight nodes a third more than another. Bounded loads without a memory move more than they
must: each stripe that comes to a full node pushes another one out. So stripes that have a place keep it; a tracker that
starts finds the places where the bytes are.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.pool.settings import GIVES, HUNGRY, OVERLOADED
from p2pcache.core.pool.spots import OpenSpots, Rooms, Spot, closeness
from p2pcache.core.pool.stripes import Stripes
from p2pcache.core.rendezvous import score
from p2pcache.ids import NodeId, RunSet

Targets = tuple[NodeId, ...]
"""The nodes that are to have a stripe."""


class Situation(NamedTuple):
    """What placing goes by."""

    spots: Mapping[NodeId, Spot]  # nodes that may keep something of the model
    haves: Mapping[NodeId, RunSet]  # runs that nodes have
    rooms: Rooms
    may_copy: bool = True  # False: only what nodes have already is placed


class Placement:
    """Where the stripes of one model are to be.

    Invariants: `targets` has a tuple of different nodes for each stripe; `loads` the bytes of each node in it, and
    these are what the placement has taken of the nodes' rooms.
    """

    def __init__(self, stripes: Stripes, key: int) -> None:
        """Nothing is placed yet.

        Args:
            stripes: of the model.
            key: of the model, 64 bits: models are placed independently of each other.
        """
        self.stripes = stripes
        self.targets: list[Targets] = [()] * len(stripes)
        self.loads: dict[NodeId, int] = {}
        self._key = key

    def settle(self, copies: int, now: Situation) -> None:
        """Place what lacks a place, and move what must.

        Args:
            copies: of each stripe, each on another node.
            now: the nodes.
        """
        copies = min(copies, len(now.spots))
        self._drop_gone(now)
        self._trim(copies, now)
        shares = shares_of(now.spots, copies * self.stripes.total_bytes, self.stripes.total_bytes)
        self._place_missing(copies, shares, now)
        if now.may_copy:
            self._feed(shares, now)
            self._relieve(shares, now)

    def remove_all(self, node: NodeId, but: RunSet, rooms: Rooms) -> None:
        """Take a node's places away.

        Args:
            node: its id.
            but: stripes that stay there.
            rooms: of the nodes.
        """
        if self.loads.get(node):
            for stripe, targets in enumerate(self.targets):
                if node in targets and not but >> stripe & 1:
                    self._remove(stripe, node, rooms)

    def leave(self, rooms: Rooms) -> None:
        """Give all room back."""
        for node, load in self.loads.items():
            rooms.book(node, -load)
        self.targets = [()] * len(self.stripes)
        self.loads = {}

    def check(self) -> None:
        """Assert the invariants."""
        loads: dict[NodeId, int] = {}
        for stripe, targets in enumerate(self.targets):
            assert len(set(targets)) == len(targets)
            for node in targets:
                loads[node] = loads.get(node, 0) + self.stripes.sizes[stripe]
        assert loads == {node: load for node, load in self.loads.items() if load}

    # -- inside ------------------------------------------------------------------------------------

    def _drop_gone(self, now: Situation) -> None:
        gone = self.loads.keys() - now.spots.keys()
        if not gone:
            return
        for stripe, targets in enumerate(self.targets):
            for node in gone.intersection(targets):
                self._remove(stripe, node, now.rooms)
        for node in gone:
            del self.loads[node]

    def _trim(self, copies: int, now: Situation) -> None:
        """Take places away where there are too many: of nodes that have nothing of it yet, then of the most loaded."""
        for stripe in range(len(self.targets)):
            while len(self.targets[stripe]) > copies:
                runs = self._runs_of(stripe)
                worst = max(
                    self.targets[stripe],
                    key=lambda n: (
                        runs & ~now.haves.get(n, 0) != 0,
                        self.loads[n] / now.spots[n].weight,
                        n,
                    ),
                )
                self._remove(stripe, worst, now.rooms)

    def _place_missing(self, copies: int, shares: Mapping[NodeId, float], now: Situation) -> None:
        missing = [s for s, targets in enumerate(self.targets) if len(targets) < copies]
        if not missing:
            return
        self._adopt(missing, copies, shares, now)
        if not now.may_copy:
            return
        present = {n: spot for n, spot in now.spots.items() if spot.present}
        open_spots = OpenSpots(present, lambda node: self.loads.get(node, 0) < shares[node])
        for stripe in missing:
            while len(self.targets[stripe]) < copies:
                node = self._next(open_spots, stripe, self.targets[stripe], now)
                if node is None:
                    node = self._in_need(stripe, shares, now)
                if node is None:
                    break
                self._add(stripe, node, now.rooms)

    def _next(self, spots: OpenSpots, stripe: int, taken: Targets, now: Situation) -> NodeId | None:
        size = self.stripes.sizes[stripe]
        return spots.choose(
            self._key + stripe,
            (now.spots[node] for node in taken),
            lambda node: node not in taken and now.rooms.left(node) >= size,
        )

    def _in_need(
        self, stripe: int, shares: Mapping[NodeId, float], now: Situation
    ) -> NodeId | None:
        """A node that takes more than its share, for otherwise a copy would lack; None: none has room."""
        targets, size = self.targets[stripe], self.stripes.sizes[stripe]
        others = [now.spots[node] for node in targets]
        fit = [
            node for node, spot in now.spots.items()
            if spot.present and node not in targets and now.rooms.left(node) >= size
        ]  # fmt: skip
        return min(
            fit,
            key=lambda n: (closeness(now.spots[n], others), self.loads.get(n, 0) / shares[n], n),
            default=None,
        )

    def _adopt(
        self, missing: Iterable[int], copies: int, shares: Mapping[NodeId, float], now: Situation
    ) -> None:
        """Give places to nodes that have the stripes: no byte moves.

        Where nothing is copied, all that is there counts, whatever the shares: a copy that has no place would go.
        """
        wanted = bitset.of(missing)
        holders: dict[int, list[NodeId]] = {}
        for node, have in sorted(now.haves.items()):
            if node in now.spots:
                for stripe in bitset.members(self.stripes.had(have) & wanted):
                    holders.setdefault(stripe, []).append(node)
        for stripe, nodes in sorted(holders.items()):
            size = self.stripes.sizes[stripe]
            while len(self.targets[stripe]) < copies:
                targets = self.targets[stripe]
                fit = [
                    node for node in nodes
                    if node not in targets and (not now.may_copy or self._takes(node, size, shares, now))
                ]  # fmt: skip
                if not fit:
                    break
                best = min(fit, key=lambda n: self._rank(n, stripe, targets, now))
                self._add(stripe, best, now.rooms)

    def _feed(self, shares: Mapping[NodeId, float], now: Situation) -> None:
        """Give nodes that came their share: what they have, then what hashing gives them rather than its node now."""
        for node in sorted(now.spots):
            if not self._is_hungry(node, shares) or not now.spots[node].present:
                continue
            has = self.stripes.had(now.haves.get(node, 0))
            self._take_over(node, bitset.members(has), shares, now, won=False)
            if self._is_hungry(node, shares):
                others = bitset.members(bitset.full(len(self.stripes)) & ~has)
                self._take_over(node, others, shares, now, won=True)

    def _take_over(
        self, node: NodeId, stripes: Iterable[int], shares: Mapping[NodeId, float], now: Situation, *, won: bool
    ) -> None:  # fmt: skip
        """Let a node take places of others, up to its share; `won`: only where it comes before them by its hash."""
        for stripe in stripes:
            if self.loads.get(node, 0) >= shares[node]:
                return
            if now.rooms.left(node) < self.stripes.sizes[stripe]:
                continue
            giver = self._giver(node, stripe, shares, now)
            if giver is None:
                continue
            if not won or self._score(node, stripe, now) < self._score(giver, stripe, now):
                self._remove(stripe, giver, now.rooms)
                self._add(stripe, node, now.rooms)

    def _is_hungry(self, node: NodeId, shares: Mapping[NodeId, float]) -> bool:
        return self.loads.get(node, 0) + self.stripes.largest < HUNGRY * shares[node]

    def _giver(
        self, node: NodeId, stripe: int, shares: Mapping[NodeId, float], now: Situation
    ) -> NodeId | None:
        """The node whose place another may take: the last one by its hash, if copies don't come closer."""
        targets = self.targets[stripe]
        if node in targets:
            return None
        for giver in sorted(targets, key=lambda n: self._score(n, stripe, now), reverse=True):
            if not now.spots[giver].present or self.loads[giver] < GIVES * shares[giver]:
                continue
            rest = [now.spots[other] for other in targets if other != giver]
            if closeness(now.spots[node], rest) <= closeness(now.spots[giver], rest):
                return giver
        return None

    def _relieve(self, shares: Mapping[NodeId, float], now: Situation) -> None:
        """Move stripes from nodes with too much, or without the room, to others; none is left without a place."""
        heavy = [
            node for node, load in sorted(self.loads.items())
            if load and (now.rooms.left(node) < 0 or not self._is_bearable(node, 0, shares))
        ]  # fmt: skip
        if not heavy:
            return
        open_spots = OpenSpots(
            {n: spot for n, spot in now.spots.items() if spot.present and n not in heavy},
            lambda node: self.loads.get(node, 0) < shares[node],
        )
        for node in heavy:
            own = [s for s, targets in enumerate(self.targets) if node in targets]
            own.sort(key=lambda s: -self._score(node, s, now))
            for stripe in own:
                if now.rooms.left(node) >= 0 and self.loads[node] <= shares[node]:
                    break
                rest = tuple(other for other in self.targets[stripe] if other != node)
                other = self._next(open_spots, stripe, rest, now)
                if other is None:
                    break
                self._remove(stripe, node, now.rooms)
                self._add(stripe, other, now.rooms)

    def _takes(
        self, node: NodeId, size: int, shares: Mapping[NodeId, float], now: Situation
    ) -> bool:
        return now.rooms.left(node) >= size and self._is_bearable(node, size, shares)

    def _is_bearable(self, node: NodeId, more: int, shares: Mapping[NodeId, float]) -> bool:
        limit = OVERLOADED * shares[node] + self.stripes.largest
        return self.loads.get(node, 0) + more <= limit

    def _rank(
        self, node: NodeId, stripe: int, targets: Targets, now: Situation
    ) -> tuple[tuple[int, int], float]:
        others = [now.spots[other] for other in targets]
        return closeness(now.spots[node], others), self._score(node, stripe, now)

    def _score(self, node: NodeId, stripe: int, now: Situation) -> float:
        return score(node, self._key + stripe, now.spots[node].weight)

    def _runs_of(self, stripe: int) -> RunSet:
        return bitset.full(self.stripes.runs_each) << stripe * self.stripes.runs_each & bitset.full(
            self.stripes.run_count
        )

    def _add(self, stripe: int, node: NodeId, rooms: Rooms) -> None:
        size = self.stripes.sizes[stripe]
        self.targets[stripe] += (node,)
        self.loads[node] = self.loads.get(node, 0) + size
        rooms.book(node, size)

    def _remove(self, stripe: int, node: NodeId, rooms: Rooms) -> None:
        size = self.stripes.sizes[stripe]
        self.targets[stripe] = tuple(other for other in self.targets[stripe] if other != node)
        self.loads[node] -= size
        rooms.book(node, -size)


def shares_of(
    spots: Mapping[NodeId, Spot], wanted_bytes: int, most_bytes: int
) -> dict[NodeId, float]:
    """What each node is to have, in proportion to its weight, but none more than `most_bytes`.

    Args:
        spots: the nodes.
        wanted_bytes: of all together.
        most_bytes: a node can't hold one stripe twice.
    """
    shares: dict[NodeId, float] = {}
    left, weights = float(wanted_bytes), sum(spot.weight for spot in spots.values())
    for node, spot in sorted(spots.items(), key=lambda pair: (-pair[1].weight, pair[0])):
        shares[node] = min(float(most_bytes), left * spot.weight / weights)
        left -= shares[node]
        weights -= spot.weight
    return shares
