"""The origin's side of one swarm on one node: leases, reads in flight, and life without a tracker."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from p2pcache.core import chunkset
from p2pcache.core.commands import (
    ALL,
    CancelFetch,
    Command,
    Dial,
    Fetch,
    LeaseCredit,
    LeaseReport,
    OriginCorrupt,
)  # fmt: skip
from p2pcache.core.depth import Depth
from p2pcache.core.diary import WORDS, Diary
from p2pcache.core.events import Outcome
from p2pcache.core.owners import LEASED, LEAST_AHEAD, LOOK_AHEAD, Owners, patience
from p2pcache.core.peers import PeerBook
from p2pcache.core.runbook import RunBook
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.tempo import Tempo
from p2pcache.core.view import InFlight
from p2pcache.errors import LocalProtocolError

# A storm's first agent is alone for an instant: with its full credit it would take all leases and
# then be the only uploader (0.92 of the bound with 2 and 0.90 with 8 at 16 nodes, 256 runs).
_FIRST_CREDIT = 2
_MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Leases go out in file order: what lies so far above all that we know of when the tracker dies was leased to nobody.
# 16 are in flight (128 far from storage, but some above most of those have ended), as many more may be read unheard.
_BEYOND_LEASES = 48
_SPREAD = 32  # runs by which two nodes' knowledge differs at that moment
_RETURN_S = 0.5  # for a broken connection to be made again before the owners begin
_CORRUPT_AFTER = 2  # mismatches of our own reads that convict the origin
_DEMANDED_AT_ONCE = 64  # runs in one report: a loader waits for a tensor or two at a time
_REST_S = 1.0  # after a failed read without a tracker; doubled each time
_REST_MAX_S = 30.0


@dataclass(slots=True)
class Reading:
    """One `Fetch` that hasn't ended."""

    run: int
    started: float
    live: bool = True  # False: cancelled, only its end is awaited
    twin: bool = False  # a neighbour was asked for the run as well, because this takes long


