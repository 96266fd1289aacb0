"""The times in which copies of what is kept were missing, and what was fetched until they were there. For people."""

from collections import deque
from collections.abc import Iterable

import msgspec

from p2pcache.core.format.keep_record import Repair
from p2pcache.core.pool.settings import LATE_S, MAX_REPAIRS
from p2pcache.core.protocol.keep_orders import Kept
from p2pcache.ids import NodeId


class Repairs:
    """The repairs of one intent, the first spread included.

    Invariants: only the last one goes on; `_fetched` has what each node said last.
    """

    def __init__(self, done: Iterable[Repair] = ()) -> None:
        """None goes on. `done`: those that ended before, the oldest first."""
        self._done: deque[Repair] = deque(done, maxlen=MAX_REPAIRS)
        self._now: Repair | None = None
        self._fetched: dict[NodeId, int] = {}

    @property
    def rows(self) -> list[Repair]:
        """The newest first."""
        return [*([self._now] if self._now else []), *reversed(self._done)]

    @property
    def ended(self) -> tuple[Repair, ...]:
        """Those that ended, the oldest first."""
        return tuple(self._done)

    def on_progress(self, missing_bytes: int, now: float) -> Repair | None:
        """So much is missing; returns the repair that ended with that."""
        if missing_bytes:
            self._now = self._now or Repair(now)
            return None
        ended, self._now = self._now, None
        if ended is None:
            return None
        self._done.append(msgspec.structs.replace(ended, ended=now))
        return self._done[-1]

    def on_kept(self, node: NodeId, kept: Kept, now: float) -> None:
        """A node says what it has fetched of the model for its orders, since it started; first when it gets them."""
        before = self._fetched.get(node, kept.fetched_bytes)
        moved = kept.fetched_bytes - (before if kept.fetched_bytes >= before else 0)
        self._fetched[node] = kept.fetched_bytes
        if not moved:
            return
        if self._now is not None:
            self._now = _with_more(self._now, moved)
        elif self._done and now <= self._done[-1].ended + LATE_S:  # its copies were seen before
            self._done.append(_with_more(self._done.pop(), moved))


def _with_more(repair: Repair, moved_bytes: int) -> Repair:
    return msgspec.structs.replace(repair, moved_bytes=repair.moved_bytes + moved_bytes)


def merged(before: Iterable[Repair], after: Iterable[Repair]) -> tuple[Repair, ...]:
    """What two trackers know of ended repairs, the oldest first; `after` knows more of those in both."""
    known = {repair.began: repair for repair in (*before, *after)}
    return tuple(known[began] for began in sorted(known))[-MAX_REPAIRS:]
