"""The times in which copies of what is kept were missing, and what was fetched until they were there. For people."""

from collections import deque
from typing import NamedTuple

from p2pcache.core.pool.settings import MAX_REPAIRS
from p2pcache.core.protocol.keep_orders import Kept
from p2pcache.ids import NodeId


class Repair(NamedTuple):
    """One such time."""

    began: float  # seconds, on the caller's clock
    ended: float  # 0: it goes on
    moved_bytes: int  # that nodes fetched for it, from each other or from storage


class Repairs:
    """The repairs of one intent, the first spread included.

    Invariants: only the last one goes on; `_fetched` has what each node said last.
    """

    def __init__(self, *, older: bool) -> None:
        """None yet. `older`: the intent was there before us, so that nodes have fetched for it already."""
        self._older = older
        self._done: deque[Repair] = deque(maxlen=MAX_REPAIRS)
        self._now: Repair | None = None
        self._fetched: dict[NodeId, int] = {}

    @property
    def rows(self) -> list[Repair]:
        """The newest first."""
        return [*([self._now] if self._now else []), *reversed(self._done)]

    def on_progress(self, missing_bytes: int, now: float) -> Repair | None:
        """So much is missing; returns the repair that ended with that."""
        if missing_bytes:
            self._now = self._now or Repair(now, 0.0, 0)
            return None
        ended, self._now = self._now, None
        if ended is None:
            return None
        self._done.append(ended._replace(ended=now))
        return self._done[-1]

    def on_kept(self, node: NodeId, kept: Kept) -> None:
        """A node says what it has fetched of the model for its orders, since it started."""
        first = kept.fetched_bytes if self._older else 0
        before = self._fetched.get(node, first)
        moved = kept.fetched_bytes - (before if kept.fetched_bytes >= before else 0)
        self._fetched[node] = kept.fetched_bytes
        if not moved:
            return
        if self._now is not None:
            self._now = self._now._replace(moved_bytes=self._now.moved_bytes + moved)
        elif self._done:  # the copies were seen before this was heard
            last = self._done.pop()
            self._done.append(last._replace(moved_bytes=last.moved_bytes + moved))