class OriginSide:
    """Decides what this node reads from the origin.

    Invariants (`check`): `mine.fetching` is exactly the runs of the live `readings`; `waiting`
    is exactly the leased runs that aren't being fetched; without a grant or an ownership
    nothing is read.
    """

    def __init__(
        self, node: int, run_bytes: Sequence[int], mine: RunBook, book: PeerBook,
        settings: SwarmSettings, dice: Random, diary: Diary, tempo: Tempo, *, tracker: bool, now: float,
    ) -> None:  # fmt: skip
        self._depth = Depth(run_bytes, settings, now)
        self._mine = mine
        self._book = book
        self._settings = settings
        self._dice = dice
        self._diary = diary
        self._tempo = tempo
        self._up = False
        self._down_since = now if tracker else -math.inf
        self._met = False  # the tracker that is gone was ours: we know about what it had granted
        self._return_s = 0.0  # how long we wait for it to come back
        self._unleased = 0  # runs (bits) that it can't have granted to anybody
        self.owners = Owners(node, settings)
        if not tracker:
            self.owners.told((node,))
        self.readings: dict[int, Reading] = {}
        self.waiting: dict[int, float] = {}  # leased run -> since when it waits to be read
        self._next_fetch = 1
        self._reads_done = 0
        self._credit_told = LeaseCredit(0)
        self._demand_told = 0  # demanded runs (bits) that the tracker has heard of
        self._demand_at = -math.inf  # when it was told last
        self._report = LeaseReport()
        self._mismatches: dict[int, int] = {}
        self._rotten = 0  # runs that the origin has wrong (bits)
        self._failures = 0  # in a row, without a tracker
        self._rest_until = now
        self._rested_at = -math.inf  # when the last rest began
        self._looked = now  # when we last looked at the runs that nobody has
        self._look_at = now  # ... and when to look again
        self.halted = False

    # -- what happened ----------------------------------------------------------------------

    def tracker_up(self) -> None:
        """The tracker is back: leases are its business again; reads in flight become leases."""
        self._up = True
        self._credit_told = LeaseCredit(0)  # say it again: a tracker that restarted knows nothing
        self._demand_told = 0
        self._mine.leased |= self._mine.fetching

    def tracker_down(self, now: float) -> None:
        """The tracker is gone; leases stay ours."""
        if self._up:
            self._up = False
            self._down_since = self._look_at = now
            self._met = True
            self._tempo.lost()
            self._return_s = _RETURN_S * (1 + self._dice.random() / 2)
            mine = self._mine
            known = mine.have | mine.leased | self._book.rarity.held
            self._unleased = mine.full & ~chunkset.full(known.bit_length() + _BEYOND_LEASES)

    def granted(self, runs: int, now: float) -> None:
        """The tracker lets us read these runs."""
        mine = self._mine
        runs &= mine.full
        self._report.done |= runs & mine.have
        self._report.returned |= runs & mine.missing & ~mine.wanted
        fresh = runs & mine.needed & ~mine.leased
        if self.halted:
            self._report.failed |= fresh
            return
        mine.leased |= fresh
        for run in chunkset.members(fresh & ~mine.fetching):
            self.waiting[run] = now

    def revoked(self, runs: int, out: list[Command]) -> None:
        """The tracker takes leases back: others have the runs."""
        mine = self._mine
        runs &= mine.leased
        mine.leased &= ~runs
        for run in chunkset.members(runs & ~mine.fetching):
            del self.waiting[run]
        self._cancel(runs & mine.fetching, out)

    def unwanted(self) -> None:
        """The wish narrowed: leases that wait go back (reads in flight go on: others want them)."""
        mine = self._mine
        runs = chunkset.of(self.waiting) & ~mine.wanted
        mine.leased &= ~runs
        self._report.returned |= runs
        for run in chunkset.members(runs):
            del self.waiting[run]

    def proved(self, runs: int, out: list[Command]) -> None:
        """These missing runs are about to be had: settle their leases, stop reading them."""
        leased = runs & self._mine.leased
        self._report.done |= leased
        for run in chunkset.members(leased & ~self._mine.fetching):
            del self.waiting[run]
        self._cancel(runs & self._mine.fetching, out)

    def ended(
        self, fetch: int, outcome: Outcome, now: float, out: list[Command], waited_s: float = 0.0
    ) -> int:
        """A `Fetch` ended; returns its run, which the caller proves if it is DONE.

        Args:
            fetch: which one.
            outcome: how.
            now: seconds.
            out: commands are added here.
            waited_s: for its first byte; 0: not known.

        Raises:
            LocalProtocolError: no such fetch is in flight.
        """
        reading = self.readings.pop(fetch, None)
        if reading is None:
            raise LocalProtocolError(f"fetch {fetch} ended, but isn't in flight")
        bit = 1 << reading.run
        self._depth.answered(waited_s, alone=not self._book.peers)
        self._diary.note(now, reading.run, f"origin: {WORDS[outcome]}")
        if outcome is Outcome.DONE:
            self._failures = 0
            self._reads_done += 1
            self._depth.read(reading.run, now)
            if self._up or self._mine.leased & bit:
                self._report.done |= bit
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
            if not self._up:
                self._rest(reading, now)
        return reading.run

    def halt(self, out: list[Command]) -> None:
        """This node can't store any more: give every lease back and read nothing."""
        self.halted = True
        self._report.failed |= chunkset.of(self.waiting)
        self._mine.leased &= self._mine.fetching
        self.waiting.clear()
        self._cancel(self._mine.fetching, out)

    def look_again(self, now: float) -> None:
        """Something changed that matters to what we may read by ourselves."""
        self._look_at = now

    def look_soon(self) -> None:
        """A neighbour has more: look again, but not for every batch that comes in."""
        soon = self._looked + self._settings.have_interval_s
        if soon < self._look_at:
            self._look_at = soon

    # -- what to do -------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Leases that we can work on at once."""
        if self.halted or not self._mine.needed:
            return 0
        usual = min(self._settings.origin_fetches, _FIRST_CREDIT + self._reads_done)
        return usual + self._depth.ahead

    def alone(self, now: float) -> bool:
        """Whether we decide ourselves what to read, without a tracker."""
        return not self._up and now >= self._alone_at()

    @property
    def listens(self) -> bool:
        """Whether what a neighbour has can change what `act` does."""
        return not self._up or bool(self.waiting) or bool(self._mine.demanded)

    def act(self, now: float, quiet_s: float, out: list[Command]) -> None:
        """Start what may be read, and tell the tracker what there is to tell."""
        if self.waiting:
            self._read_leased(now, out)
        if not self._up and self._mine.needed and not self.halted:
            self._read_owned(now, quiet_s, out)
        mine, report = self._mine, self._report
        if self._up and mine.demanded:
            self._tell_demand(now)
        # Every have-delta of every neighbour comes by here: no objects are made just to compare.
        if report.done or report.returned or report.demanded or report.failed or report.mismatched:
            self._report = LeaseReport()
            if self._up:
                out.append(report)
        if self._up:
            credit, wanted = self.credit, ALL if mine.wanted == mine.full else mine.wanted
            if credit != self._credit_told.credit or wanted != self._credit_told.wanted:
                self._credit_told = LeaseCredit(credit, wanted)
                out.append(self._credit_told)

    def next_wakeup(self) -> float:
        """When `act` has something to do by itself; inf if never."""
        wake = math.inf
        if self.waiting and len(self.readings) < self._depth.reads:
            wake = min(self.waiting.values()) + self._settings.stuck_after_s
        if self._up and self._mine.demanded and self._untold:
            wake = min(wake, self._demand_at + self._settings.have_interval_s)
        if not self._up and self._mine.needed and not self.halted:
            wake = min(wake, max(self._alone_at(), self._look_at, self._rest_until))
        return wake

    def views(self, now: float) -> Iterator[InFlight]:
        """The live reads, the oldest first, for people."""
        for reading in self.readings.values():
            if reading.live:
                yield InFlight(reading.run, now - reading.started)

    def check(self) -> None:
        """Assert the invariants."""
        mine = self._mine
        live = [r.run for r in self.readings.values() if r.live]
        assert len(live) == len(set(live)), "a run is read twice at once"
        assert chunkset.of(live) == mine.fetching
        assert chunkset.of(self.waiting) == mine.leased & ~mine.fetching
        assert len(live) <= max(self._depth.most, _MIN_SHARE)

    # -- within -----------------------------------------------------------------------------

    def _alone_at(self) -> float:
        """When we may read what nobody else can be reading."""
        return self._down_since + self._return_s if self._met else self._over_at()

    def _over_at(self) -> float:
        """When what the tracker granted was read, or won't be."""
        if self._met:  # our neighbours have told us what came of it
            return self._down_since + self._patience_s(LEASED, self._down_since)
        return self._down_since + self._settings.lease_ttl_s + self._settings.fallback_grace_s

    def _patience_s(self, reads: int, now: float) -> float:
        tempo_s = self._tempo.least_s if self._reads_done else self._tempo.at_least_s(now)
        return patience(self._settings, reads, tempo_s)

    @property
    def _untold(self) -> int:
        """Demanded runs that no neighbour has and that the tracker hasn't heard of."""
        demanded = self._mine.demanded & ~self._demand_told
        return demanded & ~self._book.rarity.held if demanded else 0

    def _tell_demand(self, now: float) -> None:
        due = now >= self._demand_at + self._settings.have_interval_s
        if due and (untold := self._untold):
            self._demand_at = now
            fresh = chunkset.lowest(untold, _DEMANDED_AT_ONCE)
            self._demand_told |= fresh
            self._report.demanded |= fresh

    def _read_leased(self, now: float, out: list[Command]) -> None:
        # A run that a good neighbour has by now is asked of it; its lease is held meanwhile, so
        # that the tracker grants it to nobody else, and used if the neighbour doesn't deliver.
        elsewhere = self._book.good_holders()
        patience_s = self._settings.stuck_after_s
        for run in self._in_order(chunkset.of(self.waiting)):
            if len(self.readings) >= self._depth.reads:
                return
            if elsewhere >> run & 1 and now < self.waiting[run] + patience_s:
                continue
            del self.waiting[run]
            self._fetch(run, now, out)

    def _read_owned(self, now: float, quiet_s: float, out: list[Command]) -> None:
        if not self.alone(now) or now < max(self._look_at, self._rest_until):
            return
        runs = list(self._in_order(self._nearest(now)))
        quiet_s = min(quiet_s, now - self._alone_at())
        peers, patience_s = self._book.peers, self._patience_s(len(runs), now)
        plan = self.owners.plan(runs, peers, quiet_s, now, patience_s)
        out += [Dial(node) for node in plan.dial]
        room = max(_MIN_SHARE, self._depth.reads // max(1, self.owners.share))
        for run in plan.read[: max(0, room - len(self.readings))]:
            self._fetch(run, now, out)
        self._looked = now
        self._look_at = plan.wake_at if plan.wake_at > now else math.inf
        if now < self._over_at() < self._look_at:
            self._look_at = self._over_at()

    def _nearest(self, now: float) -> int:
        """The runs (bits) that an owner should read next."""
        mine = self._mine
        busy = mine.asked | mine.fetching | mine.leased | self._rotten
        orphans = ahead = mine.needed & ~busy & ~self._book.rarity.held
        if now < self._over_at():
            # Another owner may have heard of a few runs more and leaves alone what is free for us:
            # those must not take all places.
            orphans &= self._unleased
            ahead = orphans & self._unleased << _SPREAD or orphans
        disputed = orphans & ~ahead
        places = max(LEAST_AHEAD, LOOK_AHEAD - disputed.bit_count())
        return disputed | chunkset.lowest(ahead, places) | orphans & mine.demanded

    def _in_order(self, runs: int) -> Iterator[int]:
        yield from chunkset.members(runs & self._mine.demanded)
        yield from chunkset.members(runs & ~self._mine.demanded)

    def _fetch(self, run: int, now: float, out: list[Command]) -> None:
        if not self.readings:
            self._depth.idle_until(now)
        number = self._next_fetch
        self._next_fetch += 1
        self.readings[number] = Reading(run, now)
        self._mine.fetching |= 1 << run
        self._diary.counters.fetches += 1
        self._diary.note(now, run, "origin: reading")
        out.append(Fetch(number, run))

    def _cancel(self, runs: int, out: list[Command]) -> None:
        if not runs:
            return
        for number, reading in self.readings.items():
            if reading.live and runs >> reading.run & 1:
                reading.live = False
                out.append(CancelFetch(number))
        self._mine.fetching &= ~runs
        self._mine.leased &= ~runs

    def _mismatched(self, run: int, out: list[Command]) -> None:
        self._report.mismatched |= 1 << run
        self._diary.counters.mismatched += 1
        count = self._mismatches[run] = self._mismatches.get(run, 0) + 1
        if count == _CORRUPT_AFTER and not self._up:
            self._rotten |= 1 << run
            out.append(OriginCorrupt(run))

    def _rest(self, reading: Reading, now: float) -> None:
        if reading.started <= self._rested_at:
            return  # reads in flight together see one failure together: it counts once
        self._rested_at = now
        pause = min(_REST_MAX_S, _REST_S * 2**self._failures)
        self._failures += 1
        self._rest_until = now + pause * (
            0.5 + self._dice.random()
        )  # nodes don't come back at once
