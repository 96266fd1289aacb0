"""Laws and behaviour of the one door, with events by hand."""

import itertools
from typing import TypeVar

import pytest

from p2pcache.core import chunkset
from p2pcache.core.commands import (
    Announce,
    Blame,
    Cancel,
    CancelFetch,
    Command,
    Dial,
    Fetch,
    Finished,
    LeaseCredit,
    LeaseReport,
    OriginCorrupt,
    Request,
    Stuck,
    WantedDone,
)
from p2pcache.core.events import (
    Demanded,
    DialFailed,
    Event,
    FetchEnded,
    LeaseGranted,
    LeaseRevoked,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    RunsLost,
    RunsProved,
    Source,
    Tick,
    TrackerDown,
    TrackerUp,
    Wanted,
)
from p2pcache.core.fallback import order
from p2pcache.core.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.errors import LocalProtocolError

T = TypeVar("T")
MB = 1_000_000
SETTINGS = SwarmSettings()


class Desk:
    """A scheduler with a clock; remembers the commands, checks after every event."""

    def __init__(
        self, runs: int = 64, have: int = 0, *, tracker: bool = True, node: int = 1
    ) -> None:
        self.now = 100.0
        self.full = chunkset.full(runs)
        self.s = Scheduler(
            node=node,
            run_bytes=[MB] * runs,
            have=have,
            settings=SETTINGS,
            seed=7,
            tracker=tracker,
            now=self.now,
        )
        self.out: list[Command] = []

    def do(self, event: Event) -> list[Command]:
        out = self.s.handle(event, self.now)
        self.s.check()
        wake = self.s.next_wakeup()
        assert wake is None or wake > self.now, "a deadline that has passed is still set"
        self.out += out
        return out

    def sleep(self, seconds: float) -> list[Command]:
        """Let time pass, with a Tick at every deadline."""
        end = self.now + seconds
        out: list[Command] = []
        while (wake := self.s.next_wakeup()) is not None and wake <= end:
            self.now = wake
            out += self.do(Tick())
        self.now = end
        return out

    def up(self) -> list[Command]:
        return self.do(TrackerUp(5))


def of(kind: type[T], commands: list[Command]) -> list[T]:
    return [c for c in commands if isinstance(c, kind)]


def test_asks_a_neighbour_for_the_window_first() -> None:
    desk = Desk(runs=200)
    asked = of(Request, desk.do(PeerJoined(2, desk.full)))
    assert 0 < len(asked) <= SETTINGS.outstanding
    assert all(r.run < SETTINGS.window_runs for r in asked)


def test_a_window_without_anything_leaves_no_link_idle() -> None:
    desk = Desk(runs=200)
    asked = of(Request, desk.do(PeerJoined(2, 1 << 150)))
    assert [r.run for r in asked] == [150]


def test_takes_the_rarest_of_the_window() -> None:
    desk = Desk(runs=4)
    desk.s._peers.halted = True  # gather have-sets without asking
    for peer, have in ((2, 0b1111), (3, 0b0111), (4, 0b0011)):
        desk.do(PeerJoined(peer, have))
    desk.s._peers.halted = False
    desk.s._peers.look_at = 0
    first = of(Request, desk.do(Tick()))[0]
    assert {2: {3}, 3: {2}, 4: {0, 1}}[first.peer] >= {first.run}


def test_demanded_runs_come_first() -> None:
    desk = Desk(runs=200)
    desk.do(Demanded(1 << 120))
    assert of(Request, desk.do(PeerJoined(2, desk.full)))[0].run == 120


def test_demanded_runs_come_in_order_and_from_whoever_has_them() -> None:
    desk = Desk()
    desk.do(PeerJoined(2, 0))
    desk.do(PeerJoined(3, 1 << 50))
    desk.do(Demanded(1 << 40 | 1 << 45 | 1 << 60))
    assert [r.run for r in of(Request, desk.out)] == [50], "no link idles meanwhile"
    out = desk.do(PeerHas(2, desk.full, 9))
    assert [r.run for r in of(Request, out)][:3] == [40, 45, 60]


