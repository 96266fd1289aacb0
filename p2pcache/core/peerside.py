"""The neighbours' side of one swarm on one node: requests in flight, and whom to ask for what."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from p2pcache.core import chunkset, selection
from p2pcache.core.boundaries import EVERYWHERE, WITHIN
from p2pcache.core.commands import Blame, Cancel, Command, Request
from p2pcache.core.diary import Diary
from p2pcache.core.events import Outcome
from p2pcache.core.originside import Reading
from p2pcache.core.peers import Peer, PeerBook, median
from p2pcache.core.runbook import RunBook
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.tempo import Tempo
from p2pcache.core.view import InFlight
from p2pcache.errors import LocalProtocolError

_DURATIONS = 31  # requests over which the typical duration is the median
_FEW_PEERS = 3  # with fewer useful neighbours each may owe us more
_REVIEW_S = 0.25  # neighbours' speeds are compared so often
_CROSS_AFTER = 4.0  # typical requests that a bridge may take: it asks, and then its rack asks it
_CROSS_MAX_S = 10.0  # ... while none has ended yet, or on the slowest links
_LOST_PAUSE_S = 1.0  # a broken connection is usually followed by PeerLeft: don't ask meanwhile


@dataclass(slots=True)
class Asked:
    """One `Request` that hasn't ended."""

    peer: Peer
    run: int
    started: float
    live: bool = True  # False: cancelled or its peer is gone, only its end is awaited
    twin: bool = False  # a second request for the same run is in flight


