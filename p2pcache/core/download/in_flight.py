"""Requests to neighbours that haven't ended, and how many more may be sent."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.download.settings import FEW_PEERS, NEAR_PLACES
from p2pcache.core.peers.peer import Peer
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.errors import LocalProtocolError
from p2pcache.ids import RunIndex


@dataclass(slots=True)
class PeerRequest:
    """One `Request` that hasn't ended.

    Attributes:
        since: seconds, from which its duration counts: when it was sent. For one that waits for the sender's last run
            to end it is inf until then, and then that time less the time of an answer.
        asked_ahead: its sender was asked for the next run already.
    """

    peer: Peer
    run: RunIndex
    started: float
    since: float
    asked_ahead: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for the sender's last run to end."""
        return self.since == math.inf


class Requests:
    """The live ones, in the order in which they were sent, and those of which only the end is awaited.

    A request to a neighbour that doesn't deliver is a probe. Its run counts as missing: others may be asked for it.

    Invariants (`check`): `states.requested` is exactly the runs of live requests that aren't probes; the peer of a
    live request is a neighbour, whose `in_flight` counts its live requests; one of them at most waits for another.
    """

    def __init__(self, context: SwarmContext) -> None:
        """None yet."""
        self._run_bytes = context.run_bytes
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self._on = context.on
        self.halted = False  # our own disk failed: nothing more is asked for
        self._link_requests = 0  # more, for the links to all neighbours
        self._numbers = itertools.count(1)
        self.live: dict[int, PeerRequest] = {}  # by number
        self._ending: dict[int, PeerRequest] = {}  # cancelled, or their peer is gone
        self.flowing = 0  # live ones, without probes and those that wait
        self.live_bytes = 0

    def on_sent(self, peer: Peer, run: RunIndex, now: float, *, waits: bool = False) -> int:
        """A request goes out; returns its number. It `waits` for another one to the same peer to end."""
        number, since = next(self._numbers), math.inf if waits else now
        self.live[number] = PeerRequest(peer, run, now, since)
        self.live_bytes += self._run_bytes[run]
        if peer.delivers:
            self._states.requested |= 1 << run
            self.flowing += not waits
        return number

    def recount(self) -> None:
        """Count live requests without probes, also when a neighbour is doubted or believed again."""
        counted = [one for one in self.live.values() if one.peer.delivers]
        self.flowing = sum(not one.waits for one in counted)
        self._states.requested = bitset.of(one.run for one in counted)

    def retire(self, number: int, now: float, answer_s: float) -> bool:
        """A request isn't live any more; returns whether it was. The caller counts it down at its peer.

        A request that waited for this one was answered as long ago as an answer usually takes, `answer_s`.
        """
        request = self.live.pop(number, None)
        if request is None:
            return False
        self._ending[number] = request
        self.live_bytes -= self._run_bytes[request.run]
        for other in self.live.values():
            if other.peer is request.peer and other.waits:
                other.since = now - answer_s
        self.recount()
        return True

    def pop(self, number: int) -> PeerRequest:
        """A request that isn't live has ended.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        request = self._ending.pop(number, None)
        if request is None:
            raise LocalProtocolError(f"request {number} ended, but isn't in flight")
        return request

    # -- how many more ------------------------------------------------------------------------

    def on_link_measured(self) -> None:
        """The link to a neighbour holds another number of runs than before."""
        self._link_requests = sum(p.extra_requests for p in self._book.peers.values())

    @property
    def usual(self) -> int:
        """Requests that may flow at once."""
        return self._settings.outstanding + self._link_requests

    def may_ask(self, most: float, *, across: bool) -> bool:
        """Whether one run more may be asked for where `most` may flow at once; `across`: across a boundary.

        Behind a thin uplink a request across a boundary takes long. Such requests would hold all places while the rack
        has much for us, so a few places are for the rack only (docs/lab/0034).
        """
        if self.full:
            return False
        if self.flowing < most:
            return True
        if across or not self._book.has_boundaries or not self._on.near_places:
            return False
        return sum(not one.peer.distance for one in self.live.values()) < NEAR_PLACES

    @property
    def full(self) -> bool:
        """Whether nothing more may be asked of anybody: enough bytes are in flight, or the disk failed."""
        return self.halted or self.live_bytes >= self._settings.outstanding_bytes

    @property
    def per_peer(self) -> int:
        """Requests in flight to one neighbour, beside one that waits and those that its link holds.

        Neighbours count that have nothing for us at this moment: they soon will, and while several requests wait at
        one neighbour the others stand idle.
        """
        few = len(self._book.peers) < FEW_PEERS
        return self._settings.outstanding_few_peers if few else 1

    # -- for people and tests -----------------------------------------------------------------

    def views(self, now: float) -> Iterator[InFlight]:
        """The live requests, the oldest first, for people."""
        for one in self.live.values():
            yield InFlight(one.run, now - one.started, one.peer.node)

    def check(self) -> None:
        """Assert the invariants."""
        peers, live = self._book.peers, self.live.values()
        counted = [one for one in live if one.peer.delivers]
        assert sum(not one.waits for one in counted) == self.flowing
        assert sum(self._run_bytes[one.run] for one in live) == self.live_bytes
        assert bitset.of(one.run for one in counted) == self._states.requested
        for one in live:
            assert peers.get(one.peer.node) is one.peer
        for peer in peers.values():
            assert peer.in_flight == sum(one.peer is peer for one in live)
            waiting = sum(one.peer is peer and one.waits for one in live)
            assert waiting <= min(1, peer.in_flight - 1) or not peer.in_flight