def test_demand_that_no_neighbour_can_meet_is_told_to_the_tracker_once() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1 << 7))
    out = desk.do(Demanded(1 << 7 | 1 << 9 | 1 << 11))
    assert of(LeaseReport, out) == [LeaseReport(demanded=1 << 9 | 1 << 11)]
    assert not of(LeaseReport, desk.do(Demanded(1 << 9)))
    assert not of(LeaseReport, desk.do(Demanded(1 << 13))), "in batches"
    assert of(LeaseReport, desk.sleep(0.06)) == [LeaseReport(demanded=1 << 13)]
    desk.do(TrackerDown())
    again = of(LeaseReport, desk.do(TrackerUp(9)) + desk.sleep(0.06))
    assert again == [LeaseReport(demanded=1 << 9 | 1 << 11 | 1 << 13)]


def test_only_what_is_wanted_is_asked_for_and_leased() -> None:
    desk = Desk()
    desk.up()
    out = desk.do(Wanted(1 << 40 | 1 << 41))
    assert of(LeaseCredit, out) == [LeaseCredit(2, 1 << 40 | 1 << 41)]
    out = desk.do(PeerJoined(2, chunkset.full(41)))
    assert [r.run for r in of(Request, out)] == [40]
    out = desk.do(LeaseGranted(1 << 3 | 1 << 41, 5))
    assert [f.run for f in of(Fetch, out)] == [41]
    assert of(LeaseReport, out) == [LeaseReport(returned=1 << 3)]
    assert not of(WantedDone, desk.do(RequestEnded(1, Outcome.DONE)))
    out = desk.do(FetchEnded(1, Outcome.DONE))
    assert len(of(WantedDone, out)) == 1
    assert not of(Finished, out)
    assert of(LeaseCredit, out) == [LeaseCredit(0, 1 << 40 | 1 << 41)]
    assert desk.s.next_wakeup() is None or not of(Request, desk.sleep(9.0))
    out = desk.do(Wanted(desk.full))
    assert of(Request, out)
    assert of(LeaseCredit, out) == [LeaseCredit(3)]


def test_a_wish_that_narrows_gives_waiting_leases_back() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1 << 5))
    desk.do(LeaseGranted(1 << 5 | 1 << 6, 5))
    assert of(LeaseReport, desk.do(Wanted(1 << 6))) == [LeaseReport(returned=1 << 5)]


def test_a_wish_for_what_is_here_is_answered_at_once() -> None:
    desk = Desk(have=0b111)
    assert of(WantedDone, desk.do(Wanted(0b101))) == [WantedDone()]
    assert not of(WantedDone, desk.do(RunsProved(1 << 9, Source.LOCAL)))


def test_what_is_demanded_is_wanted_too() -> None:
    desk = Desk()
    desk.do(Wanted(0))
    assert not of(Request, desk.do(PeerJoined(2, desk.full)))
    assert [r.run for r in of(Request, desk.do(Demanded(1 << 20)))] == [20]


def test_done_is_announced_at_once_and_then_in_batches() -> None:
    desk = Desk()
    asked = of(Request, desk.do(PeerJoined(2, desk.full)))
    out = desk.do(RequestEnded(asked[0].request, Outcome.DONE))
    assert of(Announce, out) == [Announce(1 << asked[0].run)]
    out = desk.do(RequestEnded(asked[1].request, Outcome.DONE))
    out += desk.do(RequestEnded(asked[2].request, Outcome.DONE))
    assert of(Announce, out) == []
    out = desk.sleep(SETTINGS.have_interval_s)
    assert of(Announce, out) == [Announce(1 << asked[1].run | 1 << asked[2].run)]


def test_finishes_once_and_wants_no_more_leases() -> None:
    desk = Desk(runs=2)
    assert desk.up() == [LeaseCredit(2)]
    asked = of(Request, desk.do(PeerJoined(2, 3)))
    for a in asked:
        desk.do(RequestEnded(a.request, Outcome.DONE))
    assert desk.s.complete
    assert of(Finished, desk.out) == [Finished()]
    assert of(LeaseCredit, desk.out)[-1] == LeaseCredit(0)
    assert desk.s.counters.bytes_peers == 2 * MB


