"""Slow receivers: they take no slot from the others."""

import math
from collections.abc import Iterable

from p2pcache.core.settings import USUAL_OF
from p2pcache.core.stats import RollingMedian
from p2pcache.core.upload.settings import SLOW_RECEIVER
from p2pcache.ids import NodeId


class SlowReceivers:
    """Peers to which an upload takes several times as long as usual.

    A slow receiver keeps its upload, but takes no slot from the others: it would hold one for many of their uploads.
    It is found while its upload still runs, and it is one until an upload to it ends in usual time.

    Invariant (`check`): at most `most` peers are slow.
    """

    def __init__(self, most: int) -> None:
        """Nobody is slow. `most` peers may be slow at one time: if more took long, it would be usual."""
        self._most = most
        self._durations_s = RollingMedian(USUAL_OF)
        self._started: dict[NodeId, float] = {}  # receiver -> when its upload was seen first
        self.peers: set[NodeId] = set()

    def mark(self, receivers: Iterable[NodeId], now: float) -> None:
        """Find receivers, peers with an active upload, whose upload has taken far too long already."""
        limit_s = self._limit_s
        for peer in receivers:
            if now - self._started.setdefault(peer, now) > limit_s:
                self._add(peer)

    def on_upload_ended(self, peer: NodeId, took_s: float | None) -> None:
        """An upload to this peer is over; it took so many seconds if it was sent to its end, else it says nothing."""
        self._started.pop(peer, None)
        if took_s is not None:
            self._durations_s.add(took_s)
            self.peers.discard(peer)
            if took_s > self._limit_s:
                self._add(peer)

    def on_peer_gone(self, peer: NodeId) -> None:
        """A peer is gone. The upload to it that hasn't ended makes no peer slow."""
        self.peers.discard(peer)
        if peer in self._started:
            self._started[peer] = math.inf

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
