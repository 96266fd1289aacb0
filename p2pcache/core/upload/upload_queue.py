"""Which upload a node starts next, and when it answers BUSY instead. The agent and the simulator run this same code."""

import math
from collections import deque
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.settings import UploadSettings
from p2pcache.core.upload.priority import Priority
from p2pcache.core.upload.settings import CALLED, FIRST_SLOTS, FULL, SAY_EVERY_S
from p2pcache.core.upload.slow_receivers import SlowReceivers
from p2pcache.core.upload.spare import SpareUplink
from p2pcache.errors import LocalProtocolError
from p2pcache.ids import NodeId

Item = TypeVar("Item", bound=Hashable)


class UploadQueue(Generic[Item]):
    """Admission and order of uploads on one node.

    Admission:

    - A peer takes one place of as many as there are slots: two at first, and one more with each upload that was sent. A
      peer that finds none is told BUSY at once and can ask somebody else; a queue would hold its request here.
    - A peer that is served or waits may have its next requests wait, so that its slot doesn't stand empty for a round
      trip. So it would keep its slot for ever: after a **quantum** of uploads beside peers that were turned away its
      next request is told BUSY, too, and it stands behind them in line.
    - A request takes no place from those of an earlier priority: they don't see it. The next request of a warm or
      background pull doesn't wait. The background goes beside pulls only where there is room (`SpareUplink`).
    - A slow receiver takes no place from the others (`SlowReceivers`).

    Order: by priority, and among equals the peers go round. A peer has one active upload at most, since its uploads
    share a connection.

    Recall: a peer that was told BUSY is told once when there is room, the oldest first, and twice as many peers as
    there are free slots. If it is told BUSY again, it hears that an upload was sent, so that it doesn't think that this
    node hangs.

    Invariants (`check`): at most twice `slots` uploads are active; a peer's requests wait in the order of their
    priorities.
    """

    def __init__(self, settings: UploadSettings, on: Mechanisms = ALL_ON) -> None:
        """Start empty and open; `on`: the rules in force."""
        self._on = on
        self._settings = settings
        self._limit = settings.slots  # of the slots
        # Uploads in a row after which a peer makes room: as many as there are slots usually. With few slots a quantum
        # as short would be mostly calls and new requests.
        self._quantum = UploadSettings().slots
        self._opened = FIRST_SLOTS  # as many as uploads have opened
        self._active: dict[NodeId, tuple[Priority, Item]] = {}  # receiver -> its upload
        # Peer -> its requests. The peer that was served last is at the end.
        self._waiting: dict[NodeId, deque[tuple[Priority, Item]]] = {}
        self._slow = SlowReceivers(settings.slots)
        self._spare = SpareUplink()
        # Peer -> its last refused request since it was admitted or called, the first peer first, and whether it was
        # turned away again since it heard of this node.
        self._refused: dict[NodeId, tuple[Item, bool]] = {}
        # Peer -> its uploads since it was turned away last, while anybody stood in line.
        self._turns: dict[NodeId, int] = {}
        self._open = True
        self._sent = False  # an upload, since `recall`
        self._left: NodeId | None = None  # whose upload ended last
        self._said_at = -math.inf  # when peers last heard that others are served

    @property
    def load(self) -> int:
        """Peers that are served or wait."""
        return len(self._active.keys() | self._waiting.keys())

    @property
    def told_load(self) -> int:
        """The load as every have batch tells it to the neighbours: below `FULL` while a slot is free."""
        if self._taken(Priority.BACKGROUND) < self._slots:
            return min(self.load, FULL - 1)
        return max(self.load, FULL)

    def close(self) -> None:
        """Admit nothing more, for an orderly end; what was admitted is still served."""
        self._open = False

    def limit_slots(self, slots: int) -> None:
        """Send at most this many uploads at once from now on, one at least; active ones go on."""
        self._limit = max(1, min(slots, self._settings.slots))

    def offer(self, peer: NodeId, item: Item, priority: Priority = Priority.USUAL) -> bool:
        """Admit a peer's request, or return False: answer BUSY."""
        here = peer in self._active or peer in self._waiting
        next_waits = here and priority.is_waited_for and self._on.next_waits
        full = not next_waits and self._taken(priority) >= self._slots
        behind = priority is Priority.BACKGROUND
        full = full or (behind and not self._has_spare())
        # It had its quantum, and somebody stands in line. An urgent request makes room for nobody.
        had_quantum = self._turns.get(peer, 0) >= self._quantum and self._on.quantum
        makes_room = had_quantum and priority is Priority.USUAL and bool(self._refused)
        if not self._open or full or makes_room:
            if priority.is_waited_for:
                self._refused[peer] = item, peer in self._refused
                self._turns.pop(peer, None)
            return False
        self._refused.pop(peer, None)
        waiting = self._waiting.setdefault(peer, deque())
        later = sum(one > priority for one, _ in waiting)
        waiting.insert(len(waiting) - later, (priority, item))
        if behind:
            self._spare.passed = 0
        return True

    def start_next(self) -> tuple[NodeId, Item] | None:
        """Start the next upload, which is active until `on_upload_ended`. Call it until it returns None."""
        ready = [peer for peer in self._waiting if peer not in self._active]
        flowing = len(self._active.keys() - self._slow.peers)
        if not ready or flowing >= self._slots or len(self._active) >= 2 * self._settings.slots:
            return None
        peer = min(ready, key=lambda one: self._waiting[one][0][0])
        waiting = self._waiting.pop(peer)
        self._active[peer] = waiting.popleft()
        if waiting:
            self._waiting[peer] = waiting  # behind all others
        return peer, self._active[peer][1]

    def mark_slow_receivers(self, now: float) -> None:
        """Find receivers whose upload takes far too long; call it after `start_next`."""
        if self._on.slow_receivers:
            self._slow.mark(self._active, now)

    def recall(self, now: float) -> list[tuple[Item, int]]:
        """The refused requests whose peers are told something now, and the load that each peer is told.

        A load below `FULL` says that there is room for the peer; the oldest request is called first. `FULL` says that
        others are served; peers hear it once a second at most.
        """
        sent, self._sent = self._sent, False
        if not self._open or not self._on.recall or not self._refused:
            return []
        places = max(0, self._slots - self._taken(Priority.USUAL))
        line = list(self._refused)
        # A peer that has just made room must not race for it with the one that it made room for.
        further = (peer for peer in line[places:] if peer != self._left)
        chosen = (*line[:places], *islice(further, (CALLED - 1) * places))
        called = [self._refused.pop(peer)[0] for peer in chosen]
        told = [(item, min(self.load, FULL - 1)) for item in called]
        if sent and now >= self._said_at + SAY_EVERY_S:
            self._said_at = now
            told += [(item, FULL) for item, again in self._refused.values() if again]
            self._refused = {peer: (item, False) for peer, (item, _) in self._refused.items()}
        return told

    def on_upload_ended(
        self, peer: NodeId, item: Item, took_s: float | None = None, nbytes: int = 0
    ) -> None:
        """An active upload is over; it took so many seconds if it was sent to its end.

        Raises:
            LocalProtocolError: it wasn't active.
        """
        if peer not in self._active or self._active[peer][1] != item:
            raise LocalProtocolError("the end of an upload that is not active")
        priority, _ = self._active.pop(peer)
        self._left = peer
        if priority.is_waited_for:
            self._spare.passed += 1
        if self._refused:
            self._turns[peer] = self._turns.get(peer, 0) + 1
        if self._on.slow_receivers:
            self._slow.on_upload_ended(peer, took_s)
        if took_s is not None:
            self._spare.on_upload_done(peer, nbytes, took_s)
            self._opened += 1
            self._sent = True

    def cancel_waiting(self, peer: NodeId, item: Item) -> bool:
        """Take a waiting request out; False if it doesn't wait: it is active, or was never here."""
        waiting = self._waiting.get(peer, deque())
        found = next((one for one in waiting if one[1] == item), None)
        if found is None:
            return False
        waiting.remove(found)
        if not waiting:
            del self._waiting[peer]
        return True

    def on_peer_gone(self, peer: NodeId) -> list[Item]:
        """Remove a peer; returns its requests that waited. Its active upload still needs `on_upload_ended`."""
        self._refused.pop(peer, None)
        self._turns.pop(peer, None)
        self._slow.on_peer_gone(peer)
        return [item for _, item in self._waiting.pop(peer, ())]

    def check(self) -> None:
        """Assert the invariants."""
        self._slow.check(self._active)
        assert len(self._active) <= 2 * self._settings.slots
        assert all(self._waiting.values())
        lines = [[priority for priority, _ in line] for line in self._waiting.values()]
        assert all(line == sorted(line) for line in lines)

    # -- places -------------------------------------------------------------------------------

    @property
    def _slots(self) -> int:
        """Uploads that may flow at once, beside those to slow receivers."""
        return min(self._limit, self._opened)

    def _has_spare(self) -> bool:
        every = [(peer, one) for peer, (one, _) in self._active.items()]
        every += [(peer, one) for peer, line in self._waiting.items() for one, _ in line]
        pulling = {peer for peer, one in every if one.is_waited_for}
        return self._spare.is_there(pulling, sum(one is Priority.BACKGROUND for _, one in every))

    def _taken(self, priority: Priority) -> int:
        """Places that are taken by this priority and the ones before it, without slow receivers."""
        peers = {peer for peer, (one, _) in self._active.items() if one <= priority}
        peers.update(peer for peer, line in self._waiting.items() if line[0][0] <= priority)
        return len(peers - self._slow.peers)