def test_complete_from_the_start_says_nothing() -> None:
    desk = Desk(runs=2, have=3)
    assert desk.s.complete
    assert desk.up() == []
    assert desk.s.credit == 0
    assert desk.s.next_wakeup() is None


def test_an_end_of_nothing_is_our_own_bug() -> None:
    desk = Desk()
    with pytest.raises(LocalProtocolError):
        desk.s.handle(RequestEnded(9, Outcome.DONE), desk.now)
    with pytest.raises(LocalProtocolError):
        desk.s.handle(FetchEnded(9, Outcome.DONE), desk.now)
    asked = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(RequestEnded(asked[0].request, Outcome.DONE))
    with pytest.raises(LocalProtocolError):
        desk.s.handle(RequestEnded(asked[0].request, Outcome.DONE), desk.now)


def test_busy_peers_rest_and_are_asked_again() -> None:
    desk = Desk(runs=1)
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    assert of(Request, desk.do(RequestEnded(asked.request, Outcome.BUSY))) == []
    wake = desk.s.next_wakeup()
    assert wake is not None
    assert 0.02 <= wake - desk.now <= 0.05
    assert [r.peer for r in of(Request, desk.sleep(0.05))] == [2]


def test_a_refused_run_is_asked_elsewhere_only() -> None:
    desk = Desk(runs=1)
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    assert of(Request, desk.do(RequestEnded(asked.request, Outcome.REFUSED))) == []
    assert of(Request, desk.sleep(3)) == []
    assert [r.peer for r in of(Request, desk.do(PeerHas(2, 1, 0)))] == [2]


def test_a_liar_is_blamed_and_never_asked_again() -> None:
    desk = Desk()
    first = of(Request, desk.do(PeerJoined(2, desk.full)))
    out = desk.do(RequestEnded(first[0].request, Outcome.MISMATCH))
    assert of(Blame, out) == [Blame(2, first[0].run)]
    desk.do(RequestEnded(first[1].request, Outcome.MISMATCH))  # said once
    assert len(of(Blame, desk.out)) == 1
    desk.do(PeerLeft(2))
    assert of(Request, desk.do(PeerJoined(2, desk.full))) == []
    assert {r.peer for r in of(Request, desk.do(PeerJoined(3, desk.full)))} == {3}


def test_a_tracker_that_starts_anew_is_told_of_the_liars() -> None:
    desk = Desk()
    desk.up()
    (first, *_) = of(Request, desk.do(PeerJoined(2, desk.full)))
    said = of(Blame, desk.do(RequestEnded(first.request, Outcome.MISMATCH)))
    desk.do(TrackerDown())
    assert of(Blame, desk.up()) == [], "the same tracker knows"
    desk.do(TrackerDown())
    assert of(Blame, desk.do(TrackerUp(6))) == said
    desk.do(PeerJoined(3, 1 << 40))
    out = desk.sleep(3 * SETTINGS.stuck_after_s)
    assert of(Stuck, out)
    assert of(Blame, out)[0] == said[0], "perhaps the liar came after we had told"


def test_a_peer_that_leaves_gives_its_runs_back_at_once() -> None:
    desk = Desk(runs=4)
    lost = of(Request, desk.do(PeerJoined(2, 0b1111)))
    assert of(Request, desk.do(PeerJoined(3, 0b1111))) == []
    again = of(Request, desk.do(PeerLeft(2)))
    assert {r.run for r in again} <= {r.run for r in lost}
    assert {r.peer for r in again} == {3}
    for request in lost:  # each still ends once, and late bytes count
        desk.do(RequestEnded(request.request, Outcome.LOST))
    for request in again:
        desk.do(RequestEnded(request.request, Outcome.DONE))


def test_late_bytes_of_a_peer_that_left_cancel_the_second_request() -> None:
    desk = Desk(runs=1)
    (old,) = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(PeerLeft(2))
    (new,) = of(Request, desk.do(PeerJoined(3, 1)))
    out = desk.do(RequestEnded(old.request, Outcome.DONE))
    assert of(Cancel, out) == [Cancel(new.request)]
    assert desk.s.complete
    desk.do(RequestEnded(new.request, Outcome.CANCELLED))


