"""Whether a node reaches any other one of its swarm: neighbours come and go, dials fail. Pure."""

import math
from bisect import bisect
from collections.abc import Sequence

from p2pcache.core.settings import SwarmSettings

ENOUGH = 24  # members dialled in vain: as many as a tracker names as neighbours
AT_ONCE = 8  # dials that are begun together: this must not look like a port scan


class Isolation:
    """Since when there is no neighbour, and who was dialled in vain since then."""

    def __init__(self, node: int, settings: SwarmSettings, now: float) -> None:
        """There is none yet."""
        self._node = node
        self._settings = settings
        self._alone_since = now  # inf: there is a neighbour
        self._dialled: set[int] = set()  # by us, to find out
        self._failed: set[int] = set()

    def met(self) -> None:
        """There is a neighbour."""
        self._restart(math.inf)

    def lost(self, now: float) -> None:
        """The last neighbour is gone, or only now it matters that there is none."""
        self._restart(now)

    def dial_failed(self, node: int) -> None:
        """A member couldn't be reached."""
        if self._alone_since < math.inf:
            self._failed.add(node)

    def whom_to_dial(self, members: Sequence[int]) -> list[int]:
        """Whom to dial before it is believed: perhaps a tracker named only those that nobody reaches.

        Args:
            members: of the swarm, ascending.
        """
        untried = self._untried(members)[:AT_ONCE]
        self._dialled.update(untried)
        return untried

    def found(self, members: Sequence[int], now: float) -> bool:
        """Whether others were dialled in vain for so long that nobody will bring anything.

        Args:
            members: of the swarm, ascending.
            now: seconds.
        """
        long = now >= self._alone_since + self._settings.owner_patience_s
        tried = self._failed and self._dialled <= self._failed
        return bool(long and tried and not self._untried(members))

    def _untried(self, members: Sequence[int]) -> list[int]:
        tried = self._dialled | self._failed
        if self._alone_since == math.inf or len(tried) >= ENOUGH:
            return []
        first = bisect(members, self._node)  # or all who are alone would dial the same ones
        others = (*members[first:], *members[:first])
        return [one for one in others if one != self._node and one not in tried]

    def _restart(self, alone_since: float) -> None:
        self._alone_since = alone_since
        self._dialled.clear()
        self._failed.clear()
