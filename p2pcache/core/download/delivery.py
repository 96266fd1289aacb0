"""Which neighbours deliver what they say that they have: a claim is worth what it delivered.

A neighbour that sends nothing for as long as the data plane waits for bytes, that refuses every request while
nothing else comes either, or whose connections end whenever something is asked of it, holds nothing as far as we
are concerned: what it has is asked of others, is stuck if nobody else has it, and may be read from the origin. It is
asked for one run now and then, and is believed again when that comes.
"""

from p2pcache.core.download.in_flight import Requests
from p2pcache.core.peers.peer_book import Peer, PeerBook
from p2pcache.core.peers.request_timing import Timing
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.events import Outcome

_PATIENT = 8  # requests' usual time for which a crowded neighbour may refuse all of ours: its turns are uneven
_UNMEASURED = 2  # times an owner's patience, while no request has ended: a slow one's uploads end together, and late
_MOST_TURNS = (
    4  # others served before us that are believed: each may take a whole turn at a slow node
)
_LATELY = 4  # longest pauses after a refusal: who refused longer ago wasn't asked since
_LOOK_S = 0.25  # between two looks at who refuses
_BROKEN = 2  # connections in a row that ended while we waited there: one is a restart


class Deliveries:
    """What each neighbour did with our requests; outlives its connections.

    Invariant: a neighbour counts for nothing (`Peer.delivers` is false) if and only if it is in `in_vain`.
    """

    def __init__(
        self, book: PeerBook, requests: Requests, timing: Timing, settings: SwarmSettings
    ) -> None:
        """Everybody is believed."""
        self._book = book
        self._requests = requests
        self._timing = timing
        self._settings = settings
        self.in_vain: set[int] = set()  # nodes that we believe no more, neighbours or not
        self._broken: dict[
            int, tuple[int, Peer]
        ] = {}  # node -> broken connections, and the last one
        self._proven: set[int] = (
            set()
        )  # sent us a run before: a new connection is worth one more try
        self._owing: set[int] = set()  # doubted, and sent nothing since
        self._look_at = 0.0
        self.doubted: list[int] = []  # since the owner looked
        self.believed: list[int] = []

    @property
    def news(self) -> bool:
        """Whether the owner has to look at `doubted` or `believed`."""
        return bool(self.doubted or self.believed)

    def joined(self, peer: Peer) -> None:
        """A neighbour connected: perhaps one that we know."""
        if peer.node in self._proven:
            self._proven.discard(peer.node)
            self.in_vain.discard(peer.node)
        elif peer.node in self.in_vain:
            self._book.doubt(peer)
            self.doubted.append(peer.node)
        elif self._broken.get(peer.node, (0, peer))[0] >= _BROKEN:
            self._doubt(peer)

    def delivered(self, peer: Peer) -> None:
        """A run came from a neighbour."""
        self._broken.pop(peer.node, None)
        self._proven.add(peer.node)
        if not peer.delivers:
            self.in_vain.discard(peer.node)
            self._book.believe(peer)
        if peer.node in self._owing:
            self._owing.discard(peer.node)
            self.believed.append(peer.node)

    def failed(self, peer: Peer, outcome: Outcome) -> None:
        """A request to a neighbour ended for want of bytes (STALLED), or with its connection (LOST)."""
        count, last = self._broken.get(peer.node, (0, None))
        if outcome is Outcome.STALLED:
            self._doubt(peer)
        elif last is not peer:
            self._broken[peer.node] = count + 1, peer

    def look(self, now: float, progress_at: float) -> None:
        """Believe those no more who only refuse, while nothing came for long to us or to any neighbour.

        Args:
            now: seconds.
            progress_at: when something that we want came in or into reach last. While a swarm moves, whoever is
                refused is so because others are served.
        """
        if now < max(self._look_at, progress_at + self._settings.stuck_after_s):
            return
        self._look_at = now + _LOOK_S
        lately = now - _LATELY * self._settings.busy_backoff_max_s
        for peer in [p for p in self._book.peers.values() if p.refusals and p.delivers]:
            since = max(peer.refused_since, progress_at)
            if peer.refused_at >= lately and now >= since + self._patience_s(peer):
                self._doubt(peer)

    def _patience_s(self, peer: Peer) -> float:
        if self._timing.is_unknown:
            others = max(1, min(peer.load, _MOST_TURNS))
            return _UNMEASURED * self._settings.owner_patience_s * others
        typical_s = self._timing.typical_s(across=peer.distance > 0)
        return max(self._settings.stuck_after_s, _PATIENT * typical_s)

    def _doubt(self, peer: Peer) -> None:
        if peer.delivers and self._book.peers.get(peer.node) is peer:
            self._book.doubt(peer)
            self._requests.doubt(peer)
            self.in_vain.add(peer.node)
            self._owing.add(peer.node)
            self.doubted.append(peer.node)

    def check(self) -> None:
        """Assert the invariant."""
        for node, peer in self._book.peers.items():
            assert peer.delivers == (node not in self.in_vain)
