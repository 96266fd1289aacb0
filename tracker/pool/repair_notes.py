"""The repairs of all that is kept: heard from the keeper and the nodes, and written beside the wishes when they end."""

import logging
from collections.abc import Iterable

from p2pcache.core.format.keep_record import Repair
from p2pcache.core.pool.intent import Key
from p2pcache.core.pool.repairs import Repairs
from p2pcache.core.protocol.keep_orders import Kept
from p2pcache.errors import P2PCacheError
from p2pcache.ids import NodeId, Ref
from p2pcache.tracker.pool.wishes import Wishes

_log = logging.getLogger(__name__)

NOTE_S = 2.0  # from the news of what has ended until it is written: most nodes say by then what they fetched
AGAIN_S = 30.0  # after a write that failed


class RepairNotes:
    """What people are told of repairs, over takeovers and restarts of the tracker."""

    def __init__(self, wishes: Wishes) -> None:
        """Nothing is heard yet. `wishes`: have those that ended before."""
        self._wishes = wishes
        self._repairs: dict[Key, Repairs] = {}
        self._unwritten: dict[Key, float] = {}  # from when on what has ended may be written

    def rows(self, key: Key) -> list[Repair]:
        """The repairs of one intent, the newest first; none before its progress is known."""
        return self._repairs[key].rows if key in self._repairs else []

    def on_progress(self, key: Key, missing_bytes: int, wall: float, now: float) -> None:
        """So much is missing of what an intent wants.

        Args:
            key: of the intent.
            missing_bytes: of all its copies.
            wall: unix seconds.
            now: seconds, on the clock of `write_one`.
        """
        ended = self._of(key).on_progress(missing_bytes, wall)
        if ended is not None:
            took_s = ended.ended - ended.began
            _log.info("%s: all copies are there, after %.0f s", Ref(*key).short, took_s)
            self._unwritten[key] = now + NOTE_S

    def on_kept(
        self, node: NodeId, kept: Kept, keys: Iterable[Key], wall: float, now: float
    ) -> None:
        """A node says what it has fetched of the model that these intents mean; the times: as of `on_progress`."""
        for key in self._repairs.keys() & keys:
            before = self._repairs[key].ended
            self._repairs[key].on_kept(node, kept, wall)
            if self._repairs[key].ended != before:
                self._unwritten.setdefault(key, now + NOTE_S)

    def on_wish_over(self, key: Key) -> None:
        """An intent is over."""
        self._repairs.pop(key, None)
        self._unwritten.pop(key, None)

    async def write_one(self, now: float) -> None:
        """Write what has ended of one intent. Storage may be slow, and what is kept is looked at in between."""
        key = next((key for key, at in self._unwritten.items() if at <= now), None)
        if key is None:
            return
        del self._unwritten[key]
        ref = Ref(*key)
        try:
            await self._wishes.write_repairs(ref, self._repairs[key].ended)
        except P2PCacheError as error:
            _log.info("the repairs of %s aren't written yet: %s", ref.short, error)
            self._unwritten[key] = now + AGAIN_S

    def _of(self, key: Key) -> Repairs:
        if key not in self._repairs:
            record = self._wishes.keeps.get(Ref(*key))
            done = () if record is None else record.repairs
            self._repairs[key] = Repairs(done)
        return self._repairs[key]