def test_endgame_asks_a_second_peer_and_takes_the_loser_back() -> None:
    desk = Desk(runs=40)
    desk.do(PeerJoined(2, desk.full))
    open_: list[Request] = list(of(Request, desk.out))
    while desk.s.have.bit_count() < 39:  # peer 2 serves all but the last one
        one = open_.pop(0)
        desk.now += 0.1
        open_ += of(Request, desk.do(RequestEnded(one.request, Outcome.DONE)))
    (last,) = open_
    desk.do(PeerJoined(3, desk.full))
    (twin,) = of(Request, desk.sleep(10))
    assert (twin.run, twin.peer) == (last.run, 3)
    out = desk.do(RequestEnded(twin.request, Outcome.DONE))
    assert of(Cancel, out) == [Cancel(last.request)]
    assert desk.s.counters.duplicates == 1
    desk.do(RequestEnded(last.request, Outcome.DONE))  # the cancel came too late
    assert desk.s.counters.bytes_twice == MB


def test_a_second_holder_that_comes_late_is_asked_at_once() -> None:
    desk = Desk(runs=40)
    desk.do(PeerJoined(3, 0))
    desk.do(PeerJoined(2, desk.full))
    open_ = of(Request, desk.out)
    while desk.s.have.bit_count() < 39:
        one = open_.pop(0)
        desk.now += 0.1
        open_ += of(Request, desk.do(RequestEnded(one.request, Outcome.DONE)))
    assert of(Request, desk.sleep(10)) == [], "nobody else has it"
    (twin,) = of(Request, desk.do(PeerHas(3, desk.full, 0)))
    assert (twin.run, twin.peer) == (open_[0].run, 3)


def test_a_request_made_on_a_hint_gets_a_twin_too() -> None:
    desk = Desk(runs=40)
    desk.do(PeerJoined(2, desk.full >> 1))
    desk.do(PeerJoined(3, 0))
    open_ = of(Request, desk.out)
    while open_:
        one = open_.pop(0)
        desk.now += 0.1
        open_ += of(Request, desk.do(RequestEnded(one.request, Outcome.DONE)))
    (last,) = of(Request, desk.do(PeerHas(2, desk.full, 0)))
    desk.now += 0.1
    assert of(Request, desk.do(PeerHas(3, desk.full, 0))) == []
    (twin,) = of(Request, desk.sleep(5))
    assert (twin.run, twin.peer) == (last.run, 3)


def test_a_slow_peer_is_passed_over_unless_it_alone_has_the_run() -> None:
    desk = Desk(runs=400)
    peers = {2: 0.1, 3: 0.1, 4: 0.1, 5: 3.0}  # seconds per run
    shared = chunkset.full(399)
    open_: list[tuple[float, Request]] = []
    for peer in peers:
        for r in of(Request, desk.do(PeerJoined(peer, desk.full if peer == 5 else shared))):
            open_ += [(desk.now + peers[r.peer], r)]
    asked_of_slow = 0
    for _ in range(380):
        open_.sort(key=lambda x: x[0])
        at, r = open_.pop(0)
        desk.now = max(desk.now, at)
        for new in of(Request, desk.do(RequestEnded(r.request, Outcome.DONE))):
            open_.append((desk.now + peers[new.peer], new))
            asked_of_slow += new.peer == 5 and new.run != 399
    assert asked_of_slow <= 8
    assert any(r.run == 399 for _, r in open_) or desk.s.have >> 399


# -- leases ---------------------------------------------------------------------------------


def test_a_granted_lease_is_read_at_once_and_reported_at_once() -> None:
    desk = Desk()
    desk.up()
    (fetch,) = of(Fetch, desk.do(LeaseGranted(1 << 3, 5)))
    assert fetch.run == 3
    assert desk.s.origin_runs == 1 << 3
    out = desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    assert of(LeaseReport, out) == [LeaseReport(done=1 << 3)]
    assert desk.s.origin_runs == 0
    assert desk.s.counters.bytes_origin == MB


def test_never_more_reads_than_the_credit() -> None:
    desk = Desk()
    desk.up()
    fetches = of(Fetch, desk.do(LeaseGranted(desk.full, 5)))
    assert [f.run for f in fetches] == list(range(SETTINGS.origin_fetches))
    assert of(Fetch, desk.do(FetchEnded(1, Outcome.DONE)))[0].run == SETTINGS.origin_fetches


