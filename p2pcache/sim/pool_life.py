"""A pool that keeps models: nodes are lost and come, and what must move is counted.

The decider is the tracker's (`core.pool.keeper`). A node has what it is ordered to have as soon as one that has it, or
storage, gives it; how long that takes is not simulated.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

from p2pcache.core import bitset
from p2pcache.core.format.chunking import nominal_chunk_bytes
from p2pcache.core.pool.intent import Key, PoolNode, Wish
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.selector import Traits
from p2pcache.core.pool.settings import GRACE_S
from p2pcache.ids import NodeId, RunSet


@dataclass(frozen=True)
class Life:
    """What is simulated."""

    nodes: int = 1000
    models: int = 200
    copies: int = 2
    racks: int = 40
    lost: float = 0.05  # share of the nodes that are lost at once
    usual_bytes: float = 24.5e9  # the median of the models' sizes
    seed: int = 1


class Moves(NamedTuple):
    """What one event moved. In bytes."""

    peers: int  # from nodes that had it
    storage: int  # no node had it any more
    short: int  # what lacks copies afterwards


@dataclass
class Pool:
    """Nodes, models, and which node has which runs."""

    life: Life
    keeper: Keeper = field(init=False)
    nodes: dict[NodeId, PoolNode] = field(default_factory=dict)
    haves: dict[Key, dict[NodeId, RunSet]] = field(default_factory=dict)
    sizes: dict[Key, list[int]] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.keeper = Keeper(0.0)
        self.dice, middle = random.Random(self.life.seed), log(self.life.usual_bytes)
        for number in range(self.life.models):
            size = int(self.dice.lognormvariate(middle, 0.9))
            each = nominal_chunk_bytes(size)
            runs = [each] * (size // each) + [size % each or each]
            self.sizes[("sim", f"m{number}", "latest")] = runs
        self.kept_bytes = self.life.copies * sum(map(sum, self.sizes.values()))
        for number in range(self.life.nodes):
            self.add_node(number)

    def add_node(self, number: int) -> NodeId:
        """A node comes, with room for three times its share."""
        node = self.dice.getrandbits(63)
        traits = Traits(f"n{number}", "eu", f"r{number % self.life.racks}")
        self.nodes[node] = PoolNode(traits, 3 * self.kept_bytes // self.life.nodes)
        return node

    def lose(self, node: NodeId) -> int:
        """A node is gone, with all that it had; returns these bytes."""
        del self.nodes[node]
        gone = 0
        for key, haves in self.haves.items():
            sizes = self.sizes[key]
            gone += sum(sizes[run] for run in bitset.members(haves.pop(node, 0)))
        return gone

    def orphan_bytes(self) -> int:
        """Bytes of which no node has a copy."""
        orphans = 0
        for key, haves in self.haves.items():
            there = 0
            for have in haves.values():
                there |= have
            lacking = bitset.full(len(self.sizes[key])) & ~there
            orphans += sum(self.sizes[key][run] for run in bitset.members(lacking))
        return orphans

    def settle(self) -> Moves:
        """All orders are obeyed, until nothing changes any more."""
        self.now += GRACE_S
        self.keeper.on_nodes(self.nodes, self.now - GRACE_S)
        self.keeper.on_nodes(self.nodes, self.now)
        moves = [self._settle(key) for key in self.sizes]
        return Moves(*(sum(column) for column in zip(*moves, strict=True)))

    def _settle(self, key: Key) -> Moves:
        sizes, haves = self.sizes[key], self.haves.setdefault(key, {})
        if key not in self.keeper.intents:
            digest = f"{self.dice.getrandbits(256):064x}"
            self.keeper.on_wish(key, Wish(digest, self.life.copies), sizes)
        peers = storage = 0
        while True:
            changed = self.keeper.review(key, haves, self.now)
            there = 0
            for have in haves.values():
                there |= have
            moved = 0
            for node, wanted in self._ordered(key, changed):
                new = wanted & ~haves.get(node, 0)
                moved |= new
                peers += sum(sizes[run] for run in bitset.members(new & there))
                storage += sum(sizes[run] for run in bitset.members(new & ~there))
                there |= new
                haves[node] = wanted
            if not moved:
                break
        progress = self.keeper.intents[key].progress
        return Moves(peers, storage, 0 if progress is None else progress.missing_bytes)

    def _ordered(self, key: Key, nodes: set[NodeId]) -> Iterator[tuple[NodeId, RunSet]]:
        """The runs of a model that nodes are ordered to have."""
        for node in sorted(nodes & self.nodes.keys()):
            runs = 0
            for first, end in self.keeper.intents[key].ranges(node):
                runs |= bitset.full(end - first) << first
            yield node, runs


class Figures(NamedTuple):
    """How a life went."""

    spread: float  # the fullest node over the mean
    lost_bytes: int
    orphans: int  # bytes of which no copy was left
    moved: float  # beside what was lost
    short: int  # bytes that lack copies after the repair
    from_storage: int
    joined: float  # what a join moved, beside the fair share of the node that came


def live(life: Life) -> Figures:
    """Keep all models, lose nodes at once, repair, and let one node join."""
    pool = Pool(life)
    pool.settle()
    full = [pool.keeper.kept_bytes(node) for node in pool.nodes]
    gone = pool.dice.sample(sorted(pool.nodes), int(life.lost * life.nodes))
    lost = sum(pool.lose(node) for node in gone)
    orphans = pool.orphan_bytes()
    repair = pool.settle()
    pool.add_node(life.nodes)
    join = pool.settle()
    return Figures(
        spread=max(full) * len(full) / sum(full), lost_bytes=lost, orphans=orphans,
        moved=(repair.peers + repair.storage) / max(1, lost), short=repair.short,
        from_storage=repair.storage,
        joined=(join.peers + join.storage) * len(pool.nodes) / pool.kept_bytes,
    )  # fmt: skip


def lines(life: Life) -> Iterator[str]:
    """One life as a table."""
    found = live(life)
    yield f"{life.nodes} nodes, {life.models} models, {life.copies} copies, {life.lost:.0%} lost"
    yield f"fullest node / mean          {found.spread:8.3f}"
    yield f"lost                         {found.lost_bytes / 1e12:8.3f} TB"
    yield f"of these without a survivor  {found.orphans / 1e12:8.3f} TB"
    yield f"read from storage            {found.from_storage / 1e12:8.3f} TB"
    yield f"moved / lost                 {found.moved:8.3f}"
    yield f"lacks copies afterwards      {found.short / 1e12:8.3f} TB"
    yield f"join: moved / fair share     {found.joined:8.3f}"
