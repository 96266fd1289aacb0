"""Racks and sites: which runs this node may bring across a boundary, so that one copy crosses it.

A run that the own rack lacks is fetched by one member of it, the holder of the run's bridge slot, and spreads inside
the rack from there. The others wait for it. If that bridge brings far less than the other bridges, the next nodes in
order step in: first the second, then four, eight, sixteen, at last all. Time alone doesn't decide: on a thin uplink all
bridges are slow, and nodes that step in make it slower (docs/lab/0014). A site is crossed by the same rule among all
of its nodes. No message is needed: all nodes that hold the same list compute the same order.
"""

from collections.abc import Sequence

from p2pcache.core.racks import bridge_slots
from p2pcache.core.racks.settings import (
    BRIDGE_SLOTS,
    LATE_BRIDGE,
    OWED_RATIO,
    OWED_RUNS,
    PROBATION_REVIEWS,
)
from p2pcache.core.stats import median
from p2pcache.ids import NodeId, RunSet

_STEPS = BRIDGE_SLOTS.bit_length()  # reviews after which all nodes may fetch a run of a late bridge
_ALL: RunSet = -1

Reach = tuple[RunSet, RunSet, RunSet]
"""The runs that may be requested at each distance (0: own rack, 1: own site, 2: elsewhere)."""

EVERYWHERE: Reach = (_ALL, _ALL, _ALL)
WITHIN: Reach = (_ALL, 0, 0)


