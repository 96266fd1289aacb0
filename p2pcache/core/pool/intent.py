"""One intent to keep a model: the operator's wish, and what nodes are ordered for it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.pool.placement import Placement, Targets
from p2pcache.core.pool.progress import Progress
from p2pcache.core.pool.selector import Selector, Traits
from p2pcache.core.pool.spots import Rooms
from p2pcache.core.pool.stripes import Stripes
from p2pcache.ids import NodeId, RunIndex, RunSet

Key = tuple[str, str, str]
"""Namespace, name and tag of an intent."""


class Wish(NamedTuple):
    """One intent to keep a model."""

    digest: str  # of the manifest that the tag means now
    copies: int  # 0: as many as there are nodes
    whole: bool = False  # each copy is a complete model on one node
    selector: Selector = Selector()
    older: bool = False  # it was there before this tracker

    def is_cut_as(self, other: "Wish") -> bool:
        """Whether both are of one model that is cut alike, so that places stay."""
        return (self.digest, self.whole) == (other.digest, other.whole)


class PoolNode(NamedTuple):
    """What a node says of itself."""

    traits: Traits
    room_bytes: int
    link_bytes_s: int = 0  # 0: not known


@dataclass(slots=True)
class Intent:
    """A wish, where its stripes are to be, and what nodes are ordered to keep for it."""

    wish: Wish
    placement: Placement
    former: dict[int, Targets] = field(default_factory=dict)  # had a stripe to give up, by stripe
    orders: dict[NodeId, list[int]] = field(default_factory=dict)  # stripes, ascending
    progress: Progress | None = None  # as of its last review
    # Its orders last until this one is true. It has none before it.
    before: "Intent | None" = None
    # Nodes that had orders of an earlier intent, which has ended.
    released: set[NodeId] = field(default_factory=set)

    @property
    def in_force(self) -> "Iterator[Intent]":
        """This one, and the one before it that still has orders."""
        yield self
        if (before := self.before) is not None:
            yield before

    @property
    def is_restless(self) -> bool:
        """Whether it isn't true yet: its nodes are looked at more often."""
        return self.progress is None or bool(self.progress.missing_bytes or self.former)

    def ranges(self, node: NodeId) -> Iterator[tuple[RunIndex, RunIndex]]:
        """The runs that a node is ordered to have."""
        return self.placement.stripes.ranges(self.orders.get(node, ()))

    def give_orders(self) -> set[NodeId]:
        """Order what has its place or is yet to be given up; returns the nodes whose orders changed or have ended."""
        old, self.orders = self.orders, {}
        released, self.released = self.released, set()
        for stripe, targets in enumerate(self.placement.targets):
            for node in targets + self.former.get(stripe, ()):
                self.orders.setdefault(node, []).append(stripe)
        known = old.keys() | self.orders.keys()
        return released | {n for n in known if old.get(n) != self.orders.get(n)}

    def note_former(self, before: list[Targets]) -> None:
        """Places were others before: nodes keep a stripe that they are to give up, until others have it."""
        for stripe, (old, new) in enumerate(zip(before, self.placement.targets, strict=True)):
            if old is not new and old != new:
                had_it = dict.fromkeys(self.former.pop(stripe, ()) + old)
                if former := tuple(node for node in had_it if node not in new):
                    self.former[stripe] = former

    def retain(self, had: Mapping[NodeId, RunSet], copies: int, *, every: bool) -> None:
        """Where copies lack, let nodes keep what they have and may not keep any more, such as one that is drained.

        As many nodes as copies lack, or `every` one: the tracker before us had them keep it, and only it knew. `had`
        are the stripes of each node that is here.
        """
        lack = dict[int, int]()
        for stripe, targets in enumerate(self.placement.targets):
            there = _holders(stripe, targets, had)
            if there < copies:
                lack[stripe] = copies - there
        short = bitset.of(lack)
        for node, some in sorted(had.items()):
            for stripe in bitset.members(some & short):
                former = self.former.get(stripe, ())
                if node in former + self.placement.targets[stripe]:
                    continue
                if every or _holders(stripe, former, had) < lack[stripe]:
                    self.former[stripe] = (*former, node)

    def end_former(
        self, had: Mapping[NodeId, RunSet], copies: int, unclear: Collection[NodeId]
    ) -> None:
        """Where copies are there, nodes that are to give a stripe up may; so may those that clearly don't have it."""
        for stripe, former in list(self.former.items()):
            targets = self.placement.targets[stripe]
            done = _holders(stripe, targets, had) >= copies
            left = [n for n in former if n in unclear or had.get(n, 0) >> stripe & 1]
            if left and not done:
                self.former[stripe] = tuple(left)
            else:
                del self.former[stripe]


def _holders(stripe: int, nodes: Targets, had: Mapping[NodeId, RunSet]) -> int:
    """How many of these nodes have a stripe."""
    return sum(had.get(node, 0) >> stripe & 1 for node in nodes)


def begin_intent(wish: Wish, run_bytes: Collection[int], rooms: Rooms) -> Intent:
    """An intent of which nothing is placed yet; `run_bytes`: the size of each run of the model."""
    stripes = Stripes(tuple(run_bytes), whole=wish.whole)
    return Intent(wish, Placement(stripes, int(wish.digest[:16], 16), rooms))
