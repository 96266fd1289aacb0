"""How long each node takes for its reads of the origin, and who is far above the others: it rests. Pure."""

from collections import deque
from collections.abc import Set as AbstractSet
from statistics import fmean

MEDIAN_OF = 64  # recent lease times that the median is taken of
MIN_SAMPLES = 8  # lease times known before anybody is called slow
FADE = 0.8  # of a node's earlier lease times: the last five count
PRIOR = (
    2.0  # reads at the usual pace that every node gets credit for: one unlucky read isn't slowness
)
# Of the readers: slow is an exception. Without a limit chance made six of eight equal nodes "slow" in a
# measured storm, the other two read everything, and eta was 0.72.
MOST_SLOW = 0.25
LEAST_USUAL_S = 0.25  # differences below this are noise of scheduling, not slowness
PAROLE = 8.0  # a slow node is tried again after so many usual lease times, doubled each time
LAST_DOUBLING = 5  # of it


class SlowReaders:
    """Lease times and verdicts.

    Invariants: `usual_s` follows from the recent times; who is in `slow` has a verdict, and not the other way round:
    a rest ends (its owner sees to that), a verdict stands until a read is as quick as the others'.
    """

    def __init__(self, slow_ratio: float) -> None:
        """Nothing is known; slow is who takes more than so many times the mean."""
        self._slow_ratio = slow_ratio
        self.usual_s = 1.0  # the median of recent times; kept: each look at each lease asks for it
        self.slow: dict[int, float] = {}  # until when
        self.verdicts: dict[int, tuple[int, float]] = {}  # slow so often in a row, when last
        self._paces: dict[int, tuple[float, float]] = {}  # reads and their seconds, faded
        self._recent: deque[float] = deque(maxlen=MEDIAN_OF)

    @property
    def measured(self) -> bool:
        """Whether any read has ended."""
        return bool(self._recent)

    def forget(self, node: int) -> None:
        """The node is gone; its owner ends its rest."""
        self._paces.pop(node, None)
        self.verdicts.pop(node, None)

    def read(self, node: int, since: float, now: float, present: AbstractSet[int]) -> None:
        """The node has read what it began to read at `since`; `present`: who works on leases."""
        took_s = now - since
        self._recent.append(took_s)
        self.usual_s = max(LEAST_USUAL_S, sorted(self._recent)[len(self._recent) // 2])
        count, total_s = self._add(node, took_s)
        # A mean is compared with the mean: where some reads take much longer by chance, whoever reads, anybody's mean
        # is above the median, and one node after the other was left out (decision 0026).
        mean_s = max(LEAST_USUAL_S, fmean(self._recent))
        pace = (total_s + PRIOR * mean_s) / (count + PRIOR)
        enough = len(self._recent) >= MIN_SAMPLES and node in present
        others = len(self.slow.keys() - {node})
        rare = others < max(1, int(MOST_SLOW * len(present)))
        if enough and rare and pace > self._slow_ratio * mean_s:
            self._convict(node, since, now)
        else:
            self.slow.pop(node, None)
            self.verdicts.pop(node, None)

    def dragged(self, node: int, since: float, now: float, present: AbstractSet[int]) -> None:
        """What the node began to read at `since` was taken from it: it is slow."""
        self._add(node, now - since)
        if node in present:
            self._convict(node, since, now)

    def _add(self, node: int, took_s: float) -> tuple[float, float]:
        count, total_s = self._paces.get(node, (0.0, 0.0))
        pace = self._paces[node] = FADE * count + 1, FADE * total_s + took_s
        return pace

    def _convict(self, node: int, since: float, now: float) -> None:
        verdicts, at = self.verdicts.get(node, (0, since))
        if since < at:
            return  # of the moment that it rests for: a storage that froze delays all reads at once
        verdicts += 1
        self.verdicts[node] = verdicts, now
        rest_s = PAROLE * self.usual_s * 2.0 ** min(verdicts - 1, LAST_DOUBLING)
        self.slow[node] = now + rest_s
