"""Which neighbours deliver what they claim to have.

A neighbour is **doubted** if it sends nothing for as long as the data plane waits for bytes, if it refuses every
request while nothing else comes either, or if its connections end whenever something is asked of it. The runs of
a doubted neighbour don't count: they are asked of others, are stuck if nobody else has them, and may be read from the
origin. A doubted neighbour is asked for one run now and then, and is believed again when that run comes.
"""

from p2pcache.core.download.in_flight import Requests
from p2pcache.core.download.settings import (
    BROKEN,
    LATELY,
    PATIENT,
    REVIEW_S,
    UNMEASURED,
)
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId


class Deliveries:
    """What each neighbour did with our requests. It outlives connections.

    Invariant (`check`): a neighbour counts for nothing (`Peer.delivers` is false) if and only if it is in `in_vain`.
    """

    def __init__(self, context: SwarmContext, requests: Requests, timing: RequestTiming) -> None:
        """Everybody is believed."""
        self._book = context.book
        self._settings = context.settings
        self._on = context.on
        self._requests = requests
        self._timing = timing
        self.in_vain: set[NodeId] = set()  # doubted nodes, connected or not
        # Node -> connections in a row that ended while a request waited, and the last one.
        self._broken: dict[NodeId, tuple[int, Peer]] = {}
        self._review_at = 0.0
        self.doubted: list[NodeId] = []  # since the owner has read it
        self.believed: list[NodeId] = []  # since the owner has read it

    @property
    def changed(self) -> bool:
        """Whether the owner has to read `doubted` or `believed`."""
        return bool(self.doubted or self.believed)

    def on_connected(self, peer: Peer) -> None:
        """A neighbour connected, perhaps one that we know."""
        if peer.node in self.in_vain:
            self._book.doubt(peer)
            self.doubted.append(peer.node)
        elif self._broken.get(peer.node, (0, peer))[0] >= BROKEN:
            self._doubt(peer)

    def on_run(self, peer: Peer) -> None:
        """A run came from a neighbour."""
        self._broken.pop(peer.node, None)
        if not peer.delivers:
            self.in_vain.discard(peer.node)
            self._book.believe(peer)
            self.believed.append(peer.node)

    def on_failure(self, peer: Peer, outcome: Outcome) -> None:
        """A request brought nothing.

        Args:
            peer: that was asked.
            outcome: STALLED, or how it ended with its connection.
        """
        count, last = self._broken.get(peer.node, (0, None))
        if outcome is Outcome.STALLED:
            self._doubt(peer)
        elif last is not peer:
            self._broken[peer.node] = count + 1, peer

    def doubt_refusers(self, now: float, progress_at: float) -> None:
        """Doubt neighbours that only refuse, while nothing has come for long to us or to any neighbour.

        While a swarm moves, a node is refused because others are served.

        Args:
            now: seconds.
            progress_at: when a needed run last came, or came into reach.
        """
        if now < max(self._review_at, progress_at + self._settings.stuck_after_s):
            return
        self._review_at = now + REVIEW_S
        lately = now - LATELY * self._settings.busy_rest_s
        for peer in [p for p in self._book.peers.values() if p.refusals and p.delivers]:
            since = max(peer.refused_since, progress_at)
            if peer.refused_at >= lately and now >= since + self._patience_s(peer):
                self._doubt(peer)

    def _patience_s(self, peer: Peer) -> float:
        """Seconds for which this neighbour may refuse everything."""
        if self._timing.is_unknown:
            return UNMEASURED * self._settings.owner_patience_s
        usual_s = self._timing.usual_s(across=peer.distance > 0)
        return max(self._settings.stuck_after_s, PATIENT * usual_s)

    def _doubt(self, peer: Peer) -> None:
        if self._on.doubt and peer.delivers and self._book.peers.get(peer.node) is peer:
            self._book.doubt(peer)
            self._requests.make_probes(peer)
            self.in_vain.add(peer.node)
            self.doubted.append(peer.node)

    def check(self) -> None:
        """Assert the invariant."""
        for node, peer in self._book.peers.items():
            assert peer.delivers == (node not in self.in_vain)