def test_a_long_way_to_the_origin_takes_more_reads() -> None:
    desk = Desk(runs=1000)
    desk.up()
    desk.do(LeaseGranted(desk.full, 5))
    for _ in range(20):  # whatever is asked for together comes a tenth of a second later
        desk.now += 0.1
        for number in list(desk.s._origin.readings):
            desk.do(FetchEnded(number, Outcome.DONE, 0.1))
    most = SETTINGS.origin_fetches + SETTINGS.origin_ahead
    assert len(desk.s._origin.readings) == desk.s.credit == most
    assert of(LeaseCredit, desk.out)[-1].credit == most


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (Outcome.UNAVAILABLE, LeaseReport(failed=2)),
        (Outcome.STALLED, LeaseReport(failed=2)),
        (Outcome.MISMATCH, LeaseReport(mismatched=2)),
        (Outcome.CANCELLED, LeaseReport(returned=2)),
    ],
)
def test_a_read_that_fails_is_told(outcome: Outcome, report: LeaseReport) -> None:
    desk = Desk()
    desk.up()
    (fetch,) = of(Fetch, desk.do(LeaseGranted(2, 5)))
    assert of(LeaseReport, desk.do(FetchEnded(fetch.fetch, outcome))) == [report]
    assert of(Fetch, desk.sleep(60)) == [], "only the tracker may grant it again"


def test_a_lease_for_what_we_have_is_reported_done() -> None:
    desk = Desk(have=1)
    desk.up()
    assert desk.do(LeaseGranted(1, 5)) == [LeaseReport(done=1)]


def test_a_leased_run_that_a_neighbour_has_is_taken_from_there() -> None:
    desk = Desk()
    desk.up()
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    assert of(Fetch, desk.do(LeaseGranted(1, 5))) == []
    assert desk.s.origin_runs == 1, "the lease is kept, so that nobody else reads it"
    out = desk.do(RequestEnded(asked.request, Outcome.DONE))
    assert of(LeaseReport, out) == [LeaseReport(done=1)]


def test_a_lease_is_used_when_the_neighbour_does_not_deliver() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1))
    desk.do(LeaseGranted(1, 5))
    assert [f.run for f in of(Fetch, desk.sleep(SETTINGS.stuck_after_s))] == [0]


def test_a_revoked_lease_is_dropped_and_its_read_cancelled() -> None:
    desk = Desk()
    desk.up()
    fetches = of(Fetch, desk.do(LeaseGranted(desk.full, 5)))
    out = desk.do(LeaseRevoked(desk.full))
    assert {c.fetch for c in of(CancelFetch, out)} == {f.fetch for f in fetches}
    assert desk.s.origin_runs == 0
    for f in fetches:
        assert of(LeaseReport, desk.do(FetchEnded(f.fetch, Outcome.CANCELLED))) == []


def test_a_broken_disk_stops_everything_and_gives_leases_back() -> None:
    desk = Desk()
    desk.up()
    asked = of(Request, desk.do(PeerJoined(2, desk.full << 32 & desk.full)))
    desk.do(LeaseGranted(chunkset.full(20), 5))
    out = desk.do(RequestEnded(asked[0].request, Outcome.FAILED))
    (report,) = of(LeaseReport, out)
    assert report.failed == chunkset.full(20) & ~chunkset.full(SETTINGS.origin_fetches)
    assert of(LeaseCredit, out) == [LeaseCredit(0)]
    assert of(Request, desk.do(PeerJoined(3, desk.full))) == []
    for number in range(1, SETTINGS.origin_fetches + 1):
        desk.do(FetchEnded(number, Outcome.CANCELLED))
    assert of(Fetch, desk.sleep(60)) == []


def test_runs_that_nobody_has_are_reported_stuck() -> None:
    desk = Desk(runs=8)
    desk.up()
    desk.do(PeerJoined(2, 0b11110110))
    for r in of(Request, desk.out):
        desk.do(RequestEnded(r.request, Outcome.DONE))
    out = desk.sleep(3 * SETTINGS.stuck_after_s)
    assert of(Stuck, out)[0] == Stuck(0b1001)


