"""Who reads a run from the origin when there is no tracker: rendezvous hashing, pure.

Every node that holds the same member list computes the same owner without a message, and one
that leaves moves only its own runs. Integer mixing only: the same in every process.
"""

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads consecutive runs
_MIX_1 = 0xBF58476D1CE4E5B9  # the two multipliers of the splitmix64 finaliser
_MIX_2 = 0x94D049BB133111EB


def weight(node: int, run: int) -> int:
    """How much `node` is drawn to `run`: 64 mixed bits."""
    x = (node ^ (run + 1) * _GOLDEN) & _MASK
    x = (x ^ x >> 30) * _MIX_1 & _MASK
    x = (x ^ x >> 27) * _MIX_2 & _MASK
    return x ^ x >> 31


def order(run: int, nodes: Iterable[int]) -> list[int]:
    """The nodes in the order in which they may read `run`, whatever order they come in."""
    return sorted(nodes, key=lambda node: (weight(node, run), node))


def owner(run: int, nodes: Iterable[int]) -> int | None:
    """The first of `order`, in O(nodes); None of no nodes."""
    return min(nodes, key=lambda node: (weight(node, run), node), default=None)
