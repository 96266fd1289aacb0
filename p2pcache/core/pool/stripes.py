"""How a model is cut into stripes: the parts that are placed in the pool, each as a whole.

The cut follows from the manifest alone. If it followed from the number of nodes, a join could move everything.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence

from p2pcache.core import bitset
from p2pcache.core.pool.settings import LEAST_STRIPES, STRIPE_BYTES
from p2pcache.ids import NodeId, RunIndex, RunSet


class Stripes:
    """The stripes of one model. Its attributes are never changed."""

    def __init__(self, run_bytes: Sequence[int], *, whole: bool = False) -> None:
        """Cut a model.

        Args:
            run_bytes: of each run.
            whole: one stripe is all of it.
        """
        self.run_count = len(run_bytes)
        self.runs_each = self.run_count if whole else _runs_each(run_bytes)
        self.whole = whole
        starts = range(0, self.run_count, self.runs_each) if self.run_count else range(0)
        self.sizes: array[int] = array(
            "Q", (sum(run_bytes[i : i + self.runs_each]) for i in starts)
        )
        self.total_bytes = sum(self.sizes)
        self.largest = max(self.sizes, default=0)

    def __len__(self) -> int:
        return len(self.sizes)

    def had(self, have: RunSet) -> RunSet:
        """The stripes of which a node has every run, as bits; `have`: its runs."""
        each = self.runs_each
        if each <= 1 or not have:
            return have
        if self.whole:
            return int(have == bitset.full(self.run_count))
        beyond = len(self) * each - self.run_count  # the last stripe may be short
        have |= bitset.full(beyond) << self.run_count
        step = 1
        while step < each:  # bit i: runs i to i + 2 * step - 1 are all here
            have &= have >> step
            step *= 2
        return bitset.of(i // each for i in bitset.members(have) if i % each == 0)

    def had_by(self, haves: Mapping[NodeId, RunSet]) -> dict[NodeId, RunSet]:
        """The stripes of which each node has every run, as bits; `haves`: its runs."""
        return {node: self.had(have) for node, have in haves.items()}

    def ranges(self, stripes: Sequence[int]) -> Iterator[tuple[RunIndex, RunIndex]]:
        """The runs of some stripes, as (first, the one after the last), the fewest that do.

        Args:
            stripes: ascending.
        """
        first = last = -1
        for stripe in stripes:
            if stripe != last:
                if last >= 0:
                    yield first * self.runs_each, last * self.runs_each
                first = stripe
            last = stripe + 1
        if last >= 0:
            yield first * self.runs_each, min(last * self.runs_each, self.run_count)


def _runs_each(run_bytes: Sequence[int]) -> int:
    """Runs of a stripe: the most that leave it small enough, and the stripes many enough; a power of two."""
    each, largest = 1, max(run_bytes, default=0)
    while 2 * each * largest <= STRIPE_BYTES and len(run_bytes) >= 2 * each * LEAST_STRIPES:
        each *= 2
    return each
