"""Who reads again what others wait for in vain, where most nodes can't be dialled. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from p2pcache.core.leases.reader_choice import Readers


def reader(
    readers: Readers, reached: AbstractSet[int], barred: AbstractSet[int], run: int, have: Mapping[int, int]
) -> int | None:  # fmt: skip
    """The least busy of those whom the tracker could dial, if these are few; None: anybody may read.

    Where it could dial hardly anybody it doesn't doubt the others: perhaps itself is out of reach. But what they read
    was perhaps of use to nobody (20 nodes, 18 behind firewalls: 25 of 38 reads), and this run was waited for already.

    Args:
        readers: who works on leases.
        reached: whom the tracker could dial, whatever it thinks of the others; also nodes that don't read.
        barred: nodes that couldn't read this run.
        run: which.
        have: what each node has (bits).
    """
    few = [node for node in readers if node in reached]
    if 2 * len(few) >= len(readers):
        return None
    fit = [
        node for node in few
        if len(readers.runs_of(node)) < readers.credit(node) and readers.is_fit(node, barred, run, have)
    ]  # fmt: skip
    return min(fit, key=lambda node: (len(readers.runs_of(node)), node), default=None)
