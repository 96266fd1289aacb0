"""How far a model is kept: copies that are there, and what is missing."""

from collections.abc import Sequence
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.pool.stripes import Stripes
from p2pcache.core.protocol.keep_orders import Kept
from p2pcache.ids import NodeId, RunSet


class Progress(NamedTuple):
    """How far an intent is true."""

    copies: int  # of the run with the fewest, among nodes that are here
    target: int
    missing_bytes: int  # of copies that are to be made
    missing_places: int  # copies of stripes for which there is no node
    nodes: int  # with orders
    refusals: dict[NodeId, Kept]
    waits: bool  # for nodes that may come back


def copies_of(had: Sequence[RunSet], stripes: Stripes, copies: int) -> tuple[int, int]:
    """Copies of the stripe with the fewest, up to the target, and the bytes of those that are missing.

    Args:
        had: stripes of each node.
        stripes: of the model.
        copies: the target.
    """
    if stripes.whole:
        there = min(copies, sum(map(bool, had)))
        return there, (copies - there) * stripes.total_bytes
    every = bitset.full(len(stripes))
    at_least = [every] + [0] * copies  # the stripes with so many copies
    for each in had:
        for count in range(copies, 0, -1):
            at_least[count] |= at_least[count - 1] & each
    missing = sum(
        stripes.sizes[stripe] for some in at_least for stripe in bitset.members(every & ~some)
    )
    return sum(some == every for some in at_least) - 1, missing
