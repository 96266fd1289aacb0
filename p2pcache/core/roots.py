"""The readers of a swarm that has trees (`core.forest`): each root reads its stripe, and hands it on. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil, inf

from p2pcache.core.forest import NOBODY, STRIPES
from p2pcache.core.lease import Lease
from p2pcache.core.readers import Readers

# Reads at once of each root, where storage is near: one flows while the next begins; with more all would end later.
OF_ROOT = 2
# From one grant to the next, of the usual time between two ends of reads (Little's law): or a root's reads would begin
# and end together, and it would have two runs to hand on, then none for as long.
PACE = 0.75
AT_ONCE_S = 0.005  # grants that are due so soon go out together: a timer is no finer
# Runs that a root's stripe is behind the others', until anybody reads what it has no room for: at the end of a storm
# the last stripe came over a root's two connections alone, with storage idle (16 real nodes: 0.80 for 0.86).
LAGS = 12
# Usual times without an end of any of a root's reads: connections that share a link starve some for a while.
DRAGS = 8.0
# Times as long as the slowest first read of the other roots that one takes to a slow node: they begin together and
# share storage's link. 1,000 nodes, a tenth of them and one of the first roots slow, 120 run times later: the last node
# had 59 runs for 47, the median one 81 for 74. With 2.0 garbage beside a first read was taken for it (decision 0041).
FIRST_DRAGS = 2.5
# So many others have ended theirs: two that take long at once, as when liars sent them garbage, aren't slow.
_OTHERS = STRIPES - 1


class Roots:
    """Who reads which run where there are trees, and at what pace. Without trees it says nothing."""

    def __init__(self, readers: Readers, leases: Mapping[int, Lease]) -> None:
        """No trees; the nodes that read, and their leases by run."""
        self.nodes: Sequence[int] = ()  # by stripe
        self._readers = readers
        self._leases = leases
        self._next_at = 0.0  # no grant before
        self._judged: set[int] = set()  # by their first reads, once
        self._waits = False  # the last look gave out nothing more for that reason only

    def planted(self, nodes: Sequence[int]) -> None:
        """These are the roots from now on; none: there are no trees.

        What a root reads it hands on at once, so few reads need to run where storage is near. Where it is far, or
        each connection slow, it is tried how many pay, as without trees.
        """
        if bool(nodes) != bool(self.nodes):
            self._readers.tried_anew(OF_ROOT * STRIPES if nodes else 0)
        self.nodes = nodes

    def reader(self, run: int, barred: AbstractSet[int], have: Mapping[int, int]) -> int:
        """Who should read this run now or, when it has room, soon; NOBODY: whoever `Readers.pick` says."""
        root = self.nodes[run % STRIPES] if self.nodes else NOBODY
        return root if root and self._readers.is_fit(root, barred, run, have) else NOBODY

    def has_room(self, root: int) -> bool:
        """Whether a fit root may read one run more."""
        share = max(OF_ROOT, ceil(self._readers.at_once / STRIPES))
        return len(self._readers.runs_of(root)) < min(share, self._readers.credit(root))

    def lags(self, run: int, granted_up_to: int) -> bool:
        """Whether this run's stripe is so far behind that its root isn't waited for."""
        return granted_up_to - run >= LAGS

    def may_grant(self, now: float) -> bool:
        """Whether it isn't too soon for one grant more."""
        self._waits = bool(self.nodes) and now < self._next_at - AT_ONCE_S
        return not self._waits

    def granted(self, now: float) -> None:
        """One was given out."""
        if self.nodes:
            pace_s = PACE * self._readers.paces.median_s / self._readers.at_once
            self._next_at = max(self._next_at, now) + pace_s

    def next_grant_at(self) -> float | None:
        """When the next one may be given out, if one waits for that."""
        return self._next_at - AT_ONCE_S if self._waits else None

    def dragging(self, now: float) -> list[int]:
        """Roots that keep their whole stripe waiting: each is named once for its first read, else while it does."""
        ended_at, first = self._readers.ended_at, self._readers.paces.first
        new = [root for root in self.nodes if root and root not in self._judged]
        found = [root for root in new if self._begins_slowly(root, now)]
        self._judged.update(found, (root for root in new if root in first))
        newest = max((ended_at(root) for root in self.nodes), default=-inf)
        still = (root for root in self.nodes if self._stands_still(root, newest))
        return list(dict.fromkeys((*found, *still)))

    def _stands_still(self, root: int, newest: float) -> bool:
        """Whether another one has ended a read then, and this one none for far too long."""
        usual_s = self._readers.paces.median_s
        since = (self._leases[run].since for run in self._readers.runs_of(root))
        began = max(min(since, default=inf), self._readers.ended_at(root))
        return usual_s > 0 and newest > began + DRAGS * usual_s

    def _begins_slowly(self, root: int, now: float) -> bool:
        """Whether its first read takes far longer than the others', which ran beside it."""
        first = self._readers.paces.first
        began = min((self._leases[run].since for run in self._readers.runs_of(root)), default=now)
        since, ended = first.get(root, (began, now))
        others = [first[one] for one in self.nodes if one != root and one in first]
        took = [until - begun for begun, until in others if until > since]
        return len(took) >= _OTHERS and ended - since > FIRST_DRAGS * max(took)
