"""How much a node asks of its neighbours at once. Pure."""

from p2pcache.core import bitset
from p2pcache.core.download.in_flight import Requests
from p2pcache.core.peers.peer_book import Peer, PeerBook
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunBook

_FEW_PEERS = 3  # with fewer neighbours each may owe us more
_NEAR_PLACES = 3  # requests to near neighbours that go out whatever is asked beyond a boundary


class Allowance:
    """Limits, as of the last look at the neighbours."""

    def __init__(
        self, requests: Requests, mine: RunBook, book: PeerBook, settings: SwarmSettings
    ) -> None:
        self._requests = requests
        self._mine = mine
        self._book = book
        self._settings = settings
        self.halted = False  # our own disk failed: nothing more is asked for
        self._ahead = 0  # runs that the ways to all neighbours hold
        self._more = 0  # requests beyond the usual ones

    def review(self) -> None:
        """See how far behind the neighbours we are."""
        self._more = self._book.lag_requests(self._mine.missing)
        self.measured()

    def measured(self) -> None:
        """A way between a neighbour and us holds another number of runs."""
        self._ahead = sum(p.ahead for p in self._book.peers.values())

    def may_ask(self, *, far: bool) -> bool:
        """Whether one run more may be asked for: also of neighbours beyond a boundary, or of near ones only.

        Behind a thin uplink what is asked for beyond it takes long and would hold all places, while the rack has
        much for us (decision 0034).
        """
        requests = self._requests
        if self.full:
            return False
        if requests.flowing < self._settings.outstanding + self._more + self._ahead:
            return True
        if far or not self._book.bounded:
            return False
        near = (a for a in requests.by_number.values() if a.live and not a.peer.distance)
        return sum(1 for _ in near) < _NEAR_PLACES

    @property
    def full(self) -> bool:
        """Nothing more may be asked for, of whomever."""
        return self.halted or self._requests.live_bytes >= self._settings.outstanding_bytes

    def brings_first(self, peer: Peer) -> bool:
        """Whether what has to come first can come from this neighbour, or nothing has to."""
        free = self._mine.free
        demanded = free & self._mine.demanded & self._book.rarity.held
        if demanded:
            return bool(peer.have >> bitset.first(demanded) & 1)
        return not free & self._book.duty

    @property
    def shut_out(self) -> bool:
        """Whether others have our places: much is in reach, and less than half of what we may ask for at once is asked.

        Who is served stays where it is, so whoever lost its places would find none for long (decision 0025).
        """
        at_once = self._settings.outstanding
        if 2 * self._requests.flowing >= at_once:
            return False
        return (self._mine.free & self._book.rarity.held).bit_count() >= 2 * at_once

    @property
    def per_peer(self) -> int:
        """Requests that one neighbour may owe us, beside the next one and what a long way holds.

        Neighbours that have nothing for us at this moment count: they soon will, and while several requests wait
        at one of them the others stand idle.
        """
        few = len(self._book.peers) < _FEW_PEERS
        return self._settings.outstanding_few_peers if few else 1
