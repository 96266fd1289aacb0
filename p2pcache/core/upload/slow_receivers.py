"""Slow receivers: they take no slot from the others."""

from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian
from p2pcache.core.upload.settings import SLOW_RECEIVER
from p2pcache.ids import NodeId


class SlowReceivers:
    """Peers to which the last upload took several times as long as usual.

    A slow receiver keeps its upload, but takes no slot from the others: it would hold one for many of their uploads.
    """

    def __init__(self, most: int) -> None:
        """Nobody is slow; `most` may be slow at one time: beyond that, being slow is usual."""
        self._most = most
        self._durations_s = RollingMedian(USUAL_OF)
        self.peers: set[NodeId] = set()

    def on_upload_sent(self, peer: NodeId, took_s: float) -> None:
        """An upload to this peer was sent to its end."""
        self._durations_s.add(took_s)
        self.peers.discard(peer)
        usual_s, samples = self._durations_s.median, len(self._durations_s)
        slow = SLOW_RECEIVER.is_slow(took_s, usual_s, samples)
        if slow and SLOW_RECEIVER.allows_one_more(len(self.peers), self._most):
            self.peers.add(peer)
