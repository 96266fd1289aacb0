"""Which node of a site brings a model in from another cluster's site: one at a time, so that it comes once."""

from collections import OrderedDict

from p2pcache.core.coordinator.settings import CROSSING_S
from p2pcache.core.membership.settings import MOST_NODES
from p2pcache.ids import NodeId


class Crossings:
    """The turns of nodes. They are soft state: a tracker that restarts learns them from who asks next."""

    def __init__(self) -> None:
        # By site and digest, with their ends: all last equally long, so the first to end is in front.
        self._turns: OrderedDict[tuple[str, str], tuple[NodeId, float]] = OrderedDict()

    def take_turn(self, site: str, digest: str, node: NodeId, now: float) -> bool:
        """Whether a node of a site may bring a model in now; asked again in time, it goes on."""
        while self._turns and next(iter(self._turns.values()))[1] <= now:
            self._turns.popitem(last=False)
        full = len(self._turns) >= MOST_NODES
        if self._turns.get((site, digest), (None if full else node,))[0] != node:
            return False
        self._turns[site, digest] = node, now + CROSSING_S
        self._turns.move_to_end((site, digest))
        return True

    def end_turn(self, site: str, digest: str, node: NodeId) -> None:
        """A node brings no more of a model in."""
        if self._turns.get((site, digest), (None,))[0] == node:
            del self._turns[site, digest]