class PeerSide:
    """Decides what is asked of whom.

    Invariants (`check`): `mine.asked` is exactly the runs of live requests; a live request's
    peer is connected, and `Peer.asked` is the number of live requests to it; a request ends
    exactly once.
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
        self._requests: dict[int, Asked] = {}  # in the order in which they were sent
        self._next_request = 1
        self._live = 0  # live requests
        self._live_bytes = 0
        self._usual_bytes = sum(run_bytes) / max(1, len(run_bytes))
        self._ahead = 0  # runs that the ways to all neighbours hold
        self._per_peer = settings.outstanding_few_peers
        # Within the rack, and across a boundary: what takes long there says nothing of a neighbour here.
        self._durations: tuple[deque[float], deque[float]] = (
            deque(maxlen=_DURATIONS),
            deque(maxlen=_DURATIONS),
        )
        self._typical_s = (math.inf, math.inf)  # median of `_durations`
        self._overdue = 0  # runs (bits) that deserve a twin, but nobody else has them
        self._freed: Peer | None = None  # whose upload to us has just ended: it has a slot free
        self.tempo = Tempo()
        self._review_at = now
        self._looked_at = now  # beyond the boundaries
        self.look_at = math.inf  # when a full look at all neighbours is due
        self.halted = False  # our own disk failed: nothing more is asked for

    # -- what happened ----------------------------------------------------------------------

    def ended(self, request: int, outcome: Outcome, now: float, out: list[Command]) -> int:
        """A `Request` ended; returns its run, which the caller proves if it is DONE.

        Raises:
            LocalProtocolError: no such request is in flight.
        """
        asked = self._requests.pop(request, None)
        if asked is None:
            raise LocalProtocolError(f"request {request} ended, but isn't in flight")
        self._diary.note(now, asked.run, outcome.name.lower(), asked.peer.node)
        if asked.live:
            self._release(asked)
            self._judge(asked, outcome, now)
        if outcome is Outcome.MISMATCH:
            self._blame(asked, now, out)
        self.look_at = now
        return asked.run

    def proved(self, runs: int, now: float, out: list[Command]) -> None:
        """These missing runs are about to be had: take other requests for them back."""
        if not runs & self._mine.asked:
            return
        for number, asked in self._requests.items():
            if asked.live and runs >> asked.run & 1:
                self._release(asked)
                asked.peer.excused(now)
                out.append(Cancel(number))

    def abandon(self, peer: Peer, now: float) -> None:
        """A peer is gone: its runs are free again at once, its ends are still awaited."""
        for asked in self._requests.values() if peer.asked else ():
            if asked.live and asked.peer is peer:
                self._release(asked)
                self._diary.note(now, asked.run, "left by", peer.node)
        peer.asked = 0
        self.look_at = now

    def _judge(self, asked: Asked, outcome: Outcome, now: float) -> None:
        """What the end of a live request says about its peer."""
        peer, counters = asked.peer, self._diary.counters
        if outcome is Outcome.DONE:
            peer.paid(self._run_bytes[asked.run], now)
            self._freed = peer
            if peer.way.measure(self._usual_bytes, self._settings.ahead_per_peer):
                self._ahead = sum(p.way.runs for p in self._book.peers.values())
            self._durations[peer.distance > 0].append(now - asked.started)
        elif outcome in {Outcome.STALLED, Outcome.MISMATCH}:
            peer.paid(0, now)
            peer.stalled(now)
            counters.stalled += outcome is Outcome.STALLED
        else:
            peer.excused(now)
            if outcome is Outcome.BUSY:
                counters.busy += 1
                jitter = (
                    0.6 + 0.8 * self._dice.random()
                )  # or all who were refused come back at once
                settings = self._settings
                pause = min(settings.busy_backoff_max_s, settings.busy_backoff_s * 2**peer.refusals)
                peer.refusals += 1
                peer.rest_until = now + pause * jitter
            elif outcome is Outcome.REFUSED:
                counters.refused += 1
                self._book.lacks(peer, 1 << asked.run)
            elif outcome is not Outcome.CANCELLED:
                peer.rest_until = now + _LOST_PAUSE_S

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

    def _release(self, asked: Asked) -> None:
        """Take a request out of the live ones; its peer's count is the caller's business."""
        asked.live = False
        self._live -= 1
        self._live_bytes -= self._run_bytes[asked.run]
        others = [a for a in self._requests.values() if a.live and a.run == asked.run]
        for other in others:
            other.twin = False  # it is alone now and may get a new twin
        if not others:
            self._mine.asked &= ~(1 << asked.run)

    # -- what to do -------------------------------------------------------------------------

    @property
    def _room(self) -> bool:
        settings = self._settings
        return (
            self._live < settings.outstanding + self._ahead
            and self._live_bytes < settings.outstanding_bytes
            and not self.halted
        )

    def offer(self, peer: Peer, news: int, now: float, out: list[Command]) -> None:
        """One neighbour has news (bits); all others have been asked for what they can give."""
        if news & self._overdue:
            self.look_at = now
        if peer.rest_until > now:
            self.look_at = min(self.look_at, peer.rest_until)
            return
        self._fill(peer, now, out)

    def _fill(self, peer: Peer, now: float, out: list[Command]) -> None:
        """Ask this neighbour for as much as it may owe us."""
        limit = 1 if peer.slow else self._per_peer + peer.way.runs
        while peer.asked < limit and self._room:
            run = self._run_from(peer)
            if run < 0:
                return
            self._ask(peer, run, now, out)

    def act(self, now: float, out: list[Command]) -> None:
        """Ask until nothing is left to ask for or every neighbour owes us enough."""
        self.look_at = self._look_beyond(now)
        if now >= self._review_at:
            self._review_at = now + _REVIEW_S
            self._book.review(now)
            self.tempo.look((self._mine.have | self._book.rarity.held).bit_count(), now)
            self._ahead = sum(p.way.runs for p in self._book.peers.values())
            near_s, far_s = map(median, self._durations)
            self._typical_s = near_s or far_s or math.inf, far_s or near_s or math.inf
        self._stay(now, out)
        settings = self._settings
        while self._room:
            peer, retry_at, useful = self._whom_to_ask(now)
            few = useful < _FEW_PEERS
            self._per_peer = (
                settings.outstanding_few_peers if few else settings.outstanding_per_peer
            )
            if peer is None:
                self.look_at = min(self.look_at, retry_at)
                return
            self._ask(peer, self._run_from(peer), now, out)

    def _stay(self, now: float, out: list[Command]) -> None:
        """Ask who has just sent us a run for the next one, whatever the others' loads are.

        Its slot is free, and only we know it. Whoever asks where the load was least a moment ago
        meets all the others there who heard the same, and leaves this slot empty (decision 0022).
        """
        peer, self._freed = self._freed, None
        if peer is None or peer.slow or peer.rest_until > now:
            return
        if self._first_from(peer):
            self._fill(peer, now, out)

    def _first_from(self, peer: Peer) -> bool:
        """Whether what has to come first can come from this neighbour, or nothing has to."""
        free = self._mine.free
        demanded = free & self._mine.demanded & self._book.rarity.held
        if demanded:
            return bool(peer.have >> chunkset.first(demanded) & 1)
        return not free & self._book.duty

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
        slow_ones: list[Asked | Reading] = [*self._requests.values()]
        if self._mine.fetching & self._book.rarity.held:
            slow_ones += readings
        for one in slow_ones:
            if not self._room:
                return
            if not one.live or one.twin:
                continue
            first = one.peer if isinstance(one, Asked) else None
            limit_s = times * self._patience_s(first)
            if now < one.started + limit_s:
                self.look_at = min(self.look_at, one.started + limit_s)
                continue
            others = [p for p in self._book.peers.values() if p is not first and not p.slow]
            # By then any of them will do, wherever it is; what is slow across a boundary is mostly the boundary.
            # (Of ten twins that bridges asked for there sooner, seven came after the first or with it.)
            far = now >= one.started + 2 * limit_s
            peer, retry_at, _ = selection.choose_peer(
                others, 1 << one.run, now, self._per_peer, self._dice, EVERYWHERE if far else WITHIN
            )
            if peer is None:
                self.look_at = min(self.look_at, retry_at)
                if self._book.bounded and not far:
                    self.look_at = min(self.look_at, one.started + 2 * limit_s)
                self._overdue |= 1 << one.run
                continue
            one.twin = True
            self._diary.counters.duplicates += 1
            self._ask(peer, one.run, now, out, twin=True)

    def _look_beyond(self, now: float) -> float:
        """See what waits beyond the boundaries, if it is time to; returns when to look again."""
        if not self._book.bounded or not self._mine.needed:
            return math.inf
        # Or one who waits for a full uplink, as all do, would seem to have forgotten it.
        pause_s = self._cross_after_s(max(self._typical_s))
        if now >= self._looked_at + pause_s:
            ages = [now - a.started for a in self._requests.values() if a.live and a.peer.distance]
            pause_s = max(pause_s, self._cross_after_s(median([*ages, *self._durations[1]])))
        if now >= self._looked_at + pause_s:
            self._looked_at = now
            self._book.look_beyond(self._mine.needed)
        # By then more may be known of how long a request takes.
        return min(self._looked_at + pause_s, now + self._settings.cross_after_s)

    def _cross_after_s(self, typical_s: float) -> float:
        """How long to look away, if a request across a boundary takes so long."""
        return min(max(self._settings.cross_after_s, _CROSS_AFTER * typical_s), _CROSS_MAX_S)

    def _patience_s(self, peer: Peer | None) -> float:
        """How long a request to this peer, or to the origin, may take in the endgame before it gets a twin."""
        settings = self._settings
        across = peer is not None and peer.distance > 0
        return max(settings.duplicate_min_s, settings.duplicate_after * self._typical_s[across])

    @property
    def idle(self) -> bool:
        """There is room for more requests (after `act`: and nothing new to ask for)."""
        return self._room and bool(self._mine.needed)

    def views(self, now: float) -> Iterator[InFlight]:
        """The live requests, the oldest first, for people."""
        for asked in self._requests.values():
            if asked.live:
                yield InFlight(asked.run, now - asked.started, asked.peer.node)

    def check(self) -> None:
        """Assert the invariants."""
        live = [a for a in self._requests.values() if a.live]
        assert len(live) == self._live
        assert sum(self._run_bytes[a.run] for a in live) == self._live_bytes
        assert chunkset.of(a.run for a in live) == self._mine.asked
        for asked in live:
            assert self._book.peers.get(asked.peer.node) is asked.peer
        for peer in self._book.peers.values():
            assert peer.asked == sum(a.peer is peer for a in live)

    def _whom_to_ask(self, now: float) -> selection.Choice:
        book, free = self._book, self._mine.free
        peers, reach = book.peers.values(), book.reach
        # Then what our rack waits for us to bring: it can't be had from the others, who have the rest.
        for first in (free & self._mine.demanded, free & book.duty):
            if first:
                choice = selection.choose_peer(
                    peers, first, now, self._per_peer, self._dice, reach
                )  # fmt: skip
                if choice.peer is not None:
                    return choice
        return selection.choose_peer(peers, free, now, self._per_peer, self._dice, reach)

    def _run_from(self, peer: Peer) -> int:
        offered = selection.offered_by(peer, self._book.peers.values(), self._book.reach)
        window = self._mine.window(self._settings.window_runs)
        return selection.choose_run(self._mine, offered, self._book.scarcity, window, self._dice)

    def _ask(
        self, peer: Peer, run: int, now: float, out: list[Command], *, twin: bool = False
    ) -> None:
        number = self._next_request
        self._next_request += 1
        self._requests[number] = Asked(peer, run, now, twin=twin)
        self._mine.asked |= 1 << run
        self._live += 1
        self._live_bytes += self._run_bytes[run]
        self.look_at = min(self.look_at, now + self._patience_s(peer))
        peer.owes(now)
        self._diary.counters.requests += 1
        self._diary.note(now, run, "asked of", peer.node)
        out.append(Request(number, peer.node, run, peer.distance > 0))
