"""When a tracker that doesn't know the past may begin to grant leases for a model. Pure.

A tracker that starts in the middle of a storm knows nothing of what was read. Those who
announce tell whom they last knew in the swarm; until all of these have announced too (or one
lease TTL has passed), nothing is granted. A swarm in which nobody knows of anybody is fresh.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet


class StartupBarrier:
    """Whom one swarm waits for, and until when.

    Invariants: once `until` has passed, nobody is waited for again; nobody is waited for who has
    been here before (a member that came and went is no sign of a past that this tracker missed).
    """

    def __init__(self, ttl_s: float, now: float, remembered: Iterable[int] = ()) -> None:
        """A swarm was created.

        Args:
            ttl_s: a lease's life: reads that nobody here knows of are over by then.
            now: monotonic seconds.
            remembered: members as of the tracker's own notes from before it restarted.
        """
        self.until = now + ttl_s
        self._awaited = set(remembered)
        self._seen: set[int] = set()

    def knows(self, known: Iterable[int], present: AbstractSet[int], now: float) -> None:
        """A member that announced tells whom it last knew; `present` are the cluster's members."""
        if now < self.until:
            seen = self._seen
            self._awaited.update(n for n in known if n not in present and n not in seen)

    def arrived(self, node: int) -> None:
        """A node announced itself (with this model or without it), or spoke of the model."""
        self._seen.add(node)
        self._awaited.discard(node)

    @property
    def waiting(self) -> bool:
        """Whether somebody is awaited."""
        return bool(self._awaited)

    def holds(self, now: float) -> bool:
        """Whether grants must wait."""
        if now >= self.until:
            self._awaited.clear()
            self._seen.clear()
        return bool(self._awaited)
