"""Racks and sites: which runs this node may bring across a boundary, so that one copy crosses it.

A run that the own rack lacks is fetched by one member of it, the holder of the run's bridge slot, and spreads inside
the rack from there. The others wait for it. A member that delivers nothing holds no slot, in the eyes of those that
know. If a bridge brings far less than the others, the next nodes in order step in: first the second, then four, eight,
sixteen, at last all. Time alone doesn't decide: on a thin uplink all bridges are slow, and nodes that step in make it
slower (docs/lab/0014). A site is crossed by the same rule among all of its nodes. No message is needed: all nodes that
hold the same list compute the same order.
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

Reach = tuple[RunSet, RunSet, RunSet]
"""The runs that may be requested at each distance (0: own rack, 1: own site, 2: elsewhere)."""

EVERYWHERE: Reach = (-1, -1, -1)
WITHIN: Reach = (-1, 0, 0)


class Boundaries:
    """Where the other nodes are, and which runs may be brought from there; while `active` is false all are near."""

    def __init__(self, node: NodeId, run_count: int) -> None:
        """No labels are known yet.

        Args:
            node: this node.
            run_count: runs of the model.
        """
        self.active = False
        self._rack, self._site = (_Boundary(node, run_count) for _ in range(2))
        self._doubted: frozenset[NodeId] = frozenset()  # they deliver nothing to this node

    def on_members(
        self, nodes: Sequence[NodeId], rack: tuple[NodeId, ...], site: tuple[NodeId, ...]
    ) -> None:
        """The member list changed.

        Args:
            nodes: all members.
            rack: those in this node's rack; empty: no labels are known.
            site: those in this node's site.
        """
        self.active = bool(rack) and not frozenset(rack).issuperset(nodes)
        if self.active:  # else nobody asks for them, and a site may have thousands of nodes
            self._rack.enclose(rack, self._doubted)
            self._site.enclose(site, self._doubted)

    def on_delivers(self, node: NodeId, *, delivers: bool) -> None:
        """Whether a node delivers has changed. One that doesn't brings nothing into the rack, whatever it fetches."""
        self._doubted = self._doubted - {node} if delivers else self._doubted | {node}
        for boundary in (self._rack, self._site) if self.active else ():
            boundary.enclose(boundary.group, self._doubted)

    def distance(self, node: NodeId) -> int:
        """How far a node is: 0 in this rack, 1 in this site, 2 elsewhere."""
        if not self.active or node in self._rack.inside:
            return 0
        return 1 if node in self._site.inside else 2

    def reach(self, in_rack: RunSet, in_site: RunSet) -> Reach:
        """The runs that may be requested at each distance.

        Args:
            in_rack: runs that nodes in this rack have and deliver.
            in_site: the same in this site.
        """
        return (
            (-1, self._rack.open & ~in_rack, self._site.open & ~in_site)
            if self.active
            else EVERYWHERE
        )

    def review(self, beyond_rack: RunSet, beyond_site: RunSet, *, starved: bool = False) -> None:
        """Let more nodes fetch the runs that have waited since the last review. Called once in a while.

        Args:
            beyond_rack: needed runs that nodes in this site have and deliver, and none in this rack has.
            beyond_site: needed runs that nodes elsewhere have and deliver, and none in this site has.
            starved: nothing has come for long. Perhaps no bridge wants these runs, or none reaches their holders.
        """
        self._rack.step_in(beyond_rack, starved=starved)
        self._site.step_in(beyond_site, starved=starved)


class _Boundary:
    """One boundary. `open` are the runs that this node may bring across it if nobody `inside` has them."""

    def __init__(self, node: NodeId, run_count: int) -> None:
        self.inside: frozenset[NodeId] = frozenset()
        self.open: RunSet = 0
        self._node = node
        self.group: tuple[NodeId, ...] = ()  # `inside`, ascending
        self._doubted: frozenset[NodeId] = frozenset()  # those inside that hold no slot
        # Turns a set of slots into the set of their runs.
        self._repeat = sum(1 << start for start in range(0, run_count, BRIDGE_SLOTS))
        # Runs for which this node is among the first 1, 2, 4 ... in order.
        self._duty: list[RunSet] = [0] * _STEPS
        self._shares: list[RunSet] = []  # the runs of each bridge
        # For how many reviews the share of a late bridge is still watched.
        self._probation: dict[RunSet, int] = {}
        # All runs that waited at the last review, then those of late bridges that waited for at least 2, 3 ... reviews.
        self._waited: list[RunSet] = [0]
        self._starved: RunSet = 0  # runs that waited when nothing came any more

    def enclose(self, group: tuple[NodeId, ...], doubted: frozenset[NodeId]) -> None:
        """`doubted` nodes hold no slot while others do: the next in order hold theirs, and no other slot moves."""
        inside = frozenset(group)
        doubted &= inside
        if (self.inside, self._doubted) == (inside, doubted):
            return
        self.group, self.inside, self._doubted, self._probation = group, inside, doubted, {}
        orders = [
            tuple(node for node in one if node not in doubted) or one
            for one in bridge_slots.order(group)
        ]
        self._shares = [
            self._share(orders, node, 1) for node in dict.fromkeys(one[0] for one in orders)
        ]
        self._duty = [self._share(orders, self._node, 1 << step) for step in range(_STEPS)]
        self._reopen()

    def step_in(self, runs: RunSet, *, starved: bool) -> None:
        self._starved = runs if starved else runs & self._starved
        self._watch(runs)
        ages = runs & sum(self._probation)
        self._waited = [runs, *(step & ages for step in self._waited)][: _STEPS + 1]
        self._reopen()

    def _watch(self, runs: RunSet) -> None:
        """Find the bridges that bring far less of what waited than the others, and owe far more."""
        waited = self._waited[0]  # at the last review
        parts = {
            share: (waited & ~runs & share).bit_count() / (waited & share).bit_count()
            for share in self._shares if waited & share
        }  # fmt: skip
        usual = median(parts.values())
        owed = sorted((runs & share).bit_count() for share in self._shares)
        tolerated = OWED_RATIO * owed[(len(owed) - 1) // 2] + OWED_RUNS if owed else 0
        self._probation = {share: left - 1 for share, left in self._probation.items() if left > 1}
        self._probation |= {
            share: PROBATION_REVIEWS for share, part in parts.items()
            # A late bridge has a low part, and a straggler a high value, so the two sides of the comparison change
            # places. Where most bridges bring nothing, each bridge that brings nothing is late.
            if (LATE_BRIDGE.is_slow(usual, part, len(parts)) if usual else not part)
            and (runs & share).bit_count() >= tolerated
        }  # fmt: skip

    def _reopen(self) -> None:
        self.open = self._duty[0] | self._duty[1] & sum(self._probation) | self._starved
        # A run that waited at one review only may have appeared a moment before: the first step is this node's duty.
        for waited, duty in zip(self._waited, [*self._duty, -1], strict=False):
            self.open |= waited & duty

    def _share(self, orders: Sequence[tuple[NodeId, ...]], node: NodeId, first: int) -> RunSet:
        """The runs for which a node is among the `first` that may fetch them."""
        return (
            sum(1 << slot for slot, one in enumerate(orders) if node in one[:first]) * self._repeat
        )
