"""What a node asks of its neighbours: which one for which run, and what the end of a request means."""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from p2pcache.core.download import piece_picker
from p2pcache.core.download.bridge_timer import BridgeTimer
from p2pcache.core.download.delivery import Deliveries
from p2pcache.core.download.endgame import Endgame
from p2pcache.core.download.in_flight import PeerRequest, Requests
from p2pcache.core.download.settings import LEAD, LONELY, REVIEW_S
from p2pcache.core.origin.readings import Reading
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.settings import PAUSE_S
from p2pcache.core.peers.timing import RequestTiming, SwarmPace
from p2pcache.core.racks.bridges import WITHIN, Reach
from p2pcache.core.swarm.commands import ALL, Blame, Cancel, Command, Request
from p2pcache.core.swarm.counters import WORDS
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.core.upload.priority import Priority
from p2pcache.ids import RunIndex, RunSet


class RequestPass(NamedTuple):
    """One way to choose the next request. It is repeated until it finds nothing or the limits are reached.

    Attributes:
        name: in documents and tests.
        runs: the free ones among them may be asked for.
        peers: that may be asked.
        per_peer: requests in flight to one of them, beside those that its link holds.
        waits: the request will wait for the peer's last one to end, so it doesn't count as one that flows.
        idle: its peers serve nobody, so more requests may flow.
        blind: peers that have no free slot are asked, too, one of them if next to nothing flows.
    """

    name: str
    runs: RunSet
    peers: Collection[Peer]
    per_peer: int
    waits: bool = False
    idle: bool = False
    blind: bool = False


