"""A pool of simulated nodes for tests of placement and keeper."""

from collections.abc import Iterable, Mapping

from p2pcache.core.pool.placement import Placement, Targets
from p2pcache.core.pool.spots import Rooms, Spot
from p2pcache.core.pool.stripes import Stripes
from p2pcache.ids import NodeId, RunSet

PLENTY = 10**15


def rooms_of(nodes: Iterable[NodeId], room_bytes: int = PLENTY) -> Rooms:
    rooms = Rooms()
    rooms.total = dict.fromkeys(nodes, room_bytes)
    return rooms


def had_after(placement: Placement) -> dict[NodeId, RunSet]:
    """The stripes that nodes have when all is where it is to be."""
    found = dict[NodeId, RunSet]()
    for stripe, targets in enumerate(placement.targets):
        for node in targets:
            found[node] = found.get(node, 0) | 1 << stripe
    return found


def moved(cut: Stripes, before: list[Targets], after: list[Targets]) -> int:
    """Bytes that go to nodes that didn't have them."""
    return sum(
        cut.sizes[stripe] * len(set(new) - set(old))
        for stripe, (old, new) in enumerate(zip(before, after, strict=True))
    )


def racks_of(spots: Mapping[NodeId, Spot], targets: Targets) -> set[tuple[str, str]]:
    return {(spots[node].site, spots[node].rack) for node in targets}
