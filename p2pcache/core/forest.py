"""Who supplies whom with new runs: one tree for each stripe, in which every node is an inner one only once. Pure.

Run r belongs to stripe r modulo `STRIPES`. In the tree of each stripe a node gets that stripe's runs from the node
above it, and hands them to at most `STRIPES` below it if it is an inner one there; in all other trees it is a leaf. So
everybody takes in each stripe at a part of its downlink, gives one of them on several times, and links are full without
anybody having to look for somebody with a free slot. (Castro et al., SplitStream, SOSP 2003. What a tree doesn't bring
in time is had from the neighbours, as in Wang et al., mTreebone, ICDCS 2007.)
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum

from p2pcache.core import chunkset
from p2pcache.core.uploads import Turn

# A run needs as many run times for a hop as its sender has below it, and a tree is log(nodes) / log(that) deep: e is
# the best number. See decision 0035.
STRIPES = 4
# Nodes of a tree that are looked at when places are missing: no more are, or far too many.
_MOST_LEFT_OVER = 16
NOBODY = 0  # for a node id: it has no supplier there


@functools.lru_cache(maxsize=64)
def stripes(run_count: int) -> tuple[int, ...]:
    """The runs (bits) of each stripe of a model."""
    return tuple(chunkset.of(range(stripe, run_count, STRIPES)) for stripe in range(STRIPES))


def levels(nodes: int) -> int:
    """How many hops a run takes at most in a tree of so many nodes."""
    return math.ceil(math.log(max(nodes, 2), STRIPES))


def stripe_of(run: int, run_count: int) -> int:
    """All runs (bits) of the stripe that this one is in."""
    return stripes(run_count)[run % STRIPES]


def supplied_with(
    stripes_so_far: int, run: int, run_count: int, turn: Turn, usual_uploads: int | None
) -> int:
    """The stripes (bits over runs) that an asker has of us, now that it asks for this run.

    Who has no supplier itself (`Scheduler.usual_uploads` is None) supplies nobody, whatever it is asked for.
    """
    new = turn is Turn.SUPPLIED and usual_uploads is not None and not stripes_so_far >> run & 1
    return stripes_so_far | stripe_of(run, run_count) if new else stripes_so_far


class Rank(IntEnum):
    """What a node is good for in a tree."""

    INNER = 0  # it supplies others
    LEAF = 1
    SPARE = 2  # it has no supplier: it takes little, or has much to catch up with


class Tree:
    """One stripe's tree, as a heap: the node in place p is supplied by the one in place (p - 1) // STRIPES.

    Nodes are in the order of their ranks, so that the tree is flat, and who comes or goes moves a few others at
    most. A place whose supplier's place isn't an inner node's has none.

    Invariants (`check`): `_at` is each node's place in `_nodes`; `_ends[r]` of them are of rank r or better.
    """

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._at: dict[int, int] = {}
        self._ends = [0] * len(Rank)
        # Nodes that perhaps have another supplier since this was emptied.
        self.moved: set[int] = set()

    @property
    def inner(self) -> int:
        """How many nodes supply others."""
        return self._ends[Rank.INNER]

    @property
    def root(self) -> int:
        """Who should read this stripe's runs from the origin."""
        return self._nodes[0] if self.inner else NOBODY

    @property
    def last_inner(self) -> int:
        """The inner node that came last, or is where that one would be."""
        return self._nodes[self.inner - 1]

    @property
    def left_over(self) -> list[int]:
        """Nodes for which inner ones have no place, the first ones; roots aren't among them."""
        first = self.inner * STRIPES + 1
        return self._nodes[first : min(self._ends[Rank.LEAF], first + _MOST_LEFT_OVER)]

    @property
    def supplied_leaves(self) -> list[int]:
        """Some leaves that have a place below an inner node."""
        places = min(self._ends[Rank.LEAF], self.inner * STRIPES + 1)
        return self._nodes[self.inner : min(places, self.inner + _MOST_LEFT_OVER)]

    @property
    def unused(self) -> list[int]:
        """The inner nodes that have places below them for which there is no node: one entry for each place."""
        places = range(max(1, self._ends[Rank.LEAF]), self.inner * STRIPES + 1)
        return [self._nodes[(place - 1) // STRIPES] for place in places]

    @property
    def short(self) -> int:
        """How many places are missing for nodes that aren't spare; less than none: so many are unused."""
        return self._ends[Rank.LEAF] - (self.inner * STRIPES + 1)

    def supplier(self, node: int) -> int:
        """Who supplies this node; NOBODY if it is the root or there is no room."""
        place = self._at[node]
        above = (place - 1) // STRIPES
        supplied = 0 < place < self._ends[Rank.LEAF] and above < self.inner
        return self._nodes[above] if supplied else NOBODY

    def below(self, node: int) -> list[int]:
        """Whom an inner node supplies, but for those that it adopts."""
        first = self._at[node] * STRIPES + 1
        return self._nodes[first : min(first + STRIPES, self._ends[Rank.LEAF])]

    def rank(self, node: int) -> Rank:
        """What a node is here."""
        return next(rank for rank in Rank if self._at[node] < self._ends[rank])

    def __len__(self) -> int:
        return len(self._nodes)

    def enter(self, node: int, rank: Rank) -> None:
        """A node that isn't there comes: the first one of each worse rank makes room for it."""
        hole = len(self._nodes)
        self._nodes.append(node)
        for worse in reversed(Rank):
            if worse > rank:
                first = self._ends[worse - 1]
                if first != hole:
                    self._put(self._nodes[first], hole)
                hole = first
            if worse >= rank:
                self._ends[worse] += 1
        self._put(node, hole)
        if rank is Rank.INNER:
            self._told_below(hole)

    def leave(self, node: int) -> None:
        """A node goes. The inner ones below an inner one move up, one from each level: they have nearly all it had.

        (The last one in its place would be behind those below it by the whole depth of the tree.) The last one of
        each rank fills the hole that is left.
        """
        rank = self.rank(node)
        hole = self._at.pop(node)
        self.moved.discard(node)
        while (below := hole * STRIPES + 1) < self.inner:
            self._put(self._nodes[below], hole)
            self._told_below(hole)
            hole = below
        for one in Rank:
            if one >= rank:
                self._ends[one] -= 1
                last = self._ends[one]
                if last != hole:
                    self._put(self._nodes[last], hole)
                    if one is Rank.INNER:
                        self._told_below(hole)
                if one is Rank.INNER:
                    self._told_below(last)
                hole = last
        self._nodes.pop()
        self.moved &= self._at.keys()

    def swap(self, one: int, other: int) -> None:
        """Two nodes of the same rank change places."""
        if one != other:
            place = self._at[one]
            self._put(one, self._at[other])
            self._put(other, place)

    def _put(self, node: int, place: int) -> None:
        self._nodes[place] = node
        self._at[node] = place
        self.moved.add(node)

    def _told_below(self, place: int) -> None:
        first = place * STRIPES + 1
        self.moved.update(self._nodes[first : first + STRIPES])

    def check(self) -> None:
        """Assert the invariants."""
        assert self._at == {node: place for place, node in enumerate(self._nodes)}
        assert self._ends == sorted(self._ends)
        assert self._ends[-1] == len(self._nodes)
        assert self.moved <= self._at.keys()


class Forest:
    """The trees of one swarm.

    Invariants (`check`): all trees have the same nodes; each of them is an inner one in its tree of `_inner` and in no
    other, and no tree has two more of them than another; those that aren't in `_inner` have their rank everywhere; who
    adopts has places to spare, and is supplied itself.
    """

    def __init__(self) -> None:
        self.trees = [Tree() for _ in range(STRIPES)]
        self.changes = 0  # so far
        self._ranks: dict[int, Rank] = {}
        self._inner: dict[int, int] = {}  # node -> the stripe that it hands on
        # Node and stripe -> who supplies it for want of a place.
        self._adopted: dict[tuple[int, int], int] = {}
        self._readopted: set[int] = set()  # nodes for which that has changed

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, node: int) -> bool:
        return node in self._ranks

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def enter(self, node: int, rank: Rank) -> None:
        """A node takes part, or is good for something else than before; INNER in one tree, in the others a LEAF."""
        if self._ranks.get(node) is rank:
            return
        self.leave(node)
        self.changes += 1
        self._ranks[node] = rank
        stripe = min(range(STRIPES), key=lambda s: self.trees[s].inner)
        if rank is Rank.INNER:
            self._inner[node] = stripe
        for number, tree in enumerate(self.trees):
            elsewhere = rank is Rank.INNER and number != stripe
            tree.enter(node, Rank.LEAF if elsewhere else rank)
        self._balance()
        self._adopt()

    def leave(self, node: int) -> None:
        """A node takes part no longer, if it did."""
        if node in self._ranks:
            self.changes += 1
            del self._ranks[node]
            self._inner.pop(node, None)
            for tree in self.trees:
                tree.leave(node)
            self._balance()
            self._adopt()

    def _balance(self) -> None:
        """No tree may have two inner nodes more than another, or it has places to spare that are missing there."""
        sizes = [tree.inner for tree in self.trees]
        rich, poor = sizes.index(max(sizes)), sizes.index(min(sizes))
        if sizes[rich] - sizes[poor] > 1:
            node = self.trees[rich].last_inner
            for stripe, rank in ((rich, Rank.LEAF), (poor, Rank.INNER)):
                self.trees[stripe].leave(node)
                self.trees[stripe].enter(node, rank)
            self._inner[node] = poor

    def suppliers(self, node: int) -> tuple[int, ...]:
        """Who supplies it with each stripe; NOBODY where it must see for itself."""
        return tuple(
            tree.supplier(node) or self._adopted.get((node, stripe), NOBODY)
            for stripe, tree in enumerate(self.trees)
        )

    def _adopt(self) -> None:
        """Who finds no place in one tree is supplied by somebody who has one to spare in another and is a leaf here."""
        unused = [node for tree in self.trees for node in tree.unused]
        adopted: dict[tuple[int, int], int] = {}
        for stripe, tree in enumerate(self.trees):
            for node in self._left_over(tree, unused):
                fit = (
                    (one, leaf) for one in unused for leaf in (node, *tree.supplied_leaves)
                    if leaf not in unused and self._may_adopt(one, leaf, adopted)
                )  # fmt: skip
                one, leaf = next(fit, (NOBODY, node))
                if one != NOBODY:
                    tree.swap(leaf, node)
                    unused.remove(one)
                    adopted[leaf, stripe] = one
        changed = adopted.items() ^ self._adopted.items()
        self._readopted.update(node for (node, _), _ in changed)
        self._adopted = adopted

    def _left_over(self, tree: Tree, unused: list[int]) -> list[int]:
        """Who finds no place in a tree, now that who has places to spare elsewhere, and was among them, has one.

        (The last ones to come are the last ones in all trees: they would wait for one another.)
        """
        others = (leaf for leaf in tree.supplied_leaves if leaf not in unused)
        for node in tree.left_over if unused else ():
            if node in unused and (leaf := next(others, NOBODY)) != NOBODY:
                tree.swap(node, leaf)
        return tree.left_over if unused else []

    def _may_adopt(self, one: int, node: int, adopted: Mapping[tuple[int, int], int]) -> bool:
        """Nobody gets two stripes of one node, which serves those that ask it in turns."""
        above = {tree.supplier(node) for tree in self.trees}
        return one not in above | {node} | {adopted.get((node, other)) for other in range(STRIPES)}

    def beside(self, node: int, supplier: int) -> list[int]:
        """Who else is supplied by a node's supplier."""
        stripe = self._inner.get(supplier)
        below = self.trees[stripe].below(supplier) if stripe is not None else []
        return [one for one in below if one != node]

    @property
    def inner(self) -> AbstractSet[int]:
        """Nodes that supply others."""
        return self._inner.keys()

    @property
    def roots(self) -> tuple[int, ...]:
        """Who reads each stripe from the origin."""
        return tuple(tree.root for tree in self.trees)

    @property
    def short(self) -> float:
        """The share of what nodes take, but for spare ones, that nobody supplies: too few can hand anything on."""
        return sum(tree.short for tree in self.trees) / (STRIPES * len(self) or 1)

    def moved(self) -> set[int]:
        """Nodes whose suppliers may have changed since this was asked last."""
        found, self._readopted = self._readopted, set()
        for tree in self.trees:
            found |= tree.moved
            tree.moved.clear()
        return found & self._ranks.keys()

    def check(self) -> None:
        """Assert the invariants."""
        for number, tree in enumerate(self.trees):
            tree.check()
            for node, rank in self._ranks.items():
                elsewhere = rank is Rank.INNER and self._inner[node] != number
                assert tree.rank(node) is (Rank.LEAF if elsewhere else rank)
        sizes = [tree.inner for tree in self.trees]
        assert all(len(tree) == len(self) for tree in self.trees)
        assert max(sizes) - min(sizes) <= 1
        unused = Counter(node for tree in self.trees for node in tree.unused)
        assert Counter(self._adopted.values()) <= unused
        assert all(self.suppliers(one)[stripe] for (_, stripe), one in self._adopted.items())
