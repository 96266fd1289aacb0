"""Whether a node reaches any other one of its swarm: neighbours come and go, dials fail. Pure."""

import math
from bisect import bisect
from collections.abc import Iterable, Sequence

from p2pcache.core.settings import SwarmSettings

ENOUGH = 24  # members that we dial in vain: as many as a tracker names as neighbours
AT_ONCE = 8  # dials that are begun at one look: this must not look like a port scan
DIAL_S = 15.0  # after which a dial that hasn't ended comes to nothing: handshakes have ten seconds


class Isolation:
    """Since when there is no neighbour, and who was dialled in vain since then."""

    def __init__(self, node: int, settings: SwarmSettings, now: float) -> None:
        """There is none yet."""
        self._node = node
        self._settings = settings
        self._alone_since = now  # inf: there is a neighbour
        self._dialled: dict[int, float] = {}  # by us, to find out, and when
        self._failed: set[int] = set()

    def met(self) -> None:
        """There is a neighbour."""
        self._restart(math.inf)

    def lost(self, now: float) -> None:
        """The last neighbour is gone, or only now it matters that there is none."""
        self._restart(now)

    def no_good(self, nodes: Iterable[int]) -> None:
        """Members that couldn't be reached, or that lied."""
        if self._alone_since < math.inf:
            self._failed.update(nodes)

    def whom_to_dial(self, members: Sequence[int], now: float) -> list[int]:
        """Whom to dial before it is believed: perhaps a tracker named only those that nobody reaches.

        Args:
            members: of the swarm, ascending.
            now: seconds.
        """
        untried = self._untried(members)[:AT_ONCE]
        self._dialled.update(dict.fromkeys(untried, now))
        return untried

    def found(self, members: Sequence[int], now: float) -> bool:
        """Whether others were dialled in vain for so long that nobody will bring anything.

        Args:
            members: of the swarm, ascending.
            now: seconds.
        """
        if now < self._alone_since + self._settings.owner_patience_s or not self._failed:
            return False
        ended = (node in self._failed or now >= at + DIAL_S for node, at in self._dialled.items())
        return all(ended) and not self._untried(members)

    def _untried(self, members: Sequence[int]) -> list[int]:
        known = {*members}
        self._dialled = {node: at for node, at in self._dialled.items() if node in known}
        if self._alone_since == math.inf or len(self._dialled) >= ENOUGH:
            return []
        first = bisect(members, self._node)  # or all who are alone would dial the same ones
        tried = {self._node, *self._dialled, *self._failed}
        return [one for one in (*members[first:], *members[:first]) if one not in tried]

    def _restart(self, alone_since: float) -> None:
        self._alone_since = alone_since
        self._dialled.clear()
        self._failed.clear()
