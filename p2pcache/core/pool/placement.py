"""Which nodes keep which stripes of a model.

Weighted rendezvous hashing with bounded loads, and with a memory: what is placed stays where it is until its node goes.
The order of nodes for a stripe comes from hashes (Thaler and Ravishankar; shares by Schindelhauer and Schomaker).
A node whose load has reached its share is passed over (bounded loads: Mirrokni, Thorup and Zadimoghaddam 2018), for
hashing alone gives one of eight nodes a third more than another. Bounded loads without a memory move more than they
must: each stripe that comes to a full node pushes another one out. So stripes that have a place keep it; a tracker that
starts finds the places where the bytes are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from p2pcache.core import bitset
from p2pcache.core.pool.settings import GIVES, HUNGRY, OVERLOADED
from p2pcache.core.pool.spots import OpenSpots, Rooms, Spot
from p2pcache.core.pool.stripes import Stripes
from p2pcache.core.rendezvous import score
from p2pcache.ids import NodeId, RunSet

Targets = tuple[NodeId, ...]
"""The nodes that are to have a stripe."""


class Placement:
    """Where the stripes of one model are to be.

    Invariants: `targets` has a tuple of different nodes for each stripe; `loads` the bytes of each node in it, and
    these are what the placement has taken of the nodes' rooms.
    """

    def __init__(self, stripes: Stripes, key: int, rooms: Rooms) -> None:
        """Nothing is placed yet.

        Args:
            stripes: of the model.
            key: of the model, 64 bits: models are placed independently of each other.
            rooms: of the nodes.
        """
        self.stripes = stripes
        self.key = key
        self.rooms = rooms
        self.targets: list[Targets] = [()] * len(stripes)
        self.loads = Counter[NodeId]()

    def settle(
        self, copies: int, spots: Mapping[NodeId, Spot], had: Mapping[NodeId, RunSet], *, may_copy: bool = True
    ) -> None:  # fmt: skip
        """Place what lacks a place, and move what must.

        Args:
            copies: of each stripe, each on another node.
            spots: nodes that may keep something of the model.
            had: stripes that nodes have, as bits.
            may_copy: False: only what nodes have already is placed.
        """
        _Settling(self, min(copies, len(spots)), spots, had, may_copy=may_copy).settle()

    def place(self, stripe: int, node: NodeId) -> None:
        """A node is to have a stripe."""
        size = self.stripes.sizes[stripe]
        self.targets[stripe] += (node,)
        self.loads[node] += size
        self.rooms.book(node, size)

    def displace(self, stripe: int, node: NodeId) -> None:
        """A node has no place for a stripe any more."""
        size = self.stripes.sizes[stripe]
        self.targets[stripe] = tuple(other for other in self.targets[stripe] if other != node)
        self.loads[node] -= size
        self.rooms.book(node, -size)

    def remove_all(self, node: NodeId, but: RunSet = 0) -> None:
        """Take a node's places away, `but` those of some stripes."""
        if self.loads.get(node):
            for stripe, targets in enumerate(self.targets):
                if node in targets and not but >> stripe & 1:
                    self.displace(stripe, node)

    def leave(self) -> None:
        """Give all room back."""
        for node, load in self.loads.items():
            self.rooms.book(node, -load)
        self.targets = [()] * len(self.stripes)
        self.loads.clear()

    def check(self) -> None:
        """Assert the invariants."""
        loads = Counter[NodeId]()
        for stripe, targets in enumerate(self.targets):
            assert len(set(targets)) == len(targets)
            for node in targets:
                loads[node] += self.stripes.sizes[stripe]
        assert loads == self.loads


