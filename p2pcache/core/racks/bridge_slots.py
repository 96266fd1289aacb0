"""Seats: who of a rack or site brings which runs across its boundary. Pure.

Run r is brought by whoever has seat r modulo `SEATS`. All who know the same members come to the same seats, so
nobody is told anything. Because a run has the same seat everywhere, it takes a short way: from the origin to
that seat's holder in one rack, from there to the holders in the others, and in each to its rack.
"""

import functools
import heapq
from collections.abc import Sequence

from p2pcache.core import rendezvous

SEATS = 16  # members of a rack or site that share the work: no link notices, and lists stay short
LINKS = (
    12  # holders of our seat elsewhere that we dial: half of a node's neighbours, as far ones are
)
LEAST_LINKS = 4  # ... for each of several seats; as many dial us, and all are within a few steps
_LOBBY = 1 << 32  # beyond every seat: the dice that choose the holders aren't those that rank them

Group = tuple[int, ...]
"""The nodes of one rack or site, ascending."""


@functools.lru_cache(maxsize=4096)  # racks; the nodes of one ask the same thing, in a simulation
def holders(group: Group) -> tuple[int, ...]:
    """Who has each seat. In a group that is smaller than that some have two, but none two more than others."""
    free: set[int] = set()  # they have a seat less than the others
    found: list[int] = []
    for seat in range(SEATS if group else 0):
        free = free or set(_bridges(group))
        found.append(min(free, key=lambda n: (rendezvous.weight(n, seat), n)))
        free.remove(found[-1])
    return tuple(found)


@functools.lru_cache(maxsize=256)
def order(group: Group) -> tuple[tuple[int, ...], ...]:
    """Per seat its holder, and who steps in for him: the second in order, the third and so on."""
    bridges = _bridges(group)
    return tuple(
        tuple(dict.fromkeys((holder, *rendezvous.order(seat, bridges))))
        for seat, holder in enumerate(holders(group))
    )


def links(node: int, group: Group, others: Sequence[Group]) -> set[int]:
    """Whom a node should know beyond its group: some of those who have its seats elsewhere.

    Args:
        node: we; without a seat we need nobody.
        group: our rack or site.
        others: the other racks or sites.
    """
    ours = [seat for seat, holder in enumerate(holders(group)) if holder == node]
    there = [holders(other) for other in others if other]
    found: set[int] = set()
    for seat in ours:
        theirs = {each[seat] for each in there}
        count = max(LINKS // len(ours), LEAST_LINKS)
        found.update(heapq.nsmallest(count, theirs, key=lambda n: (rendezvous.weight(n, node), n)))
    return found - {node}


def _bridges(group: Group) -> list[int]:
    return heapq.nsmallest(SEATS, group, key=lambda n: (rendezvous.weight(n, _LOBBY), n))
