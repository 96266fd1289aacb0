"""The nodes that may keep something: their places, their room, and which of them is the next for a stripe."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import log2
from statistics import median
from typing import NamedTuple

from p2pcache.core.pool.settings import WEIGHT_CHANGE, WEIGHT_STEPS
from p2pcache.core.rendezvous import score
from p2pcache.ids import NodeId


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
        self.taken: dict[NodeId, int] = {}

    def left(self, node: NodeId) -> int:
        """What is left; below 0 where the room shrank."""
        return self.total.get(node, 0) - self.taken.get(node, 0)

    def book(self, node: NodeId, size: int) -> None:
        """Some is taken; below 0: given back."""
        taken = self.taken.get(node, 0) + size
        if taken:
            self.taken[node] = taken
        else:
            self.taken.pop(node, None)


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


def closeness(spot: Spot, others: Iterable[Spot]) -> tuple[int, int]:
    """How many other copies are in a node's site, and in its rack: the fewer, the better."""
    near = [other for other in others if other.site == spot.site]
    return len(near), sum(other.rack == spot.rack for other in near)


@dataclass(slots=True)
class _Rack:
    number: int  # made of its name, for the hash
    weight: float = 0.0
    nodes: list[NodeId] = field(default_factory=list)  # those that are open


@dataclass(slots=True)
class _Site:
    number: int
    weight: float = 0.0
    racks: dict[str, _Rack] = field(default_factory=dict)


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
        self._sites: dict[str, _Site] = {}
        for node, spot in sorted(spots.items()):
            if not is_open(node):
                continue
            site = self._sites.setdefault(spot.site, _Site(_number(spot.site)))
            rack = site.racks.setdefault(spot.rack, _Rack(_number(f"{spot.site}/{spot.rack}")))
            site.weight += spot.weight
            rack.weight += spot.weight
            rack.nodes.append(node)

    def choose(
        self, key: int, others: Iterable[Spot], fits: Callable[[NodeId], bool]
    ) -> NodeId | None:
        """The next node for a stripe: far from its other copies, then by its hash; None: there is none.

        Args:
            key: of the stripe.
            others: the nodes with its other copies.
            fits: whether a node may be it.
        """
        near = list(others)
        for site, rack in self._ordered(key, near):
            nodes = self._sites[site].racks[rack].nodes
            nodes[:] = filter(self._is_open, nodes)
            fit = [node for node in nodes if fits(node)]
            if fit:
                return min(fit, key=lambda node: score(node, key, self._spots[node].weight))
        return None

    def _ordered(self, key: int, near: list[Spot]) -> Iterator[tuple[str, str]]:
        """Sites and racks with open nodes, the best ones first."""
        sites = sorted(
            self._sites,
            key=lambda name: (
                sum(other.site == name for other in near),
                score(self._sites[name].number, key, self._sites[name].weight),
            ),
        )
        for site in sites:
            here = self._sites[site].racks
            racks = sorted(
                (name for name, rack in here.items() if rack.nodes),
                key=lambda name: (
                    sum(other.site == site and other.rack == name for other in near),
                    score(here[name].number, key, here[name].weight),
                ),
            )
            for rack in racks:
                yield site, rack


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