class Boundaries:
    """Where the other nodes are, and which runs may be brought from there.

    Invariants: `_open[d]` is the set of runs that may be brought from distance d if no nearer node has them; while
    `active` is false all nodes are near and `_open` holds all runs.
    """

    def __init__(self, node: NodeId, run_count: int) -> None:
        """No labels are known yet.

        Args:
            node: this node.
            run_count: runs of the model.
        """
        self.active = False
        self._node = node
        self._repeat = _repeated(run_count)
        self._rack: frozenset[NodeId] = frozenset()
        self._site: frozenset[NodeId] = frozenset()
        # For each distance: the runs for which this node is among the first 1, 2, 4 ... in order.
        self._duty: list[list[RunSet]] = [[], [], []]
        # The runs of late bridges that waited for at least 1, 2, 3 ... reviews.
        self._waited: list[list[RunSet]] = [[], [], []]
        self._queued: list[RunSet] = [0, 0, 0]  # runs that waited at the last review
        self._starved: list[RunSet] = [0, 0, 0]  # runs that waited when nothing came any more
        self._shares: list[list[RunSet]] = [[], [], []]  # the runs of each bridge
        # For each share of a late bridge: reviews that its probation still lasts.
        self._probation: list[dict[RunSet, int]] = [{}, {}, {}]
        self._open: list[RunSet] = [_ALL, _ALL, _ALL]

    def on_members(
        self, nodes: Sequence[NodeId], rack: tuple[NodeId, ...], site: tuple[NodeId, ...]
    ) -> None:
        """The member list changed.

        Args:
            nodes: all members.
            rack: those in this node's rack; empty: no labels are known.
            site: those in this node's site.
        """
        ours: frozenset[NodeId] = frozenset(rack)
        active = bool(rack) and not ours.issuperset(nodes)
        # Without boundaries the groups aren't needed, and a site may have thousands of nodes.
        groups = (ours, frozenset(site)) if active else (frozenset[NodeId](), frozenset[NodeId]())
        if active == self.active and groups == (self._rack, self._site):
            return
        self.active, (self._rack, self._site) = active, groups
        for distance, group in ((1, rack), (2, site)):
            orders = bridge_slots.order(group) if self.active else ()
            self._probation[distance] = {}
            bridges = {first: None for first, *_ in orders}
            self._shares[distance] = [self._share(orders, node, 1) for node in bridges]
            self._duty[distance] = [
                self._share(orders, self._node, 1 << step) for step in range(_STEPS)
            ]
            self._reopen(distance)

    def distance(self, node: NodeId) -> int:
        """How far a node is: 0 in this rack, 1 in this site, 2 elsewhere."""
        if not self.active or node in self._rack:
            return 0
        return 1 if node in self._site else 2

    def reach(self, in_rack: RunSet, in_site: RunSet) -> Reach:
        """The runs that may be requested at each distance.

        Args:
            in_rack: runs that nodes in this rack have and deliver.
            in_site: the same in this site.
        """
        if not self.active:
            return EVERYWHERE
        return _ALL, self._open[1] & ~in_rack, self._open[2] & ~in_site

    def review(self, beyond_rack: RunSet, beyond_site: RunSet, *, starved: bool = False) -> None:
        """Let more nodes fetch the runs that have waited since the last review. Called once in a while.

        Args:
            beyond_rack: needed runs that nodes in this site have and deliver, and none in this rack has.
            beyond_site: needed runs that nodes elsewhere have and deliver, and none in this site has.
            starved: nothing has come for long. Perhaps no bridge wants these runs, or none reaches their holders.
        """
        for distance, runs in ((1, beyond_rack), (2, beyond_site)):
            self._starved[distance] = runs if starved else runs & self._starved[distance]
            ages = runs & self._late(distance, self._queued[distance], runs)
            steps = [runs, *(step & ages for step in self._waited[distance])]
            self._waited[distance], self._queued[distance] = steps[: _STEPS + 1], runs
            self._reopen(distance)

    def _late(self, distance: int, waited: RunSet, runs: RunSet) -> RunSet:
        """The runs of bridges that bring far less than the others. Runs of other bridges only queue.

        Args:
            distance: of the boundary.
            waited: runs that waited at the last review.
            runs: that wait now.
        """
        parts = {
            share: (waited & ~runs & share).bit_count() / (waited & share).bit_count()
            for share in self._shares[distance] if waited & share
        }  # fmt: skip
        usual = median(parts.values())
        tolerated = self._tolerated(distance, runs)
        probation = {
            share: left - 1 for share, left in self._probation[distance].items() if left > 1
        }
        late = {
            share: PROBATION_REVIEWS for share, part in parts.items()
            # A part is low when its bridge is slow: the two sides of the comparison change places. Where most bring
            # nothing, one that brings nothing is late.
            if (LATE_BRIDGE.is_slow(usual, part, len(parts)) if usual else not part)
            and (runs & share).bit_count() >= tolerated
        }  # fmt: skip
        self._probation[distance] = probation | late
        return sum(self._probation[distance])

    def _tolerated(self, distance: int, runs: RunSet) -> int:
        """From how many owed runs on a bridge is behind the others."""
        owed = sorted((runs & share).bit_count() for share in self._shares[distance])
        return OWED_RATIO * owed[(len(owed) - 1) // 2] + OWED_RUNS if owed else 0

    def _reopen(self, distance: int) -> None:
        duty = self._duty[distance]
        runs = duty[0] | duty[1] & sum(self._probation[distance]) | self._starved[distance]
        for step, waited in enumerate(self._waited[distance]):
            # A run that waited at one review only may have appeared a moment before, so the first step opens
            # nothing but this node's own duty.
            runs |= waited & duty[step] if step < _STEPS else waited
        self._open[distance] = runs if self.active else _ALL

    def _share(self, orders: Sequence[tuple[NodeId, ...]], node: NodeId, first: int) -> RunSet:
        """The runs for which a node is among the `first` that may fetch them."""
        return (
            sum(1 << slot for slot, one in enumerate(orders) if node in one[:first]) * self._repeat
        )


def _repeated(run_count: int) -> int:
    """The factor that turns a set of slots into the set of their runs, of at least `run_count` runs."""
    return sum(1 << start for start in range(0, run_count, BRIDGE_SLOTS))
