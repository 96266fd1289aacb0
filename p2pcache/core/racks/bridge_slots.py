"""Bridge slots: which node of a rack or site brings which runs across its boundary.

Run r is brought by the holder of slot r modulo `BRIDGE_SLOTS`. All nodes that know the same members compute the same
holders by rendezvous hashing, so no message is needed. A run has the same slot everywhere and so takes a short path:
from the origin to the slot's holder in one rack, from there to the holders in other racks, and in each into its rack.
"""

import functools
import heapq
from collections.abc import Sequence

from p2pcache.core import rendezvous
from p2pcache.core.racks.settings import BRIDGE_SLOTS, LINKS, MIN_LINKS
from p2pcache.ids import NodeId

# A key beyond all slots: the choice of bridges is independent of their order in a slot.
_LOBBY = 1 << 32

Group = tuple[NodeId, ...]
"""The nodes of one rack or site, ascending."""


@functools.lru_cache(maxsize=4096)  # racks: in a simulation all nodes of a rack ask for the same
def holders(group: Group) -> tuple[NodeId, ...]:
    """The holder of each slot, by slot.

    In a small group nodes hold several slots. The numbers of slots that two bridges hold differ by one at most.
    """
    free: set[NodeId] = set()  # they hold one slot less than the others
    found: list[NodeId] = []
    for slot in range(BRIDGE_SLOTS if group else 0):
        free = free or set(_bridges(group))
        found.append(min(free, key=lambda n: (rendezvous.weight(n, slot), n)))
        free.remove(found[-1])
    return tuple(found)


@functools.lru_cache(maxsize=256)
def order(group: Group) -> tuple[tuple[NodeId, ...], ...]:
    """For each slot its holder, then the bridges that step in for it, in order."""
    bridges = _bridges(group)
    return tuple(
        tuple(dict.fromkeys((holder, *rendezvous.order(slot, bridges))))
        for slot, holder in enumerate(holders(group))
    )


def links(node: NodeId, group: Group, others: Sequence[Group]) -> set[NodeId]:
    """The nodes outside its group that a bridge should know: some holders of its slots elsewhere.

    Args:
        node: the bridge; a node that holds no slot needs none.
        group: its rack or site.
        others: the other racks or sites.
    """
    ours = [slot for slot, holder in enumerate(holders(group)) if holder == node]
    there = [holders(other) for other in others if other]
    found: set[NodeId] = set()
    for slot in ours:
        theirs = {each[slot] for each in there}
        count = max(LINKS // len(ours), MIN_LINKS)
        found.update(heapq.nsmallest(count, theirs, key=lambda n: (rendezvous.weight(n, node), n)))
    return found - {node}


def _bridges(group: Group) -> list[NodeId]:
    return heapq.nsmallest(BRIDGE_SLOTS, group, key=lambda n: (rendezvous.weight(n, _LOBBY), n))
