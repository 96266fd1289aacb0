"""The neighbours' side of one swarm on one node: requests in flight, and whom to ask for what."""

import math
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from p2pcache.core.download import piece_picker
from p2pcache.core.download.bridge_timer import Lookout
from p2pcache.core.download.delivery import Deliveries
from p2pcache.core.download.in_flight import Asked, Requests
from p2pcache.core.download.request_limits import Allowance
from p2pcache.core.origin.origin_reader import Reading
from p2pcache.core.peers.peer_book import Peer, PeerBook
from p2pcache.core.peers.request_timing import Timing
from p2pcache.core.peers.swarm_pace import Tempo
from p2pcache.core.racks.bridges import EVERYWHERE, WITHIN, Reach
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Blame, Cancel, Command, Request
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm.run_states import RunBook
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.core.swarm.story import WORDS, Diary
from p2pcache.core.upload.upload_queue import Turn

# Answers' times before a run is here, its sender is asked for the next; 1 to 2 make no difference.
_LEAD = 1.25
_REVIEW_S = 0.25  # neighbours' speeds are compared so often
_LOST_PAUSE_S = 1.0  # a broken connection is usually followed by PeerLeft: don't ask meanwhile


class PeerSide:
    """Decides what is asked of whom.

    Invariants (`check`): what `Requests` states.
    """

    def __init__(
        self, run_bytes: Sequence[int], mine: RunBook, book: PeerBook, settings: SwarmSettings,
        dice: Random, diary: Diary, now: float,
    ) -> None:  # fmt: skip
        self._run_bytes = run_bytes
        self._mine = mine
        self._book = book
        self._settings = settings
        self._dice = dice
        self._diary = diary
        self._requests = Requests(run_bytes, mine)
        self._usual_bytes = sum(run_bytes) / max(1, len(run_bytes))
        self._timing = Timing()
        self.deliveries = Deliveries(book, self._requests, self._timing, settings)
        self._overdue = 0  # runs (bits) that deserve a twin, but nobody else has them
        self._freed: Peer | None = None  # whose upload to us has just ended: it has a slot free
        self.tempo = Tempo(now)
        self._review_at = now
        self._lookout = Lookout(mine, book, self._timing, settings, now)
        self._allowance = Allowance(self._requests, mine, book, settings)
        self.look_at = math.inf  # when a full look at all neighbours is due

    def halt(self) -> None:
        """Our own disk failed: nothing more is asked for."""
        self._allowance.halted = True

    # -- what happened ----------------------------------------------------------------------

    def ended(
        self, request: int, outcome: Outcome, now: float, out: list[Command], waited_s: float = 0.0
    ) -> int:
        """A `Request` ended; returns its run, which the caller proves if it is DONE.

        Args:
            request: its number.
            outcome: how.
            now: seconds.
            out: commands are added here.
            waited_s: for the answer; 0: not known.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        asked = self._requests.ended(request)
        self._diary.note(now, asked.run, WORDS[outcome], asked.peer.node)
        if waited_s and asked.since == asked.started:
            self._timing.answered(waited_s)
        if asked.live:
            self._release(asked, now)
            self._judge(asked, outcome, now)
        if outcome is Outcome.MISMATCH:
            self._blame(asked, now, out)
        self.look_at = now
        return asked.run

    def proved(self, runs: int, now: float, out: list[Command]) -> None:
        """These missing runs are about to be had: take other requests for them back."""
        self._lookout.fed(now)
        if not runs & self._mine.asked and not self._requests.probes:
            return
        for number, asked in self._requests.by_number.items():
            if asked.live and runs >> asked.run & 1:
                self._release(asked, now)
                asked.peer.excused(now)
                out.append(Cancel(number))

    def abandon(self, peer: Peer, now: float) -> None:
        """A peer is gone: its runs are free again at once, its ends are still awaited."""
        for asked in self._requests.by_number.values() if peer.asked else ():
            if asked.live and asked.peer is peer:
                self._release(asked, now)
                self._diary.note(now, asked.run, "left by", peer.node)
        peer.asked = 0
        self.look_at = now

    def _judge(self, asked: Asked, outcome: Outcome, now: float) -> None:
        """What the end of a live request says about its peer."""
        peer, counters = asked.peer, self._diary.counters
        if outcome is Outcome.DONE:
            peer.paid(self._run_bytes[asked.run], now)
            self.deliveries.delivered(peer)
            self._freed = peer
            if peer.way.measure(self._usual_bytes, self._settings.ahead_per_peer):
                self._allowance.measured()
            self._timing.took(now - asked.since, across=peer.distance > 0)
        elif outcome in {Outcome.STALLED, Outcome.MISMATCH}:
            peer.paid(0, now)
            peer.stalled(now)
            if outcome is Outcome.STALLED:
                counters.stalled += 1
                self.deliveries.failed(peer, outcome)
        else:
            peer.excused(now)
            if outcome is Outcome.BUSY:
                counters.busy += 1
                # Or it sends to us, and only keeps no place for the next run.
                if asked.since < math.inf:
                    jitter = 0.6 + 0.8 * self._dice.random()  # or all who were refused come back
                    settings = self._settings
                    pause_s, most_s = settings.busy_backoff_s, settings.busy_backoff_max_s
                    peer.busy(now, pause_s * jitter, most_s * jitter)
            elif outcome is Outcome.REFUSED:
                counters.refused += 1
                self._book.lacks(peer, 1 << asked.run)
            elif outcome is not Outcome.CANCELLED:
                peer.rest_until = now + _LOST_PAUSE_S
                self.deliveries.failed(peer, outcome)

    def _blame(self, asked: Asked, now: float, out: list[Command]) -> None:
        self._diary.counters.mismatched += 1
        node = asked.peer.node
        if node in self._book.barred:
            return
        current = self._book.peers.get(node)
        self._book.bar(node, asked.run)
        if current is not None:
            self.abandon(current, now)
        out.append(Blame(node, asked.run))

    def _release(self, asked: Asked, now: float) -> None:
        self._requests.release(asked, now, self._timing.trip_s)

    # -- what to do -------------------------------------------------------------------------

    def offer(self, peer: Peer, news: int, now: float, out: list[Command]) -> None:
        """One neighbour has news (bits); all others have been asked for what they can give."""
        if news & self._overdue:
            self.look_at = now
        if peer.rest_until > now:
            self.look_at = min(self.look_at, peer.rest_until)
            return
        self._fill(peer, now, out)

    def has_room(self, peer: Peer, now: float) -> None:
        """A neighbour that was BUSY has a slot free, and has told us first."""
        if not peer.has_room(now):
            return
        self.look_at = min(self.look_at, peer.rest_until)
        if peer.rest_until <= now:
            self._freed = peer

    def _fill(self, peer: Peer, now: float, out: list[Command]) -> None:
        """Ask this neighbour for as much as it may owe us."""
        limit = 1 if peer.slow else self._allowance.per_peer + peer.ahead
        while peer.asked < limit and self._allowance.may_ask(far=peer.distance > 0):
            run = self._run_from(peer, self._book.reach)
            if run < 0:
                return
            self._ask(peer, run, now, out)

    def act(self, now: float, out: list[Command]) -> None:
        """Ask until nothing is left to ask for or every neighbour owes us enough."""
        self.look_at = self._lookout.look(self._requests.by_number.values(), now)
        if now >= self._review_at:
            self._review_at = now + _REVIEW_S
            self._book.review(now)
            self.tempo.look((self._mine.have | self._book.rarity.held).bit_count(), now)
            self._timing.review()
            self._allowance.review()
        self._stay(now, out)
        self._follow(now, out)
        while self._allowance.may_ask(far=False):
            peer, retry_at = self._whom_to_ask(now)
            if peer is None:
                self.look_at = min(self.look_at, retry_at)
                return
            self._ask(peer, self._run_from(peer, self._reach), now, out)

    def _stay(self, now: float, out: list[Command]) -> None:
        """Ask who has just sent us a run for the next one, whatever the others' loads are.

        Its slot is free, and only we know it. Whoever asks where the load was least a moment ago
        meets all the others there who heard the same, and leaves this slot empty (decision 0022).
        """
        peer, self._freed = self._freed, None
        if peer is None or peer.slow or peer.rest_until > now:
            return
        if self._allowance.brings_first(peer):
            self._fill(peer, now, out)

    def _follow(self, now: float, out: list[Command]) -> None:
        """Ask who is about to end a run for the next one, so that its slot doesn't stand empty meanwhile.

        Not sooner than that: what was asked for is not to be had from anybody else, and the rarest
        run of now is not the rarest of later (decision 0024).
        """
        if self._allowance.full:
            return
        lead_s = _LEAD * self._timing.trip_s
        for asked in list(self._requests.by_number.values()):
            peer = asked.peer
            if asked.followed or not asked.live or peer.asked != 1 or peer.slow or peer.ahead:
                continue
            due = asked.since + self._timing.typical_s(across=peer.distance > 0) - lead_s
            if now < due:
                self.look_at = min(self.look_at, due)
                continue
            ready = peer.rest_until <= now and self._allowance.brings_first(peer)
            run = self._run_from(peer, self._book.reach) if ready else -1
            if run >= 0:
                asked.followed = True
                self._ask(peer, run, now, out, behind=True)

    def duplicate(self, readings: Iterable[Reading], now: float, out: list[Command]) -> None:
        """There is room and nothing new to ask for: ask again for what takes far too long.

        Args:
            readings: our own reads of the origin; one that drags on can have a twin too.
            now: seconds.
            out: commands are added here.
        """
        self._overdue = 0
        # Not the endgame: what is missing will come into reach soon.
        times = 2 if self._mine.free else 1
        slow_ones: list[Asked | Reading] = [*self._requests.by_number.values()]
        if self._mine.fetching & self._book.rarity.held:
            slow_ones += readings
        for one in slow_ones:
            if not self._allowance.may_ask(far=True):
                return
            first = one.peer if isinstance(one, Asked) else None
            if not one.live or one.twin or (first and not first.delivers):
                continue  # what who doesn't deliver was asked for is free for all others
            since = one.since if isinstance(one, Asked) else one.started
            limit_s = times * self._patience_s(first)
            if now < since + limit_s:
                self.look_at = min(self.look_at, since + limit_s)
                continue
            others = [p for p in self._book.peers.values() if p is not first and not p.slow]
            # By then any of them will do, wherever it is; what is slow across a boundary is mostly the boundary.
            # (Of ten twins that bridges asked for there sooner, seven came after the first or with it.)
            far = now >= since + 2 * limit_s
            peer, retry_at = piece_picker.choose_peer(
                others,
                1 << one.run,
                now,
                self._allowance.per_peer,
                self._dice,
                EVERYWHERE if far else WITHIN,
            )
            if peer is None:
                self.look_at = min(self.look_at, retry_at)
                if self._book.bounded and not far:
                    self.look_at = min(self.look_at, since + 2 * limit_s)
                self._overdue |= 1 << one.run
                continue
            one.twin = True
            self._diary.counters.duplicates += 1
            self._ask(peer, one.run, now, out, twin=True)

    def _patience_s(self, peer: Peer | None) -> float:
        """How long a request to this peer, or to the origin, may take in the endgame before it gets a twin."""
        settings = self._settings
        typical_s = self._timing.typical_s(across=peer is not None and peer.distance > 0)
        return max(settings.duplicate_min_s, settings.duplicate_after * typical_s)

    @property
    def idle(self) -> bool:
        """There is room for more requests (after `act`: and nothing new to ask for)."""
        return self._allowance.may_ask(far=True) and bool(self._mine.needed)

    def views(self, now: float) -> Iterator[InFlight]:
        """The live requests, the oldest first, for people."""
        return self._requests.views(now)

    def check(self) -> None:
        """Assert the invariants."""
        self._requests.check(self._book.peers)
        self.deliveries.check()

    def _whom_to_ask(self, now: float) -> piece_picker.Choice:
        book, free = self._book, self._mine.free
        peers = book.peers.values()
        reach = self._reach
        # Then what our rack waits for us to bring: it can't be had from the others, who have the rest.
        for first in (free & self._mine.demanded, free & book.duty):
            if first:
                choice = piece_picker.choose_peer(
                    peers, first, now, self._allowance.per_peer, self._dice, reach
                )  # fmt: skip
                if choice.peer is not None:
                    return choice
        return piece_picker.choose_peer(
            peers, free, now, self._allowance.per_peer, self._dice, reach
        )

    @property
    def _reach(self) -> Reach:
        """What may be asked for now: beyond a boundary only while there is a place for it."""
        return self._book.reach if self._allowance.may_ask(far=True) else WITHIN

    def _run_from(self, peer: Peer, reach: Reach) -> int:
        """The run to ask this neighbour for, of those in reach; -1: none."""
        offered = piece_picker.offered_by(peer, self._book.peers.values(), reach)
        window = self._mine.window(self._settings.window_runs)
        offered &= self._mine.free
        return piece_picker.choose_run(self._mine, offered, self._book.scarcity, window, self._dice)

    def _ask(
        self, peer: Peer, run: int, now: float, out: list[Command],
        *, twin: bool = False, behind: bool = False,
    ) -> None:  # fmt: skip
        number = self._requests.sent(peer, run, now, behind=behind, twin=twin)
        self.look_at = min(self.look_at, now + self._patience_s(peer))
        peer.owes(now)
        self._diary.counters.requests += 1
        self._diary.note(now, run, "asked of", peer.node)
        turn = Turn.URGENT if peer.distance > 0 or self._allowance.shut_out else Turn.USUAL
        out.append(Request(number, peer.node, run, turn))
