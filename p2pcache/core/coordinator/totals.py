"""What a tracker did since it started, over all swarms."""

from collections import Counter
from dataclasses import dataclass, field

from p2pcache.core.coordinator.swarm_state import SwarmTracker


@dataclass(slots=True)
class Totals:
    """What a tracker did since it started."""

    granted: int = 0  # leases
    rescues: int = 0  # runs granted again that a live node had
    polls: int = 0
    blames: int = 0
    moved_peers: int = 0  # bytes that members took from each other, as they tell
    moved_origin: int = 0  # and from the origin
    lease_ends: Counter[str] = field(default_factory=Counter)  # by why

    def include(self, swarm: SwarmTracker) -> None:
        """Count a swarm in."""
        self.granted += swarm.book.granted
        self.rescues += swarm.book.regranted
        self.polls += swarm.lost_runs.polls
        self.blames += swarm.blames
        self.moved_peers += swarm.ledger.moved_peers
        self.moved_origin += swarm.ledger.moved_origin
        self.lease_ends.update(swarm.book.ends)
