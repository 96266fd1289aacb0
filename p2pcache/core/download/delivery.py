"""Which neighbours deliver what they claim to have.

A neighbour is **doubted** if it sends nothing for as long as the data plane waits for bytes, if it refuses every
request while nothing else comes either, or if its connection ends while it owes us a run. The runs of a doubted
neighbour don't count: they are asked of others, are stuck if nobody else has them, and may be read from the origin. It
is asked for one run now and then, also on a new connection, and is believed again when that run comes.
"""

from math import inf

from p2pcache.core.download.in_flight import Requests
from p2pcache.core.download.settings import IDLE_REFUSALS, PATIENT, UNMEASURED
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.timing import RequestTiming
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
        self.came_at = -inf  # when a needed run last came
        self.in_vain: set[NodeId] = set()  # doubted nodes, connected or not
        self.changed: dict[NodeId, bool] = {}  # since the owner read it: whether it is believed now

    def on_connected(self, peer: Peer) -> None:
        """A neighbour connected, perhaps one that we know."""
        if peer.node in self.in_vain:
            self.doubt(peer)

    def on_run(self, peer: Peer) -> None:
        """A run came from a neighbour."""
        if not peer.delivers:
            self.in_vain.discard(peer.node)
            self._set_delivers(peer, delivers=True)

    def doubt_refusers(self, progress_at: float, now: float) -> None:
        """Doubt neighbours that only refuse, while nothing has come for long to us or to any neighbour.

        While a swarm moves, a node is refused because others are served. A needed run last came, or came into reach,
        at `progress_at`. A neighbour that says again and again that it serves nobody has no such reason.
        """
        settings = self._settings
        for peer in [p for p in self._book.peers.values() if p.refused_since and p.delivers]:
            moved_at, patience_s = progress_at, UNMEASURED * settings.owner_patience_s
            if peer.idle_refusals >= IDLE_REFUSALS:
                moved_at, patience_s = self.came_at, settings.stuck_after_s
            elif not self._timing.is_unknown:
                usual_s = self._timing.usual_s(across=peer.distance > 0)
                patience_s = max(settings.stuck_after_s, PATIENT * usual_s)
            due = max(peer.refused_since, moved_at) + patience_s
            # A neighbour whose rest ended long ago hasn't been asked since: we need nothing that it has.
            if peer.rest_until + settings.busy_rest_s > now >= due:
                self.doubt(peer)

    def doubt(self, peer: Peer) -> None:
        """A neighbour delivers nothing: it doesn't count until it sends a run."""
        if self._on.doubt and peer.delivers and self._book.peers.get(peer.node) is peer:
            self.in_vain.add(peer.node)
            self._set_delivers(peer, delivers=False)

    def _set_delivers(self, peer: Peer, *, delivers: bool) -> None:
        self._book.on_delivers(peer, delivers=delivers)
        self._requests.recount()
        self.changed[peer.node] = delivers

    def check(self) -> None:
        """Assert the invariant."""
        for node, peer in self._book.peers.items():
            assert peer.delivers == (node not in self.in_vain)