class _Settling:
    """One time that a placement is settled, by the nodes as they are then."""

    def __init__(
        self, placement: Placement, copies: int, spots: Mapping[NodeId, Spot], had: Mapping[NodeId, RunSet],
        *, may_copy: bool,
    ) -> None:  # fmt: skip
        self._placement = placement
        self._copies = copies
        self._spots, self._had, self._may_copy = spots, had, may_copy
        self._stripes, self._rooms = placement.stripes, placement.rooms
        self._targets, self._loads = placement.targets, placement.loads
        total = self._stripes.total_bytes
        self._shares = shares_of(self._spots, copies * total, total)

    def settle(self) -> None:
        self._drop_gone()
        self._trim()
        self._place_missing()
        if self._may_copy:
            self._feed()
            self._relieve()

    def _drop_gone(self) -> None:
        for node in self._loads.keys() - self._spots.keys():
            self._placement.remove_all(node)
            del self._loads[node]

    def _trim(self) -> None:
        """Take places away where there are too many: of nodes that don't have it yet, then of the most loaded."""
        for stripe in range(len(self._targets)):
            while len(self._targets[stripe]) > self._copies:
                worst = max(
                    self._targets[stripe],
                    key=lambda n: (
                        not self._had.get(n, 0) >> stripe & 1,
                        self._loads[n] / self._spots[n].weight,
                        n,
                    ),
                )
                self._placement.displace(stripe, worst)

    def _place_missing(self) -> None:
        missing = [s for s, targets in enumerate(self._targets) if len(targets) < self._copies]
        if not missing:
            return
        self._adopt(missing)
        if not self._may_copy:
            return
        open_spots = self._open_spots(self._spots)
        for stripe in missing:
            while len(self._targets[stripe]) < self._copies:
                node = self._next(open_spots, stripe, self._targets[stripe])
                if node is None:
                    node = self._in_need(stripe)
                if node is None:
                    break
                self._placement.place(stripe, node)

    def _open_spots(self, nodes: Iterable[NodeId]) -> OpenSpots:
        """Those of the nodes that are present and have less than their share."""
        present = {node: self._spots[node] for node in nodes if self._spots[node].present}
        return OpenSpots(present, lambda node: self._loads[node] < self._shares[node])

    def _next(self, spots: OpenSpots, stripe: int, taken: Targets) -> NodeId | None:
        return spots.choose(
            self._placement.key + stripe,
            (self._spots[node] for node in taken),
            lambda node: node not in taken and self._fits(node, stripe),
        )

    def _in_need(self, stripe: int) -> NodeId | None:
        """A node that takes more than its share, for otherwise a copy would lack; None: none has room."""
        targets = self._targets[stripe]
        fit = [
            node for node, spot in self._spots.items()
            if spot.present and node not in targets and self._fits(node, stripe)
        ]  # fmt: skip
        return min(
            fit,
            key=lambda n: (self._closeness(n, targets), self._loads[n] / self._shares[n], n),
            default=None,
        )

    def _adopt(self, missing: Iterable[int]) -> None:
        """Give places to nodes that have the stripes: no byte moves."""
        wanted = bitset.of(missing)
        holders: dict[int, list[NodeId]] = {}
        for node, had in sorted(self._had.items()):
            if node in self._spots:
                for stripe in bitset.members(had & wanted):
                    holders.setdefault(stripe, []).append(node)
        for stripe, nodes in sorted(holders.items()):
            while len(self._targets[stripe]) < self._copies:
                targets = self._targets[stripe]
                fit = [n for n in nodes if n not in targets and self._may_adopt(n, stripe)]
                if not fit:
                    break
                best = min(fit, key=lambda n: (self._closeness(n, targets), self._score(n, stripe)))
                self._placement.place(stripe, best)

    def _feed(self) -> None:
        """Give nodes that came their share: what they have, then what hashing gives them rather than its node now."""
        for node in sorted(self._spots):
            if not self._is_hungry(node) or not self._spots[node].present:
                continue
            has = self._had.get(node, 0)
            self._take_over(node, bitset.members(has), won=False)
            if self._is_hungry(node):
                others = bitset.members(bitset.full(len(self._stripes)) & ~has)
                self._take_over(node, others, won=True)

    def _take_over(self, node: NodeId, stripes: Iterable[int], *, won: bool) -> None:
        """Let a node take places of others, up to its share; `won`: only where it comes before them by its hash."""
        for stripe in stripes:
            if self._loads[node] >= self._shares[node]:
                return
            if not self._fits(node, stripe):
                continue
            giver = self._giver(node, stripe)
            if giver is None:
                continue
            if not won or self._score(node, stripe) < self._score(giver, stripe):
                self._placement.displace(stripe, giver)
                self._placement.place(stripe, node)

    def _giver(self, node: NodeId, stripe: int) -> NodeId | None:
        """The node whose place another may take: the last one by its hash, if copies don't come closer."""
        targets = self._targets[stripe]
        if node in targets:
            return None
        for giver in sorted(targets, key=lambda n: self._score(n, stripe), reverse=True):
            if not self._spots[giver].present or self._loads[giver] < GIVES * self._shares[giver]:
                continue
            rest = [other for other in targets if other != giver]
            if self._closeness(node, rest) <= self._closeness(giver, rest):
                return giver
        return None

    def _relieve(self) -> None:
        """Move stripes from nodes with too much, or without the room, to others; none is left without a place."""
        heavy = [
            node for node, load in sorted(self._loads.items())
            if load and (self._rooms.left(node) < 0 or not self._is_bearable(node))
        ]  # fmt: skip
        if not heavy:
            return
        open_spots = self._open_spots(self._spots.keys() - set(heavy))
        for node in heavy:
            own = [s for s, targets in enumerate(self._targets) if node in targets]
            own.sort(key=lambda s: -self._score(node, s))
            for stripe in own:
                if self._rooms.left(node) >= 0 and self._loads[node] <= self._shares[node]:
                    break
                rest = tuple(other for other in self._targets[stripe] if other != node)
                other = self._next(open_spots, stripe, rest)
                if other is None:
                    break
                self._placement.displace(stripe, node)
                self._placement.place(stripe, other)

    # -- one node ----------------------------------------------------------------------------------

    def _fits(self, node: NodeId, stripe: int) -> bool:
        return self._rooms.left(node) >= self._stripes.sizes[stripe]

    def _may_adopt(self, node: NodeId, stripe: int) -> bool:
        """Where nothing is copied, all that is there counts, whatever the shares: a copy that has no place would go."""
        fits = self._fits(node, stripe) and self._is_bearable(node, self._stripes.sizes[stripe])
        return fits or not self._may_copy

    def _is_bearable(self, node: NodeId, more: int = 0) -> bool:
        limit = OVERLOADED * self._shares[node] + self._stripes.largest
        return self._loads[node] + more <= limit

    def _is_hungry(self, node: NodeId) -> bool:
        return self._loads[node] + self._stripes.largest < HUNGRY * self._shares[node]

    def _closeness(self, node: NodeId, others: Iterable[NodeId]) -> tuple[int, int]:
        """How many other copies are in a node's site, and in its rack: the fewer, the better."""
        spot = self._spots[node]
        near = [self._spots[other] for other in others if self._spots[other].site == spot.site]
        return len(near), sum(other.rack == spot.rack for other in near)

    def _score(self, node: NodeId, stripe: int) -> float:
        return score(node, self._placement.key + stripe, self._spots[node].weight)


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
