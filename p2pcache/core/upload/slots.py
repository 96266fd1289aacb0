"""How many uploads flow at once: slots follow the swarm's pace, and slow receivers take none."""

from collections.abc import Iterable

from p2pcache.core.settings import UploadSettings
from p2pcache.core.stats import RollingMedian
from p2pcache.core.upload.settings import DURATIONS, FEWEST_SLOTS, HURRY, MOST_CUT, SLOW_RECEIVER
from p2pcache.ids import NodeId


class PacedSlots:
    """The number of open slots.

    Among equals an upload takes as long as a neighbour needs to receive `slots` runs. Where uploads take several times
    as long, this node's uplink is slow beside the swarm. Then slots close: few peers that have a rare run soon
    spread it, while many slow uploads of it keep everybody waiting. In a swarm where everything is slow the pace is
    slow as well, and nothing closes.
    """

    def __init__(self, settings: UploadSettings) -> None:
        """Two slots are open until uploads show how quick the uplink is.

        Args:
            settings: `slots` is the most; `pace` says how slow uploads may be beside the swarm.
        """
        self._settings = settings
        self._limit = settings.slots
        self._paced = FEWEST_SLOTS

    def limit(self, slots: int) -> None:
        """Open at most this many from now on, one at least and the settings' number at most."""
        self._limit = max(1, min(slots, self._settings.slots))

    @property
    def limited(self) -> bool:
        """Whether this node is to serve less than its settings allow."""
        return self._limit < self._settings.slots

    @property
    def open_count(self) -> int:
        """Uploads that may flow at once, beside those to slow receivers."""
        return min(self._limit, int(self._paced))

    def on_upload_done(self, took_s: float, pace_s: float) -> None:
        """An upload was sent to its end: open or close slots.

        Args:
            took_s: seconds from its start.
            pace_s: seconds from one run to the next at a neighbour; 0: not known.
        """
        settings = self._settings
        usual_s = settings.pace * settings.slots * pace_s
        if 0 < usual_s < took_s:
            slower = self._paced * max(MOST_CUT, usual_s / took_s)
            self._paced = max(FEWEST_SLOTS, min(self._paced - 1, slower))
        elif not usual_s or took_s < HURRY * usual_s:
            self._paced = min(settings.slots, self._paced + 1)


class SlowReceivers:
    """Peers to which an upload takes several times as long as usual.

    A slow receiver keeps its upload, but takes no slot from the others: it would hold one for many of their uploads.
    It is found while its upload still runs, and it is one until an upload to it ends in usual time.

    Invariant (`check`): at most `most` peers are slow.
    """

    def __init__(self, most: int) -> None:
        """Nobody is slow.

        Args:
            most: slow receivers at one time; beyond that, being slow is usual.
        """
        self._most = most
        self._durations_s = RollingMedian(DURATIONS)
        self._started: dict[NodeId, float] = {}  # receiver -> when its upload was seen first
        self.peers: set[NodeId] = set()

    def mark(self, receivers: Iterable[NodeId], now: float) -> None:
        """Find receivers whose upload has taken far too long already.

        Args:
            receivers: peers with an active upload.
            now: seconds.
        """
        limit_s = self._limit_s
        for peer in receivers:
            if now - self._started.setdefault(peer, now) > limit_s:
                self._add(peer)

    def on_upload_ended(self, peer: NodeId, took_s: float | None) -> None:
        """An upload is over.

        Args:
            peer: its receiver.
            took_s: seconds, if it was sent to its end; None: it says nothing.
        """
        self._started.pop(peer, None)
        if took_s is not None:
            self._durations_s.add(took_s)
            self.peers.discard(peer)
            if took_s > self._limit_s:
                self._add(peer)

    def on_peer_gone(self, peer: NodeId) -> None:
        """A peer is gone."""
        self.peers.discard(peer)

    def check(self, receivers: Iterable[NodeId]) -> None:
        """Assert the invariant; `receivers` are the peers with an active upload."""
        assert len(self.peers) <= self._most
        assert self._started.keys() <= set(receivers)

    @property
    def _limit_s(self) -> float:
        """Seconds above which an upload is slow; inf while too few are known."""
        return SLOW_RECEIVER.threshold(self._durations_s.median, len(self._durations_s))

    def _add(self, peer: NodeId) -> None:
        if SLOW_RECEIVER.allows_one_more(len(self.peers), self._most):
            self.peers.add(peer)