def test_what_the_origin_has_not_given_yet_is_not_stuck_while_others_come() -> None:
    desk = Desk(runs=64)
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(10):
        (asked,) = of(Request, desk.do(PeerHas(2, 1 << run, 0)))
        desk.do(RequestEnded(asked.request, Outcome.DONE))
        desk.sleep(2)
    assert of(Stuck, desk.out) == []


# -- without a tracker ------------------------------------------------------------------------


def test_no_tracker_configured_reads_everything_in_order() -> None:
    desk = Desk(runs=30, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    assert [f.run for f in fetches] == list(range(SETTINGS.origin_fetches))
    while fetches:
        fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
    assert desk.s.complete


def test_a_new_scheduler_without_a_tracker_asks_for_a_tick_at_once() -> None:
    desk = Desk(runs=30, tracker=False)
    assert desk.s.next_wakeup() == desk.now


def test_a_tracker_that_never_came_is_no_reason_to_read() -> None:
    desk = Desk(runs=30)
    assert of(Fetch, desk.sleep(600)) == []


def test_a_tracker_that_never_came_leaves_the_owners_of_the_last_known_list() -> None:
    desk = Desk(runs=8)
    desk.do(Members((1, 2, 3)))
    mine = [run for run in range(8) if order(run, (1, 2, 3))[0] == 1]
    assert not of(Fetch, desk.sleep(SETTINGS.lease_ttl_s))
    out = desk.sleep(SETTINGS.fallback_grace_s + SETTINGS.stuck_after_s + 1)
    assert [f.run for f in of(Fetch, out)] == mine[: len(of(Fetch, out))] != []
    assert {d.peer for d in of(Dial, out)} == {2, 3}
    desk.do(DialFailed(2))
    desk.do(DialFailed(3))
    for _ in range(8):
        for fetch in of(Fetch, desk.out):
            desk.out.remove(fetch)
            desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    assert desk.s.complete, "nobody else can be reached: alone is better than not at all"


def lose_tracker(runs: int, held: int) -> Desk:
    """One of three nodes has heard of the first `held` runs when the tracker dies."""
    desk = Desk(runs=runs)
    desk.do(Members((1, 2, 3)))
    desk.up()
    for node in (2, 3):
        desk.do(PeerJoined(node, 0))
    desk.do(PeerHas(2, chunkset.full(held), 0))
    desk.do(TrackerDown())
    return desk


def read_all(desk: Desk, fetches: list[Fetch]) -> set[int]:
    """Let these reads end well, and those that follow; returns the runs."""
    read = set()
    while fetches:
        one = fetches.pop(0)
        read.add(one.run)
        fetches += of(Fetch, desk.do(FetchEnded(one.fetch, Outcome.DONE)))
    return read


def test_a_lost_tracker_makes_the_owner_read_soon_what_cannot_be_leased() -> None:
    desk = lose_tracker(runs=200, held=10)
    beyond = {run for run in range(58, 200) if order(run, (1, 2, 3))[0] == 1}
    assert of(Fetch, desk.sleep(0.4)) == [], "a connection that broke is made again meanwhile"
    fetches = of(Fetch, desk.sleep(0.4))
    assert fetches
    early = read_all(desk, fetches)
    assert early
    assert early <= beyond


def test_a_lost_tracker_makes_the_owner_read_the_rest_when_nobody_came_to_have_it() -> None:
    desk = lose_tracker(runs=40, held=0)
    mine = {run for run in range(40) if order(run, (1, 2, 3))[0] == 1}
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []
    assert read_all(desk, of(Fetch, desk.sleep(0.2))) == mine
    assert of(Dial, desk.out) == []


def test_a_tracker_that_is_back_at_once_was_not_lost() -> None:
    desk = lose_tracker(runs=200, held=10)
    assert of(Fetch, desk.sleep(0.4)) == []
    desk.up()
    assert of(Fetch, desk.sleep(60)) == []


def test_the_tracker_is_back_and_nothing_more_is_read_without_it() -> None:
    desk = Desk(runs=32)
    desk.do(Members((1,)))
    desk.up()
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(30))
    assert fetches
    desk.do(TrackerUp(6))
    assert desk.s.origin_runs == chunkset.of(f.run for f in fetches)
    for f in fetches:
        out = desk.do(FetchEnded(f.fetch, Outcome.DONE))
        assert of(LeaseReport, out) == [LeaseReport(done=1 << f.run)]
        assert of(Fetch, out) == []


