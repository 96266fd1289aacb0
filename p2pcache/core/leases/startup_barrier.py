"""When a tracker that doesn't know the past may begin to grant leases for a model.

A tracker that starts in the middle of a storm knows nothing of what was read. Members that announce themselves name the
members that they last knew in the swarm. Until all of these have announced themselves too, or one lease TTL has passed,
nothing is granted. A swarm in which no member names another one is fresh. (NFSv4 calls it a grace period, RFC 8881.)
"""

from collections.abc import Collection, Iterable
from itertools import islice

from p2pcache.core.membership.settings import MOST_NODES
from p2pcache.ids import NodeId


class StartupBarrier:
    """The nodes that one swarm waits for, and until when.

    Invariants: once `until` has passed, no node is awaited again; no node is awaited that has been here before (a
    member that came and went is no sign of a past that this tracker missed).
    """

    def __init__(self, ttl_s: float, now: float, remembered: Iterable[NodeId] = ()) -> None:
        """A swarm was created. After a lease's life reads that no member here knows of are over.

        `remembered` are members as of the tracker's own notes from before it restarted.
        """
        self.until = now + ttl_s
        self.awaited = set(remembered)
        self._seen: set[NodeId] = set()

    def expect(self, known: Iterable[NodeId], present: Collection[NodeId], now: float) -> None:
        """A member that announced itself names those that it last knew; `present`: the cluster's members."""
        if now < self.until:
            named = (n for n in known if n not in present and n not in self._seen)
            self.awaited.update(islice(named, max(0, MOST_NODES - len(self.awaited))))

    def on_arrival(self, node: NodeId, now: float) -> None:
        """A node announced itself, with this model or without it, or spoke of the model for the first time."""
        if now < self.until:
            self._seen.add(node)
        self.awaited.discard(node)

    def holds(self, now: float) -> bool:
        """Whether grants must wait."""
        if now >= self.until:
            self.awaited.clear()
            self._seen.clear()
        return bool(self.awaited)
