"""Whether a node is isolated: it has no neighbour, and its dials to other members fail.

A node that has no neighbour doesn't believe at once that it is isolated. A tracker may have named only members that
nobody can dial, so the node first dials other members of the swarm. Without a tracker the members are those that were
known last, and may be gone for long: packets to them are swallowed, so more dials begin together.
"""

import math
from bisect import bisect
from collections.abc import Iterable, Sequence

from p2pcache.core.origin.settings import (
    DIAL_TIMEOUT_S,
    MAX_DIALS,
)
from p2pcache.core.settings import SwarmSettings
from p2pcache.ids import NodeId


class Isolation:
    """Since when a node has no neighbour, and which members it has dialled in vain since then."""

    def __init__(self, node: NodeId, settings: SwarmSettings, now: float) -> None:
        """A node without a neighbour.

        Args:
            node: this node.
            settings: how long a node waits before it believes that it is isolated.
            now: seconds.
        """
        self._node = node
        self._settings = settings
        self._alone_since = now  # inf: there is a neighbour
        self._dialled: dict[NodeId, float] = {}  # when we dialled a member to find out
        self._failed: set[NodeId] = set()

    def on_neighbour(self) -> None:
        """There is a neighbour."""
        self._restart(math.inf)

    def on_alone(self, now: float) -> None:
        """The last neighbour is gone, or from now on it matters that there is none."""
        self._restart(now)

    def on_unreachable(self, nodes: Iterable[NodeId]) -> None:
        """Dials to these members failed, or they sent wrong bytes."""
        if self._alone_since < math.inf:
            self._failed.update(nodes)

    def next_dials(self, members: Sequence[NodeId], at_once: int, now: float) -> list[NodeId]:
        """The members to dial now; they count as dialled.

        Args:
            members: of the swarm, ascending.
            at_once: how many at most.
            now: seconds.
        """
        untried = self._untried(members)[: min(at_once, MAX_DIALS - len(self._dialled))]
        self._dialled.update(dict.fromkeys(untried, now))
        return untried

    def is_certain(self, members: Sequence[NodeId], now: float) -> bool:
        """Whether the node is isolated: it was alone for long enough, and every dial failed.

        Args:
            members: of the swarm, ascending.
            now: seconds.
        """
        if now < self._alone_since + self._settings.owner_patience_s or not self._failed:
            return False
        ended = (
            node in self._failed or now >= at + DIAL_TIMEOUT_S
            for node, at in self._dialled.items()
        )  # fmt: skip
        return all(ended) and not self._untried(members)

    def _untried(self, members: Sequence[NodeId]) -> list[NodeId]:
        known = {*members}
        self._dialled = {node: at for node, at in self._dialled.items() if node in known}
        if self._alone_since == math.inf or len(self._dialled) >= MAX_DIALS:
            return []
        # Each node begins behind its own id, or all lonely nodes would dial the same members.
        first = bisect(members, self._node)
        tried = {self._node, *self._dialled, *self._failed}
        return [one for one in (*members[first:], *members[:first]) if one not in tried]

    def _restart(self, alone_since: float) -> None:
        self._alone_since = alone_since
        self._dialled.clear()
        self._failed.clear()
