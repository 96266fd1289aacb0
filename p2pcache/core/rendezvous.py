"""Rendezvous hashing: the order of nodes for a key, which all nodes compute alike without a message.

Highest random weight by Thaler and Ravishankar (1998), here with the lowest weight first. A node that leaves moves
only its own keys. Weights are mixed with the finaliser of splitmix64 (Steele, Lea and Flood 2014): integers only, so
they are the same in every process.
"""

from collections.abc import Iterable
from math import log

from p2pcache.ids import NodeId

_MASK = (1 << 64) - 1
_SPAN = _MASK + 2  # so that the logarithm is of a number between 0 and 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of splitmix64: spreads consecutive keys
_MIX_1 = 0xBF58476D1CE4E5B9  # the two multipliers of its finaliser
_MIX_2 = 0x94D049BB133111EB


def weight(node: NodeId, key: int) -> int:
    """64 mixed bits of a node and a key (a run index or a bridge slot); the node with the least comes first."""
    x = (node ^ (key + 1) * _GOLDEN) & _MASK
    x = (x ^ x >> 30) * _MIX_1 & _MASK
    x = (x ^ x >> 27) * _MIX_2 & _MASK
    return x ^ x >> 31


def order(key: int, nodes: Iterable[NodeId]) -> list[NodeId]:
    """The nodes in their order for a key, in whatever order they are given."""
    return sorted(nodes, key=lambda node: (weight(node, key), node))


def owner(key: int, nodes: Iterable[NodeId]) -> NodeId | None:
    """The first of `order`, in O(nodes); None of no nodes."""
    return min(nodes, key=lambda node: (weight(node, key), node), default=None)


def score(node: NodeId, key: int, share: float) -> float:
    """The node's number for a key where nodes are to get unequal shares; the node with the least comes first.

    The logarithmic method (Schindelhauer and Schomaker 2005): a node comes first with a probability in proportion to
    its share, and a share that changes moves only what it must.

    Args:
        node: its id.
        key: what is placed.
        share: above 0, in any unit.
    """
    return -log((weight(node, key) + 1) / _SPAN) / share
