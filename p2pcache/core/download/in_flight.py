"""Requests to neighbours that haven't ended, which of them are late, and how many more may be sent."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.download.settings import NEAR_PLACES, REVIEW_S, VERY_LATE
from p2pcache.core.origin.readings import Reading
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.settings import FIRST_STEPS_S
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.errors import LocalProtocolError
from p2pcache.ids import RunIndex, RunSet


@dataclass(slots=True)
class PeerRequest:
    """One `Request` that hasn't ended."""

    peer: Peer
    run: RunIndex
    started: float
    # When its duration began, in seconds: when it was sent. A request that waits for its peer's last run to end has inf
    # until then. Then its duration began as long before that end as an answer usually takes.
    since: float
    asked_ahead: bool = False  # its peer was asked for the next run already

    @property
    def waits(self) -> bool:
        """Whether it waits for its peer's last run to end."""
        return self.since == math.inf


class Requests:
    """Requests that haven't ended: live ones in the order in which they were sent, and those that only have to end.

    A request to a neighbour that doesn't deliver is a probe. Its run counts as missing: others may be asked for it.

    Invariants (`check`): `states.requested` is exactly the runs of live requests that aren't probes; the peer of a
    live request is a neighbour, which owes exactly the runs of its live requests; one of them at most waits.
    """

    def __init__(self, context: SwarmContext, timing: RequestTiming) -> None:
        """None yet."""
        self._run_bytes = context.run_bytes
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self._on = context.on
        self._timing = timing
        self.halted = False  # our own disk failed: nothing more is asked for
        self._link_requests = 0  # further requests that the links to all neighbours hold
        self._numbers = itertools.count(1)
        self.live: dict[int, PeerRequest] = {}  # by number
        self._ending: dict[int, PeerRequest] = {}  # cancelled, or their peer is gone
        self.flowing = 0  # live ones, without probes and those that wait
        self.live_bytes = 0
        # Runs whose only request or read was late at the last look. Holders beyond a boundary may be asked for those
        # whose request or read was very late.
        self.late: RunSet = 0
        self.very_late: RunSet = 0

    def on_sent(self, peer: Peer, run: RunIndex, now: float, *, waits: bool = False) -> int:
        """A request goes out; returns its number. It `waits` for another one to the same peer to end."""
        number = next(self._numbers)
        self.live[number] = PeerRequest(peer, run, now, math.inf if waits else now)
        self.live_bytes += self._run_bytes[run]
        peer.on_request(run, now)
        self.late &= ~(1 << run)
        if peer.delivers:
            self._states.requested |= 1 << run
            self.flowing += not waits
        return number

    def recount(self) -> None:
        """Count live requests without probes, also when a neighbour is doubted or believed again."""
        counted = [one for one in self.live.values() if one.peer.delivers]
        self.flowing = sum(not one.waits for one in counted)
        self._states.requested = bitset.of(one.run for one in counted)

    def retire(self, number: int, now: float, *, done: bool = False) -> bool:
        """A request isn't live any more; `done`: its run came. Returns whether it was live.

        A request that waited for this one was answered as long ago as an answer usually takes.
        """
        request = self.live.pop(number, None)
        if request is None:
            return False
        self._ending[number] = request
        size = self._run_bytes[request.run]
        self.live_bytes -= size
        request.peer.on_request_ended(request.run, size if done else 0, now)
        for other in self.live.values():
            if other.peer is request.peer and other.waits:
                other.since = now - self._timing.answer_s
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

    def patience_s(self, *, across: bool) -> float:
        """Seconds after which a request is late."""
        usual_s = self._timing.usual_s(across=across)
        if self._timing.is_unknown:
            usual_s = FIRST_STEPS_S  # none has ended yet, and this one may never
        return max(self._settings.duplicate_min_s, self._settings.duplicate_after * usual_s)

    def find_late(self, readings: Iterable[Reading], now: float) -> float:
        """Find late runs; returns when to look again.

        A request across a boundary is late mostly because the boundary's uplink is full, and a second request across it
        makes that worse.
        """
        times = VERY_LATE if self._states.free else 1  # free runs will come into reach soon
        near_s, far_s = (times * self.patience_s(across=across) for across in (False, True))
        under_way = [
            (one.run, one.since, far_s if one.peer.distance else near_s)
            for one in self.live.values()
            if one.peer.delivers
        ]
        under_way += [(one.run, one.started, near_s) for one in readings]
        once: RunSet = 0
        twice: RunSet = 0
        late: RunSet = 0
        self.very_late = 0
        look_at = math.inf
        for run, since, patience_s in under_way:
            twice |= once & 1 << run
            once |= 1 << run
            if now < since + patience_s:
                look_at = min(look_at, since + patience_s)
                continue
            late |= 1 << run
            self.very_late |= (now >= since + VERY_LATE * patience_s) << run
        self.late = late & ~twice & self._states.needed
        # Another holder may come, or have a slot free.
        return min(look_at, now + REVIEW_S) if self.late else look_at

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
        if self.halted or self.live_bytes >= self._settings.outstanding_bytes:
            return False
        if self.flowing < most:
            return True
        if across or not self._book.has_boundaries or not self._on.near_places:
            return False
        return sum(not one.peer.distance for one in self.live.values()) < NEAR_PLACES

    @property
    def per_peer(self) -> int:
        """Requests in flight to one neighbour, beside one that waits and those that its link holds.

        A few neighbours owe us several runs each, so that a fast link doesn't idle. Those that deliver count, also if
        they have nothing for us now: they soon will, and while several requests wait at one neighbour the others stand
        idle.
        """
        neighbours = sum(peer.delivers for peer in self._book.peers.values())
        return max(1, self._settings.outstanding // max(1, neighbours))

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
            its = [one for one in live if one.peer is peer]
            assert bitset.of(one.run for one in its) == peer.owed
            assert len(its) == peer.in_flight
            assert sum(one.waits for one in its) <= min(1, len(its) - 1) or not its
