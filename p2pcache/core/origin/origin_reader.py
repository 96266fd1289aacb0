"""The origin's side of one swarm on one node: leases and reads in flight."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from p2pcache.core import bitset
from p2pcache.core.origin.isolation import Isolation
from p2pcache.core.origin.read_concurrency import Depth
from p2pcache.core.origin.without_tracker import MIN_SHARE, Trackerless
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.timing import SwarmPace
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import (
    ALL,
    CancelFetch,
    Command,
    CutOff,
    Dial,
    Fetch,
    LeaseCredit,
    LeaseReport,
    OriginCorrupt,
)  # fmt: skip
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.core.swarm.story import WORDS, Story
from p2pcache.errors import LocalProtocolError

# A storm's first agent is alone for an instant: with its full credit it would take all leases and then be the only
# uploader (16 nodes, 256 runs: 0.90 of the bound with 8, 0.92 with 2; now 0.940 with 2, 0.937 with 1, and of 8 nodes
# 0.945 and 0.952).
_FIRST_CREDIT = 1
_MORE_CREDIT = 2  # for each that was read: a lone node far from storage is as soon at its usual reads as it was
_CORRUPT_AFTER = 2  # mismatches of our own reads that convict the origin
_DEMANDED_AT_ONCE = 64  # runs in one report: a loader waits for a tensor or two at a time


@dataclass(slots=True)
class Reading:
    """One `Fetch` that hasn't ended."""

    run: int
    started: float
    live: bool = True  # False: cancelled, only its end is awaited
    duplicated: bool = False  # a neighbour was asked for the run as well, because this takes long


