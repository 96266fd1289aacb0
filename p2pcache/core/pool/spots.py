"""The nodes that may keep something: their places, their room, and which of them is the next for a stripe."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from math import log2
from statistics import median
from typing import NamedTuple

from p2pcache.core.pool.settings import WEIGHT_CHANGE, WEIGHT_STEPS
from p2pcache.core.rendezvous import score
from p2pcache.ids import NodeId

_Path = tuple[str, ...]  # a site, or a site and one of its racks


class Spot(NamedTuple):
    """One node."""

    site: str
    rack: str
    weight: float  # above 0: its part of what is kept, beside others
    present: bool = True  # False: away for a while; what it has stays there, and it gets nothing


class Rooms:
    """What nodes can give to all that is kept, and what is taken of it. In bytes."""

    def __init__(self) -> None:
        """No node yet."""
        self.total: dict[NodeId, int] = {}
        self.taken = Counter[NodeId]()

    def left(self, node: NodeId) -> int:
        """What is left; below 0 where the room shrank."""
        return self.total.get(node, 0) - self.taken[node]

    def book(self, node: NodeId, size: int) -> None:
        """Some is taken; below 0: given back."""
        self.taken[node] += size
        if not self.taken[node]:
            del self.taken[node]


def weights_of(
    said: Mapping[NodeId, tuple[int, int]], before: Mapping[NodeId, float]
) -> dict[NodeId, float]:
    """Weigh nodes by room, and by link where that is slow. A weight stays while it is about right.

    Args:
        said: each node's room in bytes, and its link in bytes per second (0: not known).
        before: the weights until now.
    """
    links = [link for _, link in said.values() if link]
    usual = median(links) if links else 0.0
    weights: dict[NodeId, float] = {}
    for node, (room, link) in said.items():
        exact = max(1.0, room * (min(1.0, link / usual) if link else 1.0))
        known = before.get(node)
        if known is not None and 1 / WEIGHT_CHANGE <= exact / known <= WEIGHT_CHANGE:
            weights[node] = known
        else:
            weights[node] = 2.0 ** (round(log2(exact) * WEIGHT_STEPS) / WEIGHT_STEPS)
    return weights


class OpenSpots:
    """Nodes that take more. They are looked up by site, then rack, then node, so that a look needs few hashes."""

    def __init__(self, spots: Mapping[NodeId, Spot], is_open: Callable[[NodeId], bool]) -> None:
        """All nodes that are open.

        Args:
            spots: of nodes that are present.
            is_open: whether a node takes more; one that was closed stays closed.
        """
        self._spots = spots
        self._is_open = is_open
        self._sites: dict[_Path, dict[_Path, list[NodeId]]] = {}
        self._weights: dict[_Path, float] = {}  # of all open nodes in each site and rack
        for node, spot in sorted(spots.items()):
            if is_open(node):
                site, rack = _paths(spot)
                self._sites.setdefault(site, {}).setdefault(rack, []).append(node)
                for path in (site, rack):
                    self._weights[path] = self._weights.get(path, 0.0) + spot.weight
        self._numbers = {path: _number(path) for path in self._weights}

    def choose(
        self, key: int, others: Iterable[Spot], fits: Callable[[NodeId], bool]
    ) -> NodeId | None:
        """The next node for a stripe: far from its other copies, then by its hash; None: there is none.

        Args:
            key: of the stripe.
            others: the nodes with its other copies.
            fits: whether a node may be it.
        """
        near = Counter(path for spot in others for path in _paths(spot))

        def order(path: _Path) -> tuple[int, float]:
            """Those with the fewest copies first, then by their hashes."""
            return near[path], score(self._numbers[path], key, self._weights[path])

        for site in sorted(self._sites, key=order):
            racks = self._sites[site]
            for rack in sorted(filter(racks.get, racks), key=order):
                racks[rack] = list(filter(self._is_open, racks[rack]))
                fit = [node for node in racks[rack] if fits(node)]
                if fit:
                    return min(fit, key=lambda node: score(node, key, self._spots[node].weight))
        return None


def _paths(spot: Spot) -> tuple[_Path, _Path]:
    """The site of a node, and its rack."""
    return (spot.site,), (spot.site, spot.rack)


def _number(path: _Path) -> int:
    """For the hash."""
    return int.from_bytes(blake2b("/".join(path).encode(), digest_size=8).digest())
