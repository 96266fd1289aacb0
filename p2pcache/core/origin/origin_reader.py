"""What one node reads from the origin for one swarm: its leases and its reads in flight."""

import math

from p2pcache.core import bitset
from p2pcache.core.origin.isolation import Isolation
from p2pcache.core.origin.readings import Readings, joined
from p2pcache.core.origin.request_concurrency import RequestConcurrency
from p2pcache.core.origin.settings import (
    FIRST_READS,
    JOIN_BYTES,
    MIN_READ_S,
    MIN_SHARE,
    MORE_PER_READ,
    MOST_TIMES,
)  # fmt: skip
from p2pcache.core.origin.without_tracker import WithoutTracker
from p2pcache.core.protocol.messages import MAX_REPORTED
from p2pcache.core.swarm.commands import (
    ALL,
    CancelFetch,
    Command,
    CutOff,
    Fetch,
    LeaseCredit,
    LeaseReport,
    OriginCorrupt,
)  # fmt: skip
from p2pcache.core.swarm.counters import WORDS
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm_context import SwarmContext
from p2pcache.ids import NodeId, RunIndex, RunSet


class OriginReader:
    """Decides what this node reads from the origin: only runs that it was granted or owns.

    Invariants (`check`): `mine.fetching` is exactly the runs of the live `readings`, `waiting` has exactly the leased
    runs that aren't read, the oldest first.
    """

    def __init__(self, context: SwarmContext, by_itself: WithoutTracker, now: float) -> None:
        """Nothing is leased, and nothing is read."""
        settings = context.settings
        usual = settings.origin_fetches
        self._concurrency = RequestConcurrency(usual, usual + settings.origin_ahead)
        self._mine = context.states
        self._book = context.book
        self._settings = settings
        self._counters = context.counters
        self._log = context.log
        self._by_itself = by_itself
        self._isolation = Isolation(context, now)
        self.readings = Readings()
        largest = max(context.run_bytes, default=1)
        self._most_joined = max(1, JOIN_BYTES // largest)
        self.waiting: dict[RunIndex, float] = {}  # leased runs that aren't read yet, and since when
        self._way_known = False  # whether a read has told how long it waited
        self._in_hand = FIRST_READS  # leases at once that this node is known to be able to work on
        self._told_credit = LeaseCredit(0)
        self._told_urgent: RunSet = 0  # urgent runs that the tracker has heard of
        self._urgent_at = -math.inf  # when it was told last
        self._report = LeaseReport()
        self._mismatched_once: RunSet = 0
        self._rotten: RunSet = 0  # runs of which the origin has wrong bytes
        self.halted = not usual  # the setting says that nothing is read

    # -- what happened ----------------------------------------------------------------------

    def on_tracker_up(self, now: float) -> None:
        """The tracker is back and grants leases again; reads in flight become leases."""
        self._by_itself.on_tracker_up(now)
        self._told_credit = LeaseCredit(0)  # say it again: a tracker that restarted knows nothing
        self._told_urgent = 0
        if not self._by_itself.is_cut_off:
            self._mine.leased |= self._mine.fetching

    def on_peer_joined(self, node: NodeId) -> None:
        """A member is connected; it is a neighbour unless it is banned."""
        self._by_itself.owners.on_peer_joined(node)
        if self._book.peers:
            self._isolation.restart(math.inf)
            self._end_cut_off()

    def on_peer_left(self, now: float) -> None:
        """A neighbour's connection broke."""
        self._by_itself.owners.on_peer_left()
        self.on_perhaps_alone(now)

    def on_peer_banned(self, node: NodeId, now: float) -> None:
        """A neighbour sent wrong bytes and is no neighbour any more."""
        self._by_itself.owners.on_peer_failed(node)
        self.on_perhaps_alone(now)

    def on_dial_failed(self, node: NodeId, now: float) -> None:
        """A member couldn't be reached."""
        self._isolation.on_dial_failed(node)
        self._by_itself.owners.on_peer_failed(node)
        self._by_itself.replan(now)

    def on_perhaps_alone(self, now: float) -> None:
        """There may be no neighbour any more, or from now on it matters that there is none."""
        if not self._book.peers:
            self._isolation.restart(now)
        self._by_itself.replan(now)

    def probe_isolation(self, now: float, out: list[Command]) -> None:
        """There is no neighbour and nothing to read: dial members, to find out whether this node reaches any."""
        if not self._by_itself.tracker_up and not self._by_itself.alone(now):
            return
        dials = self._isolation.probe(self._by_itself.owners.members, now)
        if dials is not None:
            out += dials
        elif not self._by_itself.is_cut_off:
            self._by_itself.on_cut_off(now)
            out.append(CutOff())

    def on_granted(self, runs: RunSet, now: float) -> None:
        """The tracker granted these runs."""
        mine = self._mine
        runs &= mine.full
        self._report.done |= runs & mine.have
        self._report.returned |= runs & mine.missing & ~mine.wanted
        fresh = runs & mine.needed & ~mine.leased
        if self.halted:
            self._report.failed |= fresh
            return
        mine.leased |= fresh
        self.waiting.update(dict.fromkeys(bitset.members(fresh & ~mine.fetching), now))

    def on_revoked(self, runs: RunSet, out: list[Command]) -> None:
        """The tracker takes leases back: other nodes have the runs."""
        runs &= self._mine.leased
        self._end_leases(runs)
        self._cancel(runs & self._mine.fetching, out)

    def return_unwanted(self) -> None:
        """This node wants fewer runs: give back leases that wait. Reads in flight go on, since others want them."""
        runs = self._unread & ~self._mine.wanted
        self._end_leases(runs)
        self._report.returned |= runs

    def on_proved(self, runs: RunSet, out: list[Command]) -> None:
        """These missing runs are proved: report their leases as done and stop reading them."""
        self._report.done |= runs & self._mine.leased
        self._end_leases(runs)
        self._cancel(runs & self._mine.fetching, out)

    def on_fetch_ended(
        self, fetch: int, outcome: Outcome, now: float, out: list[Command], flow_s: float = 0.0
    ) -> RunIndex:
        """A `Fetch` ended; returns its run, which the caller marks as proved if the outcome is DONE.

        Its bytes flowed for `flow_s`; 0: that isn't known. Raises `LocalProtocolError` if no such fetch is in flight.
        """
        reading, request_done = self.readings.end_reading(fetch)
        if request_done or outcome is not Outcome.DONE:
            self._by_itself.replan(now)
        bit = 1 << reading.run
        self._log.note(now, reading.run, f"origin: {WORDS[outcome]}")
        if outcome is Outcome.DONE:
            took_s = now - reading.started
            self._on_own_read(took_s, flow_s)
            self._by_itself.on_read_done(took_s / (reading.place + 1))
            if self._by_itself.governs and request_done:
                runs, under_way = reading.place + 1, self.readings.requests + 1
                self._concurrency.on_done(took_s, under_way, flow_s, runs, now)
            if self._by_itself.tracker_up or self._mine.leased & bit:
                self._report.done |= bit
                self._report.flow_s = flow_s
        elif outcome is Outcome.MISMATCH:
            self._mismatched(reading.run, out)
        if not reading.live:
            return reading.run
        self._mine.fetching &= ~bit
        leased = self._mine.leased & bit
        self._mine.leased &= ~bit
        if outcome is Outcome.CANCELLED:
            self._report.returned |= leased
        elif outcome is not Outcome.DONE:
            if outcome is not Outcome.MISMATCH:
                self._report.failed |= leased
            self._by_itself.on_read_failed(reading.started, now)
        return reading.run

    def halt(self, out: list[Command]) -> None:
        """This node has no space left: give every lease back and read nothing."""
        self.halted = True
        self._report.failed |= self._unread
        self._end_leases(self._unread)
        self._cancel(self._mine.fetching, out)

    # -- decisions --------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Leases that this node can work on at once. The tracker decides how many of them it grants."""
        if self.halted or not self._mine.needed:
            return 0
        return min(self._in_hand, self._concurrency.most)

    @property
    def heeds_haves(self) -> bool:
        """Whether a neighbour's new runs can change what `act` does."""
        return not self._by_itself.tracker_up or bool(self.waiting or self._mine.urgent)

    def act(self, now: float, quiet_s: float, out: list[Command]) -> None:
        """Start the reads that are allowed, and report to the tracker.

        For `quiet_s` no new run has come to this node or its neighbours.
        """
        if self.waiting:
            self._read_leased(now, out)
        if not self._mine.needed:
            self._end_cut_off()
        if self._by_itself.governs and self._mine.needed and not self.halted:
            self._read_owned(now, quiet_s, out)
        mine, report = self._mine, self._report
        if self._by_itself.tracker_up and mine.urgent:
            self._report_urgent(now)
        # Called for every have batch of every neighbour, so no objects are made just to compare.
        if report.done or report.returned or report.urgent or report.failed or report.mismatched:
            self._report = LeaseReport()
            if self._by_itself.tracker_up:
                out.append(report)
        if self._by_itself.tracker_up:
            credit, wanted = self.credit, ALL if mine.wanted == mine.full else mine.wanted
            if credit != self._told_credit.credit or wanted != self._told_credit.wanted:
                self._told_credit = LeaseCredit(credit, wanted)
                out.append(self._told_credit)

    def next_wakeup(self) -> float:
        """When `act` has something to do though nothing happens, in seconds; inf: never."""
        wake = math.inf
        if self.waiting and self.readings.requests < self._concurrency.most:
            wake = next(iter(self.waiting.values())) + self._settings.stuck_after_s
        if self._by_itself.tracker_up and self._mine.urgent and self._untold:
            wake = min(wake, self._urgent_at + self._settings.have_interval_s)
        if self._by_itself.governs and self._mine.needed and not self.halted:
            deadline = self._by_itself.deadline()
            if deadline < wake:  # else the limit, which takes longer to find, doesn't matter
                full = self._by_itself.is_sole and self.readings.requests >= self._most_requests
                wake = wake if full else deadline
        return wake

    def check(self) -> None:
        """Assert the invariants."""
        self.readings.check(self._mine.fetching, max(self._concurrency.most, MIN_SHARE))
        assert self.waiting.keys() == set(bitset.members(self._unread))
        assert list(self.waiting.values()) == sorted(self.waiting.values())

    # -- within -----------------------------------------------------------------------------

    def _on_own_read(self, took_s: float, flow_s: float) -> None:
        """The first read tells how many flow while one waits; each read tells that this node keeps up."""
        if flow_s > 0 and not self._way_known:
            self._way_known = True
            self._in_hand += round(MOST_TIMES * max(0.0, took_s - flow_s) / max(flow_s, MIN_READ_S))
        self._in_hand += MORE_PER_READ

    def _end_cut_off(self) -> None:
        """There is a neighbour, or nothing is needed: reads in flight become leases."""
        if self._by_itself.is_cut_off:
            self._by_itself.is_cut_off = False
            if self._by_itself.tracker_up:
                self._mine.leased |= self._mine.fetching

    @property
    def _unread(self) -> RunSet:
        """Leased runs that aren't read yet."""
        return self._mine.leased & ~self._mine.fetching

    @property
    def _untold(self) -> RunSet:
        """Urgent runs that no neighbour has and that the tracker hasn't heard of."""
        urgent = self._mine.urgent & ~self._told_urgent
        return urgent & ~self._book.rarity.held if urgent else 0

    def _report_urgent(self, now: float) -> None:
        due = now >= self._urgent_at + self._settings.have_interval_s
        if due and (untold := self._untold):
            self._urgent_at = now
            fresh = bitset.lowest(untold, MAX_REPORTED)
            self._told_urgent |= fresh
            self._report.urgent |= fresh

    def _read_leased(self, now: float, out: list[Command]) -> None:
        # A run that a good neighbour has by now is requested from it. The node keeps the lease meanwhile, so that
        # the tracker grants the run to nobody else, and reads the run if the neighbour doesn't deliver.
        elsewhere = self._book.rarity.held
        patience_s = self._settings.stuck_after_s
        for run in self._mine.in_order(self._unread):
            if self.readings.requests >= self._concurrency.most:
                return
            if not elsewhere >> run & 1 or now >= self.waiting[run] + patience_s:
                self._fetch(run, now, out)

    def _read_owned(self, now: float, quiet_s: float, out: list[Command]) -> None:
        if not self._by_itself.due(now):
            return
        if self._by_itself.is_sole:
            self._read_joined(now, out)
            return
        plan = self._by_itself.plan(self._rotten, quiet_s, now)
        out += plan.dial
        for run in plan.read[: max(0, self._most_requests - self.readings.requests)]:
            self._fetch(run, now, out)

    @property
    def _most_requests(self) -> int:
        """How many requests may be under way without leases."""
        limit = self._concurrency.limit(self._length)
        return self._by_itself.max_reads(limit, self._concurrency.most)

    @property
    def _length(self) -> int:
        """Runs of one request: several where nobody else reads."""
        if not self._by_itself.is_sole:
            return 1
        missing = (self._mine.needed & ~self._mine.fetching).bit_count()
        return min(self._most_joined, self._concurrency.length(missing))

    def _read_joined(self, now: float, out: list[Command]) -> None:
        """Nobody else reads: join consecutive runs in one request."""
        if (free := self._most_requests - self.readings.requests) <= 0:
            return
        length = self._length
        runs = self._by_itself.plan_sole(self._rotten, free * length, now)
        for run, place in joined(runs, length, free):
            self._fetch(run, now, out, place=place)

    def _fetch(self, run: RunIndex, now: float, out: list[Command], *, place: int = 0) -> None:
        self.waiting.pop(run, None)
        number = self.readings.begin_reading(run, place, now)
        self._mine.fetching |= 1 << run
        self._counters.fetches += 1
        self._log.note(now, run, "origin: reading")
        out.append(Fetch(number, run, joined=place > 0))

    def _end_leases(self, runs: RunSet) -> None:
        for run in bitset.members(self._mine.leased & runs):
            self.waiting.pop(run, None)
        self._mine.leased &= ~runs

    def _cancel(self, runs: RunSet, out: list[Command]) -> None:
        if not runs:
            return
        out += [CancelFetch(number) for number in self.readings.cancel_runs(runs)]
        self._mine.fetching &= ~runs
        self._mine.leased &= ~runs

    def _mismatched(self, run: RunIndex, out: list[Command]) -> None:
        bit = 1 << run
        self._report.mismatched |= bit
        self._counters.mismatched += 1
        # Nobody else judges the origin when nodes read without leases: its bytes are wrong if they are so twice.
        if self._mismatched_once & bit & ~self._rotten and self._by_itself.governs:
            self._rotten |= bit
            out.append(OriginCorrupt(run))
        self._mismatched_once |= bit
