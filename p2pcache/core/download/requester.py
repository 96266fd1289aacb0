"""What a node asks of its neighbours: which one for which run, and what the end of a request means."""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from p2pcache.core.download import piece_picker
from p2pcache.core.download.bridge_timer import BridgeTimer
from p2pcache.core.download.delivery import Deliveries
from p2pcache.core.download.in_flight import PeerRequest, Requests
from p2pcache.core.download.settings import LEAD, REVIEW_S
from p2pcache.core.origin.readings import Reading
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.settings import PAUSE_S
from p2pcache.core.peers.timing import RequestTiming, SwarmPace
from p2pcache.core.racks.bridges import WITHIN
from p2pcache.core.swarm.commands import ALL, Blame, Cancel, Command, Request
from p2pcache.core.swarm.counters import WORDS
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.core.upload.priority import Priority
from p2pcache.ids import NodeId, RunIndex, RunSet


class RequestPass(NamedTuple):
    """One way to choose the next request. It is repeated until it finds nothing or its limit is reached."""

    name: str
    runs: RunSet  # those of them that are free may be asked for
    peers: Collection[Peer]  # that may be asked
    per_peer: int  # requests that may be in flight to one peer, beside those that its link holds
    most: float  # requests that may flow at once
    # Its requests wait for the peer's last one to end, and don't count as flowing.
    waits: bool = False
    blind: bool = False  # peers without a free slot are asked, too, one at each look
    again: bool = False  # late runs may be asked for instead of free ones


