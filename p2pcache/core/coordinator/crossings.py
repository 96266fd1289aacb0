"""Which node of a site brings a model in from another cluster's site: one at a time, so that it comes once."""

from p2pcache.core.coordinator.settings import CROSSING_S, MAX_CROSSINGS
from p2pcache.ids import NodeId


class Crossings:
    """The turns of nodes. They are soft state: a tracker that restarts learns them from who asks next."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], tuple[NodeId, float]] = {}  # (site, digest) -> until

    def take_turn(self, site: str, digest: str, node: NodeId, now: float) -> bool:
        """Whether a node of a site may bring a model in now; asked again in time, it goes on."""
        if len(self._turns) >= MAX_CROSSINGS and (site, digest) not in self._turns:
            self._turns = {key: turn for key, turn in self._turns.items() if now < turn[1]}
        holder, until = self._turns.get((site, digest), (None, now))
        full = holder is None and len(self._turns) >= MAX_CROSSINGS
        if full or (holder != node and now < until):
            return False
        self._turns[site, digest] = node, now + CROSSING_S
        return True

    def end_turn(self, site: str, digest: str, node: NodeId) -> None:
        """A node brings no more of a model in."""
        if self._turns.get((site, digest), (None,))[0] == node:
            del self._turns[site, digest]
