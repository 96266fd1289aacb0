"""Whether a node is isolated: it has no neighbour, and its dials to other members fail.

A tracker may have named only members that nobody can dial, so the node first dials other ones: all together, since
packets to members that are gone, or behind a firewall, are swallowed.
"""

import math
from bisect import bisect
from collections.abc import Sequence

from p2pcache.core.origin.settings import MAX_DIALS
from p2pcache.core.swarm.commands import Dial
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId


class Isolation:
    """Since when a node has no neighbour, and which members it has dialled in vain since then."""

    def __init__(self, context: SwarmContext, now: float) -> None:
        """A node without a neighbour."""
        self._node = context.node
        self._book = context.book
        self._settings = context.settings
        self._alone_since = now  # inf: there is a neighbour
        self._dialled: set[NodeId] = set()  # members that we dialled to find out
        self._failed: set[NodeId] = set()  # members that can't be dialled, or sent wrong bytes

    def restart(self, alone_since: float) -> None:
        """Since then there is no neighbour, or it matters from then on that there is none; inf: there is one."""
        self._alone_since = alone_since
        self._dialled.clear()
        self._failed.clear()

    def on_dial_failed(self, node: NodeId) -> None:
        """A member couldn't be reached."""
        if self._alone_since < math.inf:
            self._failed.add(node)

    def probe(self, members: Sequence[NodeId], now: float) -> list[Dial] | None:
        """The next dials; None: the node is isolated. It was alone for long enough, and every dial failed.

        `members` are the swarm's, ascending.
        """
        if self._alone_since == math.inf:
            return []
        self._failed |= self._book.banned.keys()
        self._dialled &= {*members}
        # Each node begins behind its own id, or all lonely nodes would dial the same members.
        first = bisect(members, self._node)
        tried = {self._node, *self._dialled, *self._failed}
        untried = [one for one in (*members[first:], *members[:first]) if one not in tried]
        fresh = untried[: MAX_DIALS - len(self._dialled)]
        under_way = self._dialled & self._book.dialling
        long = now >= self._alone_since + self._settings.owner_patience_s
        if long and self._failed and not fresh and not under_way:
            return None
        self._dialled.update(fresh)
        return self._book.dials(fresh)