class Requester:
    """Decides what is asked of which neighbour. `RunStates`, `PeerBook` and `Requests` hold what it knows."""

    def __init__(self, context: SwarmContext, now: float) -> None:
        """Nothing is in flight."""
        self._on = context.on
        self._states = context.states
        self._book = context.book
        self._settings = context.settings
        self._dice = context.dice
        self._counters = context.counters
        self._log = context.log
        self._usual_bytes = sum(context.run_bytes) / max(1, len(context.run_bytes))
        self._timing = timing = RequestTiming()
        self.requests = Requests(context, timing)
        self.pace = SwarmPace(now)
        self.deliveries = Deliveries(context, self.requests, timing)
        self._bridge_timer = BridgeTimer(context, timing, now)
        self._review_at = now
        self._sender: NodeId | None = None  # the run of this neighbour came last, until `act`
        self.deadline = math.inf  # of the next `act`

    # -- what happened ------------------------------------------------------------------------

    def on_request_ended(
        self, number: int, outcome: Outcome, now: float, out: list[Command], waited_s: float = 0.0
    ) -> RunIndex:
        """A `Request` ended; returns its run, which the caller proves if the outcome is DONE.

        `waited_s` is the time until the answer; 0: not known.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        was_live = self.requests.retire(number, now, done=outcome is Outcome.DONE)
        request = self.requests.pop(number)
        self._log.note(now, request.run, WORDS[outcome], request.peer.node)
        if waited_s and request.since == request.started:
            self._timing.on_answer(waited_s)
        if was_live:
            self._judge(request, outcome, now)
        if outcome is Outcome.MISMATCH:
            self._blame(request, now, out)
        self.deadline = now
        return request.run

    def on_proved(self, runs: RunSet, now: float, out: list[Command]) -> None:
        """Missing runs are about to be proved: cancel other requests for them; `out` gets the commands."""
        self._bridge_timer.on_run(now)
        self.deliveries.came_at = now
        for number, request in list(self.requests.live.items()):
            if runs >> request.run & 1:
                self.requests.retire(number, now)
                out.append(Cancel(number))

    def on_peer_gone(self, peer: Peer, now: float) -> None:
        """A neighbour is gone: its runs are free at once; the ends of its requests are still awaited."""
        for number, request in list(self.requests.live.items()) if peer.in_flight else ():
            if request.peer is peer:
                self.requests.retire(number, now)
                self._log.note(now, request.run, "left by", peer.node)
        self.deadline = now

    def on_have(self, peer: Peer, now: float, out: list[Command]) -> None:
        """A neighbour has runs that it hadn't before. All other neighbours have been asked for what they can give."""
        if peer.free_at > now:
            self.deadline = min(self.deadline, peer.free_at)
            return
        each, usual = self.requests.per_peer, self.requests.usual
        self._perform(RequestPass("news", ALL, (peer,), each, usual), now, out)

    def on_recall(self, peer: Peer, load: int, now: float) -> None:
        """A neighbour that was BUSY has a slot for us, now: if we don't use it others will, and it is full again.

        With a full `load` it has none, but serves others.
        """
        if not peer.on_recall(load, now):
            return
        may_ask = self.requests.may_ask(self.requests.usual, across=peer.distance > 0)
        if may_ask and peer.have & self._states.free:
            self.deadline = now
        else:
            peer.full_until = now + self._settings.full_rest_s

    def _judge(self, request: PeerRequest, outcome: Outcome, now: float) -> None:
        """The end of a live request says something about its neighbour."""
        peer, counters = request.peer, self._counters
        if outcome is Outcome.DONE:
            self.deliveries.on_run(peer)
            self._sender = peer.node
            if peer.bdp.measure(self._usual_bytes, self._settings.ahead_per_peer):
                self.requests.on_link_measured()
            self._timing.on_run(now - request.since, across=peer.distance > 0)
        elif outcome is Outcome.STALLED:
            counters.stalled += 1
            peer.on_stall(now)
            self.deliveries.doubt(peer)
        elif outcome is Outcome.BUSY:
            counters.busy += 1
            peer.on_busy(now, self._settings.busy_rest_s)
        elif outcome is Outcome.REFUSED:
            counters.refused += 1
            self._book.on_refused(peer, 1 << request.run)
        elif outcome is Outcome.LOST:
            peer.rest_until = now + PAUSE_S  # it is usually gone
            self.deliveries.doubt(peer)

    def _blame(self, request: PeerRequest, now: float, out: list[Command]) -> None:
        self._counters.mismatched += 1
        node = request.peer.node
        if node not in self._book.banned:
            if (current := self._book.ban(node, request.run)) is not None:
                self.on_peer_gone(current, now)
            out.append(Blame(node, request.run))

    # -- what to do ---------------------------------------------------------------------------

    def act(
        self, readings: Iterable[Reading], progress_at: float, now: float, out: list[Command]
    ) -> None:
        """Ask by each pass in turn, until nothing is left to ask for or the limits are reached.

        `readings` are our reads of the origin. A needed run last came, or came into reach, at `progress_at`.
        """
        self.deadline = self._bridge_timer.look_beyond(self.requests.live.values(), now)
        if now >= self._review_at:
            self._review(progress_at, now)
        if not self._book.peers:
            return  # a node alone would spend more on its passes than on all else that the end of a read takes
        if self._on.endgame:
            self.deadline = min(self.deadline, self.requests.find_late(readings, now))
        for one in self._passes(now):
            retry_at = self._perform(one, now, out)  # which sets the deadline, too
            self.deadline = min(self.deadline, retry_at)

    def _passes(self, now: float) -> Iterator[RequestPass]:
        """All passes in order.

        1. *Ask ahead*: a neighbour that is about to end a run, so that its slot doesn't stand empty for a round trip.
        2. *Urgent*: runs that a loader waits for.
        3. *Bridge*: runs that our rack waits for us to bring. No other member brings them.
        4. *Idle*: neighbours that serve nobody, one request each, twice as many as usual: nodes that keep a part of a
           model each are read from at once, and an urgent run waits for no more than twice the usual time.
        5. *Stay*: the neighbour that has just sent a run. TCP is quicker over a connection that was used a moment ago.
        6. *Fill*: everything else.
        7. *Blind*: a neighbour that has no free slot. It may be the only one that has what we need; and others make
           room only for those that were turned away. Not for the last place: everybody would ask (docs/lab/0099).
        8. *Late*: runs that take far too long are asked of a second neighbour (end game: Cohen 2003).
        """
        everybody, requests = self._book.peers.values(), self.requests
        each, usual = requests.per_peer, requests.usual
        for peer in self._about_to_end(now) if self._on.ask_ahead else ():
            yield RequestPass("ask ahead", ALL, (peer,), 2, math.inf, waits=True)
        if urgent := self._states.urgent:
            yield RequestPass("urgent", urgent, everybody, each, usual)
        if (to_bridge := self._book.to_bridge) and self._on.bridge_pass:
            yield RequestPass("bridge", to_bridge, everybody, each, usual)
        most = max(usual, 2 * self._settings.outstanding)
        if self._on.idle_peers and requests.flowing < most:
            idle = [peer for peer in everybody if peer.is_idle and not peer.distance]
            yield RequestPass("idle", ALL, idle, 1, most)
        sender, self._sender = self._sender, None
        if self._on.stay and sender is not None and (last := self._book.peers.get(sender)):
            yield RequestPass("stay", ALL, (last,), each, usual)
        yield RequestPass("fill", ALL, everybody, each, usual)
        if requests.flowing < max(1, self._settings.outstanding - 1):
            yield RequestPass("blind", ALL, everybody, each, usual, blind=True)
        if requests.late:
            # To ask the others, too, would be one duplicate each: their requests count for nothing.
            believed = [peer for peer in everybody if peer.delivers]
            yield RequestPass("late", ALL, believed, each, usual, again=True)

    def _about_to_end(self, now: float) -> Iterator[Peer]:
        """Neighbours whose only request is about to end.

        They aren't asked sooner: a run that one neighbour was asked for isn't asked of another, and the rarest run of
        now isn't the rarest of later (docs/lab/0024).
        """
        lead_s = LEAD * self._timing.answer_s
        for request in list(self.requests.live.values()):
            peer = request.peer
            if request.asked_ahead or peer.in_flight != 1 or peer.extra_requests:
                continue
            due = request.since + self._timing.usual_s(across=peer.distance > 0) - lead_s
            if now < due:
                self.deadline = min(self.deadline, due)
            else:
                yield peer
                request.asked_ahead = peer.in_flight > 1

    def _perform(self, one: RequestPass, now: float, out: list[Command]) -> float:
        """Repeat a pass; returns when the first resting neighbour of it can be asked, inf if none rests."""
        states, book, may_ask = self._states, self._book, self.requests.may_ask
        # A second request doesn't take a place that is kept for the rack.
        while may_ask(one.most, across=one.again) and (
            runs := one.runs & (self.requests.late if one.again else states.free)
        ):
            if one.again:
                reach = ALL, self.requests.very_late, self.requests.very_late
            else:  # beyond a boundary only while there is a place for it
                reach = book.reach if may_ask(one.most, across=True) else WITHIN
            peer, retry_at = piece_picker.choose_peer(
                one.peers, runs, now, one.per_peer, self._dice, reach, full=one.waits or one.blind
            )
            if peer is None:
                return retry_at
            run = piece_picker.choose_run(
                peer.have & reach[peer.distance] & runs & ~peer.owed, states.urgent,
                states.window(self._settings.window_runs),
                book.rarity_in_rack if self._on.rarest else None, self._dice,
            )  # fmt: skip
            self._ask(peer, run, one, now, out)
            if one.blind:
                break
        return math.inf

    def _review(self, progress_at: float, now: float) -> None:
        self._review_at = now + REVIEW_S
        self.deliveries.doubt_refusers(progress_at, now)
        self.pace.on_received(self._states.have.bit_count(), now)
        self.pace.on_count((self._states.have | self._book.rarity.held).bit_count(), now)
        self.requests.on_link_measured()

    def _ask(
        self, peer: Peer, run: RunIndex, one: RequestPass, now: float, out: list[Command]
    ) -> None:
        number = self.requests.on_sent(peer, run, now, waits=one.waits)
        self.deadline = min(self.deadline, now + self.requests.patience_s(across=peer.distance > 0))
        self._counters.requests += 1
        self._counters.duplicates += one.again
        self._log.note(now, run, "asked of", peer.node)
        priority = Priority.URGENT if peer.distance else Priority.USUAL  # a whole rack waits for it
        out.append(Request(number, peer.node, run, priority))

    def check(self) -> None:
        """Assert the invariants of its parts."""
        self.requests.check()
        self.deliveries.check()