class OriginSide:
    """Decides what this node reads from the origin.

    Invariants (`check`): `mine.fetching` is exactly the runs of the live `readings`; `waiting`
    is exactly the leased runs that aren't being fetched; without a grant or an ownership
    nothing is read.
    """

    def __init__(
        self, node: int, mine: RunStates, book: PeerBook,
        settings: SwarmSettings, dice: Random, story: Story, tempo: SwarmPace, *, tracker: bool, now: float,
    ) -> None:  # fmt: skip
        usual = settings.origin_fetches
        self._depth = Depth(usual, usual + settings.origin_ahead)
        self._mine = mine
        self._book = book
        self._settings = settings
        self._story = story
        self._by_itself = Trackerless(
            node, mine, book, settings, dice, tempo, tracker=tracker, now=now
        )
        self.owners = self._by_itself.owners
        self._isolation = Isolation(node, settings, now)
        self.readings: dict[int, Reading] = {}
        self.waiting: dict[int, float] = {}  # leased run -> since when it waits to be read
        self._next_fetch = 1
        self._credit_told = LeaseCredit(0)
        self._demand_told = 0  # demanded runs (bits) that the tracker has heard of
        self._demand_at = -math.inf  # when it was told last
        self._report = LeaseReport()
        self._mismatches: dict[int, int] = {}
        self._rotten = 0  # runs that the origin has wrong (bits)
        self.halted = False

    # -- what happened ----------------------------------------------------------------------

    def tracker_up(self) -> None:
        """The tracker is back: leases are its business again; reads in flight become leases."""
        self._by_itself.up = True
        self._credit_told = LeaseCredit(0)  # say it again: a tracker that restarted knows nothing
        self._demand_told = 0
        self._mine.leased |= self._mine.fetching

    def tracker_down(self, now: float) -> None:
        """The tracker is gone; leases stay ours."""
        self._by_itself.tracker_down(now)

    def joined(self, node: int) -> None:
        """A member is connected, as a neighbour if it isn't barred."""
        self.owners.joined(node)
        if self._book.peers:
            self._isolation.met()
            self._by_tracker()

    def left(self, node: int, now: float) -> None:
        """A neighbour's connection broke."""
        self.owners.left(node)
        self.perhaps_alone(now)

    def barred(self, node: int, now: float) -> None:
        """A neighbour sent wrong bytes and is none any more."""
        self.owners.failed(node)
        self.perhaps_alone(now)

    def dial_failed(self, node: int, now: float) -> None:
        """A member couldn't be reached."""
        self._isolation.no_good({node})
        self.owners.failed(node)
        self.look_again(now)

    def perhaps_alone(self, now: float) -> None:
        """There may be no neighbour any more, or from now on it matters."""
        if not self._book.peers:
            self._isolation.lost(now)
        self.look_again(now)

    @property
    def is_cut_off(self) -> bool:
        """Whether no other node can be reached: nobody can bring what the tracker granted to others."""
        return self._by_itself.is_cut_off

    def look_around(self, now: float, out: list[Command]) -> None:
        """There is no neighbour, and nothing to read: is there anybody whom we reach?"""
        members = self.owners.told_of
        self._isolation.no_good(self._book.banned)
        if not self._isolation.found(members, now):
            out += [Dial(node) for node in self._isolation.whom_to_dial(members, now)]
        elif not self.is_cut_off:
            self._by_itself.cut_off(now)
            out.append(CutOff())

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
        for run in bitset.members(fresh & ~mine.fetching):
            self.waiting[run] = now

    def revoked(self, runs: int, out: list[Command]) -> None:
        """The tracker takes leases back: others have the runs."""
        mine = self._mine
        runs &= mine.leased
        mine.leased &= ~runs
        for run in bitset.members(runs & ~mine.fetching):
            del self.waiting[run]
        self._cancel(runs & mine.fetching, out)

    def unwanted(self) -> None:
        """The wish narrowed: leases that wait go back (reads in flight go on: others want them)."""
        mine = self._mine
        runs = bitset.of(self.waiting) & ~mine.wanted
        mine.leased &= ~runs
        self._report.returned |= runs
        for run in bitset.members(runs):
            del self.waiting[run]

    def proved(self, runs: int, out: list[Command]) -> None:
        """These missing runs are about to be had: settle their leases, stop reading them."""
        leased = runs & self._mine.leased
        self._report.done |= leased
        for run in bitset.members(leased & ~self._mine.fetching):
            del self.waiting[run]
        self._cancel(runs & self._mine.fetching, out)

    def ended(self, fetch: int, outcome: Outcome, now: float, out: list[Command]) -> int:
        """A `Fetch` ended; returns its run, which the caller proves if it is DONE.

        Args:
            fetch: which one.
            outcome: how.
            now: seconds.
            out: commands are added here.

        Raises:
            LocalProtocolError: no such fetch is in flight.
        """
        reading = self.readings.pop(fetch, None)
        if reading is None:
            raise LocalProtocolError(f"fetch {fetch} ended, but isn't in flight")
        bit = 1 << reading.run
        self._story.note(now, reading.run, f"origin: {WORDS[outcome]}")
        if outcome is Outcome.DONE:
            self._by_itself.read(now - reading.started)
            if self._by_itself.governs:
                self._depth.ended(now - reading.started, len(self.readings) + 1)
            if self._by_itself.up or self._mine.leased & bit:
                self._report.done |= bit
        elif outcome is Outcome.MISMATCH:
            self._mismatched(reading.run, out)
        if not reading.live:
            return reading.run
        self._mine.end_fetch(bit)
        leased = self._mine.leased & bit
        self._mine.leased &= ~bit
        if outcome is Outcome.CANCELLED:
            self._report.returned |= leased
        elif outcome is not Outcome.DONE:
            if outcome is not Outcome.MISMATCH:
                self._report.failed |= leased
            self._by_itself.failed(reading.started, now)
        return reading.run

    def halt(self, out: list[Command]) -> None:
        """This node can't store any more: give every lease back and read nothing."""
        self.halted = True
        self._report.failed |= bitset.of(self.waiting)
        self._mine.leased &= self._mine.fetching
        self.waiting.clear()
        self._cancel(self._mine.fetching, out)

    def look_again(self, now: float) -> None:
        """Something changed that matters to what we may read by ourselves."""
        self._by_itself.look_again(now)

    def others_read(self, node: int, runs: int, quiet_s: float, now: float) -> None:
        """A neighbour has runs (bits) that nobody had, after nothing new for so long."""
        self._by_itself.others_read(node, runs, quiet_s, now)

    def look_soon(self) -> None:
        """A neighbour has more: look again, but not for every batch that comes in."""
        self._by_itself.look_soon()

    # -- what to do -------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Leases that we can work on at once: how many we get of them is the tracker's business."""
        if self.halted or not self._mine.needed:
            return 0
        known = _FIRST_CREDIT + _MORE_CREDIT * self._by_itself.reads
        return known if known < self._settings.origin_fetches else self._depth.most

    def alone(self, now: float) -> bool:
        """Whether we decide ourselves what to read, without a tracker."""
        return self._by_itself.alone(now)

    @property
    def listens(self) -> bool:
        """Whether what a neighbour has can change what `act` does."""
        return not self._by_itself.up or bool(self.waiting) or bool(self._mine.urgent)

    def act(self, now: float, quiet_s: float, out: list[Command]) -> None:
        """Start what may be read, and tell the tracker what there is to tell."""
        if self.waiting:
            self._read_leased(now, out)
        if not self._mine.needed:
            self._by_tracker()
        if self._by_itself.governs and self._mine.needed and not self.halted:
            self._read_owned(now, quiet_s, out)
        mine, report = self._mine, self._report
        if self._by_itself.up and mine.urgent:
            self._tell_demand(now)
        # Every have-delta of every neighbour comes by here: no objects are made just to compare.
        if report.done or report.returned or report.urgent or report.failed or report.mismatched:
            self._report = LeaseReport()
            if self._by_itself.up:
                out.append(report)
        if self._by_itself.up:
            credit, wanted = self.credit, ALL if mine.wanted == mine.full else mine.wanted
            if credit != self._credit_told.credit or wanted != self._credit_told.wanted:
                self._credit_told = LeaseCredit(credit, wanted)
                out.append(self._credit_told)

    def next_wakeup(self) -> float:
        """When `act` has something to do by itself; inf if never."""
        wake = math.inf
        if self.waiting and len(self.readings) < self._depth.most:
            wake = min(self.waiting.values()) + self._settings.stuck_after_s
        if self._by_itself.up and self._mine.urgent and self._untold:
            wake = min(wake, self._demand_at + self._settings.have_interval_s)
        if self._by_itself.governs and self._mine.needed and not self.halted:
            wake = min(wake, self._by_itself.due_at())
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
        assert bitset.of(live) == mine.fetching
        assert bitset.of(self.waiting) == mine.leased & ~mine.fetching
        assert len(live) <= max(self._depth.most, MIN_SHARE)

    # -- within -----------------------------------------------------------------------------

    def _by_tracker(self) -> None:
        # There is a neighbour, or nothing is needed: what is being read becomes leases.
        if self.is_cut_off:
            self._by_itself.reached()
            if self._by_itself.up:
                self._mine.leased |= self._mine.fetching

    @property
    def _untold(self) -> int:
        """Demanded runs that no neighbour has and that the tracker hasn't heard of."""
        demanded = self._mine.urgent & ~self._demand_told
        return demanded & ~self._book.rarity.held if demanded else 0

    def _tell_demand(self, now: float) -> None:
        due = now >= self._demand_at + self._settings.have_interval_s
        if due and (untold := self._untold):
            self._demand_at = now
            fresh = bitset.lowest(untold, _DEMANDED_AT_ONCE)
            self._demand_told |= fresh
            self._report.urgent |= fresh

    def _read_leased(self, now: float, out: list[Command]) -> None:
        # A run that a good neighbour has by now is asked of it; its lease is held meanwhile, so
        # that the tracker grants it to nobody else, and used if the neighbour doesn't deliver.
        elsewhere = self._book.fit_runs()
        patience_s = self._settings.stuck_after_s
        for run in self._mine.in_order(bitset.of(self.waiting)):
            if len(self.readings) >= self._depth.most:
                return
            if elsewhere >> run & 1 and now < self.waiting[run] + patience_s:
                continue
            del self.waiting[run]
            self._fetch(run, now, out)

    def _read_owned(self, now: float, quiet_s: float, out: list[Command]) -> None:
        if not self._by_itself.due(now):
            return
        plan = self._by_itself.plan(self._rotten, quiet_s, now)
        out += [Dial(node) for node in plan.dial]
        room = self._by_itself.room(self._depth.reads, self._depth.most)
        for run in plan.read[: max(0, room - len(self.readings))]:
            self._fetch(run, now, out)

    def _fetch(self, run: int, now: float, out: list[Command]) -> None:
        number = self._next_fetch
        self._next_fetch += 1
        self.readings[number] = Reading(run, now)
        self._mine.fetch(1 << run)
        self._story.counters.fetches += 1
        self._story.note(now, run, "origin: reading")
        out.append(Fetch(number, run))

    def _cancel(self, runs: int, out: list[Command]) -> None:
        if not runs:
            return
        for number, reading in self.readings.items():
            if reading.live and runs >> reading.run & 1:
                reading.live = False
                out.append(CancelFetch(number))
        self._mine.end_fetch(runs)
        self._mine.leased &= ~runs

    def _mismatched(self, run: int, out: list[Command]) -> None:
        self._report.mismatched |= 1 << run
        self._story.counters.mismatched += 1
        count = self._mismatches[run] = self._mismatches.get(run, 0) + 1
        if (
            count == _CORRUPT_AFTER and self._by_itself.governs
        ):  # nobody else judges reads without a lease
            self._rotten |= 1 << run
            out.append(OriginCorrupt(run))
