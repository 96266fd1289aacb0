"""Requests to neighbours that haven't ended, and how many more may be sent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.download.settings import FEW_PEERS, MOST_IDLE, NEAR_PLACES
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
        live: false once it is cancelled or its peer is gone; only its end is awaited.
        asked_ahead: its sender was asked for the next run already.
        duplicated: another request for the same run is in flight.
        probe: its peer delivers nothing so far. The run counts as missing: others may be asked for it meanwhile.
    """

    peer: Peer
    run: RunIndex
    started: float
    since: float
    live: bool = True
    asked_ahead: bool = False
    duplicated: bool = False
    probe: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for the sender's last run to end."""
        return self.since == math.inf


class Requests:
    """All of them by number, in the order in which they were sent.

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
        self._next = 1
        self.by_number: dict[int, PeerRequest] = {}
        self.flowing = 0  # live ones, without probes and those that wait
        self.probes = 0  # live ones
        self.live_bytes = 0

    def on_sent(
        self, peer: Peer, run: RunIndex, now: float, *, waits: bool = False, duplicate: bool = False
    ) -> int:
        """A request goes out; returns its number.

        Args:
            peer: that is asked.
            run: that it is asked for.
            now: seconds.
            waits: it waits for another one to the same peer to end.
            duplicate: another request for the run, or a read of it, is in flight.
        """
        number, self._next = self._next, self._next + 1
        probe = not peer.delivers
        self.by_number[number] = PeerRequest(
            peer, run, now, math.inf if waits else now, duplicated=duplicate, probe=probe
        )
        if not probe:
            self._states.request(1 << run)
        self.flowing += not waits and not probe
        self.probes += probe
        self.live_bytes += self._run_bytes[run]
        return number

    def make_probes(self, peer: Peer) -> None:
        """A peer doesn't deliver: its requests are probes from now on, and their runs may be asked of others."""
        for one in self.by_number.values():
            if one.live and one.peer is peer and not one.probe:
                one.probe = True
                self.probes += 1
                self.flowing -= not one.waits
        live = (one for one in self.by_number.values() if one.live and not one.probe)
        kept = bitset.of(one.run for one in live)
        self._states.end_request(self._states.requested & ~kept)

    def pop(self, number: int) -> PeerRequest:
        """A request has ended; if it is live, `retire` it.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        request = self.by_number.pop(number, None)
        if request is None:
            raise LocalProtocolError(f"request {number} ended, but isn't in flight")
        return request

    def retire(self, request: PeerRequest, now: float, answer_s: float) -> None:
        """A request isn't live any more. The caller counts it down at its peer.

        Args:
            request: that was live.
            now: seconds.
            answer_s: usual time of an answer: a request that waited for this one was answered that long ago.
        """
        request.live = False
        self.flowing -= not request.waits and not request.probe
        self.probes -= request.probe
        self.live_bytes -= self._run_bytes[request.run]
        alone = True
        for other in self.by_number.values():
            if not other.live:
                continue
            if other.run == request.run:
                other.duplicated = False  # it is alone now and may be duplicated again
                alone = alone and other.probe
            if other.peer is request.peer and other.waits:
                other.since = now - answer_s
                self.flowing += not other.probe
        if alone:
            self._states.end_request(1 << request.run)

    # -- how many more ------------------------------------------------------------------------

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
        if self.flowing < self._settings.outstanding + self._link_requests:
            return True
        if across or not self._book.has_boundaries or not self._on.near_places:
            return False
        near = sum(one.live and not one.peer.distance for one in self.by_number.values())
        return near < NEAR_PLACES

    @property
    def may_ask_idle(self) -> bool:
        """Whether a neighbour that serves nobody may be asked for one run more."""
        return not self.full and self.flowing < MOST_IDLE

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
        for one in self.by_number.values():
            if one.live:
                yield InFlight(one.run, now - one.started, one.peer.node)

    def check(self) -> None:
        """Assert the invariants."""
        peers = self._book.peers
        live = [one for one in self.by_number.values() if one.live]
        assert sum(not one.waits and not one.probe for one in live) == self.flowing
        assert sum(one.probe for one in live) == self.probes
        assert sum(self._run_bytes[one.run] for one in live) == self.live_bytes
        assert bitset.of(one.run for one in live if not one.probe) == self._states.requested
        for one in live:
            assert peers.get(one.peer.node) is one.peer
        for peer in peers.values():
            assert peer.in_flight == sum(one.peer is peer for one in live)
            waiting = sum(one.peer is peer and one.waits for one in live)
            assert waiting <= min(1, peer.in_flight - 1) or not peer.in_flight