class Requester:
    """Decides what is asked of which neighbour. `RunStates`, `PeerBook` and `Requests` hold what it knows."""

    def __init__(self, context: SwarmContext, now: float) -> None:
        """Nothing is in flight."""
        self._on = context.on
        self._run_bytes = context.run_bytes
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self._dice = context.dice
        self._counters = context.counters
        self._log = context.log
        self.requests = Requests(context)
        self._usual_bytes = sum(self._run_bytes) / max(1, len(self._run_bytes))
        self._timing = timing = RequestTiming()
        self.pace = SwarmPace(now)
        self.deliveries = Deliveries(context, self.requests, timing)
        self._endgame = Endgame(context, self.requests, timing)
        self._bridge_timer = BridgeTimer(context, timing, now)
        self._review_at = now
        self.deadline = math.inf  # of the next `act`

    # -- what happened ------------------------------------------------------------------------

    def on_request_ended(
        self, number: int, outcome: Outcome, now: float, out: list[Command], waited_s: float = 0.0
    ) -> RunIndex:
        """A `Request` ended; returns its run, which the caller proves if the outcome is DONE.

        Args:
            number: of the request.
            outcome: how it ended.
            now: seconds.
            out: commands are added here.
            waited_s: until the answer; 0: not known.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        request = self.requests.pop(number)
        self._log.note(now, request.run, WORDS[outcome], request.peer.node)
        if waited_s and request.since == request.started:
            self._timing.on_answer(waited_s)
        if request.live:
            self._release(request, now)
            self._judge(request, outcome, now)
        if outcome is Outcome.MISMATCH:
            self._blame(request, now, out)
        self.deadline = now
        return request.run

    def on_proved(self, runs: RunSet, now: float, out: list[Command]) -> None:
        """Missing runs are about to be proved: cancel other requests for them.

        Args:
            runs: in question.
            now: seconds.
            out: commands are added here.
        """
        self._bridge_timer.on_run(now)
        if not runs & self._states.requested and not self.requests.probes:
            return
        for number, request in self.requests.by_number.items():
            if request.live and runs >> request.run & 1:
                self._release(request, now)
                request.peer.on_request_ended(0, now)
                out.append(Cancel(number))

    def on_peer_gone(self, peer: Peer, now: float) -> None:
        """A neighbour is gone: its runs are free at once; the ends of its requests are still awaited."""
        for request in self.requests.by_number.values() if peer.in_flight else ():
            if request.live and request.peer is peer:
                self._release(request, now)
                self._log.note(now, request.run, "left by", peer.node)
        peer.in_flight = 0
        self.deadline = now

    def on_have(self, peer: Peer, runs: RunSet, now: float, out: list[Command]) -> None:
        """A neighbour has runs that it hadn't before. All others have been asked for what they can give.

        Args:
            peer: the neighbour.
            runs: missing ones among them.
            now: seconds.
            out: commands are added here.
        """
        if peer.free_at > now:
            self.deadline = min(self.deadline, peer.free_at)
            return
        self._perform(RequestPass("news", ALL, (peer,), self.requests.per_peer), now, out)

    def on_recall(self, peer: Peer, now: float) -> None:
        """A neighbour that was BUSY has a slot for us, now: if we don't use it others will, and it is full again."""
        if not peer.on_recall():
            return
        if not self.requests.may_ask(across=peer.distance > 0) or not peer.have & self._states.free:
            peer.full_until = now + self._settings.full_rest_s
            return
        self.deadline = now

    def _judge(self, request: PeerRequest, outcome: Outcome, now: float) -> None:
        """The end of a live request says something about its neighbour."""
        peer, counters = request.peer, self._counters
        if outcome is Outcome.DONE:
            self._on_run(request, now)
        elif outcome in {Outcome.STALLED, Outcome.MISMATCH}:
            peer.on_request_ended(0, now)
            peer.on_stall(now)
            if outcome is Outcome.STALLED:
                counters.stalled += 1
                self.deliveries.on_failure(peer, outcome)
        else:
            peer.on_request_ended(0, now)
            if outcome is Outcome.BUSY:
                counters.busy += 1
                if not request.waits:  # one that sends to us only keeps no place for the next run
                    peer.on_busy(now, self._settings.busy_rest_s)
            elif outcome is Outcome.REFUSED:
                counters.refused += 1
                self._book.on_refused(peer, 1 << request.run)
            elif outcome is not Outcome.CANCELLED:
                peer.rest_until = now + PAUSE_S  # it is usually gone
                self.deliveries.on_failure(peer, outcome)

    def _on_run(self, request: PeerRequest, now: float) -> None:
        peer = request.peer
        peer.on_request_ended(self._run_bytes[request.run], now)
        self.deliveries.on_run(peer)
        if peer.bdp.measure(self._usual_bytes, self._settings.ahead_per_peer):
            self.requests.on_link_measured()
        self._timing.on_run(now - request.since, across=peer.distance > 0)

    def _blame(self, request: PeerRequest, now: float, out: list[Command]) -> None:
        self._counters.mismatched += 1
        node = request.peer.node
        if node in self._book.banned:
            return
        current = self._book.peers.get(node)
        self._book.ban(node, request.run)
        if current is not None:
            self.on_peer_gone(current, now)
        out.append(Blame(node, request.run))

    def _release(self, request: PeerRequest, now: float) -> None:
        self.requests.retire(request, now, self._timing.answer_s)

    # -- what to do ---------------------------------------------------------------------------

    def act(self, readings: Iterable[Reading], now: float, out: list[Command]) -> None:
        """Ask by each pass in turn, until nothing is left to ask for or the limits are reached.

        Args:
            readings: our reads of the origin.
            now: seconds.
            out: commands are added here.
        """
        self.deadline = self._bridge_timer.look_beyond(self.requests.by_number.values(), now)
        if now >= self._review_at:
            self._review(now)
        retry_at = math.inf
        for one in self._passes(now):
            found_at = self._perform(one, now, out)
            retry_at = min(retry_at, found_at) if one.blind else found_at
        self.deadline = min(self.deadline, retry_at)  # of the passes that have all neighbours
        if self._on.endgame and self.requests.may_ask(across=True) and self._states.needed:
            for late, peer in self._endgame.candidates(readings, now):
                late.duplicated = True
                self._counters.duplicates += 1
                self._ask(peer, late.run, now, out, duplicate=True)
            self.deadline = min(self.deadline, self._endgame.deadline)

    def _passes(self, now: float) -> Iterator[RequestPass]:
        """All passes in order. The endgame comes after them: see `Endgame`.

        1. *Ask ahead*: a neighbour that is about to end a run, so that its slot doesn't stand empty for a round trip.
        2. *Urgent*: runs that a loader waits for.
        3. *Bridge*: runs that our rack waits for us to bring. No other member brings them.
        4. *Idle*: neighbours that serve nobody, one request each; more requests may flow than usual. Nodes that keep a
           part of a model each are read from at once.
        5. *Fill*: everything else.
        6. *Blind*: if next to nothing flows, a neighbour that has no free slot: if it is the only one that has what we
           need, we stand in its line, or find that it serves nobody.
        """
        everybody, per_peer = self._book.peers.values(), self.requests.per_peer
        for peer in self._about_to_end(now) if self._on.ask_ahead else ():
            yield RequestPass("ask ahead", ALL, (peer,), 2, waits=True)
        if urgent := self._states.urgent:
            yield RequestPass("urgent", urgent, everybody, per_peer)
        if (to_bridge := self._book.to_bridge) and self._on.bridge_pass:
            yield RequestPass("bridge", to_bridge, everybody, per_peer)
        if self._on.idle_peers and self.requests.may_ask_idle:
            idle = [peer for peer in everybody if peer.is_idle and not peer.distance]
            yield RequestPass("idle", ALL, idle, 1, idle=True)
        yield RequestPass("fill", ALL, everybody, per_peer)
        if self.requests.flowing <= LONELY:
            yield RequestPass("blind", ALL, everybody, per_peer, blind=True)

    def _about_to_end(self, now: float) -> Iterator[Peer]:
        """Neighbours whose only request is about to end.

        They aren't asked sooner: a run that one neighbour was asked for isn't asked of another, and the rarest run of
        now isn't the rarest of later (docs/lab/0024).
        """
        if self.requests.full:
            return
        lead_s = LEAD * self._timing.answer_s
        for request in list(self.requests.by_number.values()):
            peer = request.peer
            if request.asked_ahead or not request.live or peer.in_flight != 1:
                continue
            if not peer.delivers or peer.extra_requests:
                continue
            due = request.since + self._timing.usual_s(across=peer.distance > 0) - lead_s
            if now < due:
                self.deadline = min(self.deadline, due)
            elif not peer.stalls:
                yield peer
                request.asked_ahead = peer.in_flight > 1

    def _perform(self, one: RequestPass, now: float, out: list[Command]) -> float:
        """Repeat a pass; returns when the first resting neighbour of it can be asked, inf if none rests."""
        while (
            one.waits
            or (one.idle and self.requests.may_ask_idle)
            or self.requests.may_ask(across=False)
        ):
            runs = one.runs & self._states.free
            if not runs:
                break
            reach = self._book.reach if one.waits else self._reach
            peer, retry_at = piece_picker.choose_peer(
                one.peers, runs, now, one.per_peer, self._dice, reach, self._on, full=one.waits or one.blind,
            )  # fmt: skip
            run = -1 if peer is None else self._run_from(peer, reach)
            if peer is None or run < 0:
                return retry_at
            self._ask(peer, run, now, out, waits=one.waits)
            if one.blind:
                break
        return math.inf

    def _review(self, now: float) -> None:
        self._review_at = now + REVIEW_S
        receiving = sum(p.have != self._states.full for p in self._book.peers.values())
        self.pace.on_received(self._book.received, receiving, now)
        self.pace.on_count((self._states.have | self._book.rarity.held).bit_count(), now)
        self._timing.take_medians()
        self.requests.on_link_measured()

    @property
    def _reach(self) -> Reach:
        """Runs that may be asked for now, by distance: beyond a boundary only while there is a place for it."""
        return self._book.reach if self.requests.may_ask(across=True) else WITHIN

    def _run_from(self, peer: Peer, reach: Reach) -> RunIndex:
        """The run to ask this neighbour for; -1: none."""
        offered = peer.have & reach[peer.distance]
        window = self._states.window(self._settings.window_runs)
        rarity = self._book.rarity_in_rack if self._on.rarest else None
        return piece_picker.choose_run(
            self._states, offered & self._states.free, rarity, window, self._dice
        )

    def _ask(
        self, peer: Peer, run: RunIndex, now: float, out: list[Command],
        *, duplicate: bool = False, waits: bool = False,
    ) -> None:  # fmt: skip
        number = self.requests.on_sent(peer, run, now, waits=waits, duplicate=duplicate)
        self.deadline = min(self.deadline, now + self._endgame.patience_s(peer))
        peer.on_request(now)
        self._counters.requests += 1
        self._log.note(now, run, "asked of", peer.node)
        priority = Priority.URGENT if peer.distance else Priority.USUAL  # a whole rack waits for it
        out.append(Request(number, peer.node, run, priority))

    def check(self) -> None:
        """Assert the invariants of its parts."""
        self.requests.check()
        self.deliveries.check()
