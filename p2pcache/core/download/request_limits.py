"""How many requests flow at once."""

from p2pcache.core.download.in_flight import Requests
from p2pcache.core.download.settings import FEW_PEERS, MOST_IDLE, NEAR_PLACES
from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.settings import SwarmSettings


class RequestLimits:
    """Limits, as of the last `on_link_measured`."""

    def __init__(
        self,
        requests: Requests,
        book: PeerBook,
        settings: SwarmSettings,
        on: Mechanisms = ALL_ON,
    ) -> None:
        """The usual limits, until the first `on_link_measured`."""
        self._requests = requests
        self._book = book
        self._settings = settings
        self._on = on
        self.halted = False  # our own disk failed: nothing more is asked for
        self._link_requests = 0  # more, for the links to all neighbours

    def on_link_measured(self) -> None:
        """The link to a neighbour holds another number of runs than before."""
        self._link_requests = sum(p.extra_requests for p in self._book.peers.values())

    def may_ask(self, *, across: bool) -> bool:
        """Whether one run more may be asked for.

        Behind a thin uplink a request across a boundary takes long. Such requests would hold all places while the rack
        has much for us, so a few places are for the rack only (docs/lab/0034).

        Args:
            across: whether it may be asked for across a boundary; false: within the rack only.
        """
        if self.full:
            return False
        most = self._settings.outstanding + self._link_requests
        if self._requests.flowing < most:
            return True
        if across or not self._book.has_boundaries or not self._on.near_places:
            return False
        live = (one for one in self._requests.by_number.values() if one.live)
        return sum(1 for one in live if not one.peer.distance) < NEAR_PLACES

    @property
    def may_ask_idle(self) -> bool:
        """Whether a neighbour that serves nobody may be asked for one run more."""
        return not self.full and self._requests.flowing < MOST_IDLE

    @property
    def full(self) -> bool:
        """Whether nothing more may be asked of anybody: enough bytes are in flight, or the disk failed."""
        return self.halted or self._requests.live_bytes >= self._settings.outstanding_bytes

    @property
    def per_peer(self) -> int:
        """Requests in flight to one neighbour, beside one that waits and those that its link holds.

        Neighbours count that have nothing for us at this moment: they soon will, and while several requests wait at
        one neighbour the others stand idle.
        """
        few = len(self._book.peers) < FEW_PEERS
        return self._settings.outstanding_few_peers if few else 1