def test_dead_owners_are_passed_over_at_once() -> None:
    nodes = (1, 2, 3)
    desk = Desk(runs=32)
    desk.do(Members(nodes))
    desk.up()
    for node in (2, 3):
        desk.do(PeerJoined(node, 0))
    desk.do(TrackerDown())
    for node in (2, 3):
        desk.do(PeerLeft(node))
    fetches = of(Fetch, desk.sleep(25))
    for _ in range(200):
        if fetches:
            fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
        for dial in of(Dial, desk.out):
            desk.out.remove(dial)
            fetches += of(Fetch, desk.do(DialFailed(dial.peer)))
    assert desk.s.complete


def test_a_silent_owner_is_overtaken_after_patience() -> None:
    nodes = (1, 2)
    theirs = {run for run in range(32) if order(run, nodes)[0] == 2}
    desk = Desk(runs=32)
    desk.do(Members(nodes))
    desk.up()
    desk.do(PeerJoined(2, 0))
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + 1))
    while fetches:
        fetches += of(Fetch, desk.do(FetchEnded(fetches.pop(0).fetch, Outcome.DONE)))
    late = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + 3))
    assert late
    assert {f.run for f in late} <= theirs


def test_a_corrupt_origin_is_found_out_without_a_tracker() -> None:
    desk = Desk(runs=1, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    for _ in range(2):
        desk.do(FetchEnded(fetches.pop().fetch, Outcome.MISMATCH))
        fetches += of(Fetch, desk.sleep(120))
    assert fetches == [], "bounded reads"
    assert of(OriginCorrupt, desk.out) == [OriginCorrupt(0)]


def test_an_origin_that_fails_is_left_in_peace_longer_and_longer() -> None:
    desk = Desk(runs=1, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    starts = [desk.now]
    for _ in range(4):
        desk.do(FetchEnded(fetches.pop().fetch, Outcome.UNAVAILABLE))
        while not fetches:
            fetches += of(Fetch, desk.sleep(0.1))
        starts.append(desk.now)
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert gaps[-1] > 2 * gaps[0] > 0.5


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.MISMATCH])
def test_reads_that_fail_together_are_one_failure(outcome: Outcome) -> None:
    desk = Desk(runs=8, tracker=False)
    fetches = of(Fetch, desk.do(Tick()))
    assert len(fetches) > 4
    for fetch in fetches:
        desk.do(FetchEnded(fetch.fetch, outcome))
    assert of(Fetch, desk.sleep(2)), "eight reads in parallel must not rest eight doublings"


# -- other ends -------------------------------------------------------------------------------


def test_proved_elsewhere_takes_requests_and_reads_back() -> None:
    desk = Desk(runs=4)
    desk.up()
    desk.do(LeaseGranted(1, 5))
    (asked,) = of(Request, desk.do(PeerJoined(2, 2)))
    out = desk.do(RunsProved(0b11, Source.LOCAL))
    assert of(Cancel, out) == [Cancel(asked.request)]
    assert of(CancelFetch, out) == [CancelFetch(1)]
    assert of(LeaseReport, out) == [LeaseReport(done=1)]
    assert of(Announce, out) == [Announce(0b11)]
    assert desk.s.counters.bytes_local == 2 * MB


def test_lost_runs_are_got_again() -> None:
    desk = Desk(runs=2, have=3)
    desk.do(PeerJoined(2, 3))
    (asked,) = of(Request, desk.do(RunsLost(1)))
    assert not desk.s.complete
    out = desk.do(RequestEnded(asked.request, Outcome.DONE))
    assert of(Finished, out) == [Finished()]


def test_a_story_tells_why() -> None:
    desk = Desk(runs=1)
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(RequestEnded(asked.request, Outcome.STALLED))
    story = desk.s.story(0)
    assert [line.split(" ", 1)[1] for line in story] == [
        "asked of 0000000000000002",
        "stalled 0000000000000002",
    ]
