"""Racks and sites: which runs this node may bring across a boundary, so that one copy crosses it. Pure.

A run that the own rack lacks is fetched by one member of it, the first in rendezvous order, and spreads
inside from there; the others wait for it, and the next in order step in when it takes too long: first the
second, then four, eight, sixteen, at last everybody. A site is crossed by the same rule among all nodes of
the site. Nobody is told anything: all who hold the same member list come to the same order.
"""

import functools
import heapq
from collections.abc import Sequence

from p2pcache.core import fallback

BRIDGES = 16  # members of a rack or site that share the work: no link notices, and lists stay short
_SLOTS = 256  # runs are dealt to the bridges by number, modulo this: 16 shares, in small portions
_SEAT = 1 << 32  # beyond every slot: the dice that choose the bridges aren't those that rank them
_STEPS = BRIDGES.bit_length()  # looks at which a run waits until everybody may fetch it
_ALL = -1  # as bits

Reach = tuple[int, int, int]
"""Per distance (0: own rack, 1: own site, 2: elsewhere) the runs (bits) that may be asked for there."""

EVERYWHERE: Reach = (_ALL, _ALL, _ALL)


class Boundaries:
    """Where the other nodes are, and what may be brought from there.

    Invariants: `_open[d]` is what may be brought from distance d if nobody nearer has it; while
    `active` is false everybody is near, and all of it may.
    """

    def __init__(self, node: int, run_count: int) -> None:
        self.active = False
        self._node = node
        self._repeat = _repeated(run_count)
        self._rack: frozenset[int] = frozenset()
        self._site: frozenset[int] = frozenset()
        # Per distance: runs whose first 1, 2, 4 ... we are of, and runs that waited for 1, 2, 3 ... looks.
        self._duty: list[list[int]] = [[], [], []]
        self._waited: list[list[int]] = [[], [], []]
        self._open = [_ALL, _ALL, _ALL]

    def told(self, nodes: Sequence[int], rack: tuple[int, ...], site: tuple[int, ...]) -> None:
        """The member list, and who of them shares our rack and our site; nobody: no labels are known."""
        groups = frozenset(rack), frozenset(site)
        active = bool(rack) and not groups[0].issuperset(nodes)
        if active == self.active and groups == (self._rack, self._site):
            return
        self.active, (self._rack, self._site) = active, groups
        for distance, group in ((1, rack), (2, site)):
            ranks = _ranks(group).get(self._node) if self.active else None
            self._duty[distance] = [self._share(ranks, 1 << step) for step in range(_STEPS)]
            self._reopen(distance)

    def distance(self, node: int) -> int:
        """0: in our rack, 1: in our site, 2: elsewhere."""
        if not self.active or node in self._rack:
            return 0
        return 1 if node in self._site else 2

    def reach(self, in_rack: int, in_site: int) -> Reach:
        """What may be asked for at each distance.

        Args:
            in_rack: runs (bits) that somebody fit has in our rack.
            in_site: and in our site.
        """
        if not self.active:
            return EVERYWHERE
        return _ALL, self._open[1] & ~in_rack, self._open[2] & ~in_site

    def look(self, beyond_rack: int, beyond_site: int) -> None:
        """Once in a while: what waited since the last look may be fetched by more of us.

        Args:
            beyond_rack: needed runs (bits) that somebody fit in our site has, and nobody in our rack.
            beyond_site: that somebody elsewhere has, and nobody in our site.
        """
        for distance, runs in ((1, beyond_rack), (2, beyond_site)):
            steps = [runs, *(step & runs for step in self._waited[distance])]
            self._waited[distance] = steps[: _STEPS + 1]
            self._reopen(distance)

    def _reopen(self, distance: int) -> None:
        duty = self._duty[distance]
        runs = duty[0]
        for step, waited in enumerate(self._waited[distance]):
            # What was seen waiting once only may have begun to a moment ago: nothing but our duty.
            runs |= waited & duty[step] if step < _STEPS else waited
        self._open[distance] = runs if self.active else _ALL

    def _share(self, ranks: tuple[int, ...] | None, first: int) -> int:
        """Runs (bits) of which we are among the `first` that may fetch them."""
        if ranks is None:
            return 0
        return sum(1 << slot for slot, rank in enumerate(ranks) if rank < first) * self._repeat


def _repeated(run_count: int) -> int:
    """What turns a set of slots into a set of (at least all) runs by multiplication."""
    return sum(1 << start for start in range(0, run_count, _SLOTS))


@functools.lru_cache(maxsize=256)  # the nodes of a rack ask the same thing, in a simulation
def _ranks(group: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """The bridges of a group, and each one's rank per slot."""
    bridges = heapq.nsmallest(BRIDGES, group, key=lambda n: (fallback.weight(n, _SEAT), n))
    ranks: dict[int, list[int]] = {node: [] for node in bridges}
    for slot in range(_SLOTS):
        for rank, node in enumerate(fallback.order(slot, bridges)):
            ranks[node].append(rank)
    return {node: tuple(places) for node, places in ranks.items()}
