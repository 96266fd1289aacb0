"""What a scheduler answers to single events: wanted runs, neighbours, the end of requests."""

from dataclasses import replace

import pytest

from p2pcache.core import bitset
from p2pcache.core.origin.settings import FIRST_READS, MORE_PER_READ
from p2pcache.core.swarm.commands import (
    Announce,
    Blame,
    Cancel,
    CancelFetch,
    Fetch,
    Finished,
    LeaseCredit,
    LeaseReport,
    Request,
    Stuck,
    WantedDone,
)
from p2pcache.core.swarm.events import (
    FetchEnded,
    LeaseGranted,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    RunsLost,
    RunsProved,
    Source,
    TrackerDown,
    TrackerUp,
    Urgent,
    Wanted,
)
from p2pcache.errors import LocalProtocolError
from tests.core.scheduler.scheduler_kit import MB, SETTINGS, Desk, of


def test_a_neighbour_is_asked_for_the_window_first() -> None:
    """Rarer runs beyond it come later: early layers arrive early, also where new runs spread (docs/lab/0115)."""
    desk = Desk(runs=4 * SETTINGS.window_runs)
    desk.do(PeerJoined(3, bitset.full(2 * SETTINGS.window_runs)))
    asked = of(Request, desk.do(PeerJoined(2, desk.full)))
    assert 0 < len(asked) <= SETTINGS.outstanding
    assert all(r.run < SETTINGS.window_runs for r in asked)


def test_a_window_without_anything_leaves_no_link_idle() -> None:
    desk = Desk(runs=200)
    asked = of(Request, desk.do(PeerJoined(2, 1 << 150)))
    assert [r.run for r in asked] == [150]


def test_the_rarest_run_of_the_window_is_asked_for() -> None:
    desk = Desk(runs=4)
    first = desk.meet({2: 0b1111, 3: 0b0111, 4: 0b0011})[0]
    assert {2: {3}, 3: {2}, 4: {0, 1}}[first.peer] >= {first.run}


def test_urgent_runs_come_first() -> None:
    desk = Desk(runs=200)
    desk.do(Urgent(1 << 120))
    assert of(Request, desk.do(PeerJoined(2, desk.full)))[0].run == 120


def test_urgent_runs_come_in_order_from_any_neighbour_that_has_them() -> None:
    desk = Desk()
    desk.do(PeerJoined(2, 0))
    desk.do(PeerJoined(3, 1 << 50))
    desk.do(Urgent(1 << 40 | 1 << 45 | 1 << 60))
    assert [r.run for r in of(Request, desk.out)] == [50], "the link doesn't stay idle"
    out = desk.do(PeerHas(2, desk.full, 3))
    assert [r.run for r in of(Request, out)][:3] == [40, 45, 60]


def test_an_urgent_run_that_no_neighbour_has_is_told_to_the_tracker_once() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1 << 7))
    out = desk.do(Urgent(1 << 7 | 1 << 9 | 1 << 11))
    assert of(LeaseReport, out) == [LeaseReport(urgent=1 << 9 | 1 << 11)]
    assert not of(LeaseReport, desk.do(Urgent(1 << 9)))
    assert not of(LeaseReport, desk.do(Urgent(1 << 13))), "urgent runs are told in batches"
    assert of(LeaseReport, desk.sleep(0.06)) == [LeaseReport(urgent=1 << 13)]
    desk.do(TrackerDown())
    again = of(LeaseReport, desk.do(TrackerUp(9)) + desk.sleep(0.06))
    assert again == [LeaseReport(urgent=1 << 9 | 1 << 11 | 1 << 13)]


def test_only_wanted_runs_are_asked_for_and_leased() -> None:
    desk = Desk()
    desk.up()
    out = desk.do(Wanted(1 << 40 | 1 << 41))
    assert of(LeaseCredit, out) == [LeaseCredit(1, 1 << 40 | 1 << 41)]
    out = desk.do(PeerJoined(2, bitset.full(41)))
    assert [r.run for r in of(Request, out)] == [40]
    out = desk.do(LeaseGranted(1 << 3 | 1 << 41))
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
    assert of(LeaseCredit, out) == [LeaseCredit(FIRST_READS + MORE_PER_READ)], "it has read a run"


def test_fewer_wanted_runs_give_waiting_leases_back() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1 << 5))
    desk.do(LeaseGranted(1 << 5 | 1 << 6))
    assert of(LeaseReport, desk.do(Wanted(1 << 6))) == [LeaseReport(returned=1 << 5)]


def test_wanted_runs_that_are_here_are_answered_at_once() -> None:
    desk = Desk(have=0b111)
    assert of(WantedDone, desk.do(Wanted(0b101))) == [WantedDone()]
    assert not of(WantedDone, desk.do(RunsProved(1 << 9, Source.LOCAL)))


def test_urgent_runs_are_wanted_too() -> None:
    desk = Desk()
    desk.do(Wanted(0))
    assert not of(Request, desk.do(PeerJoined(2, desk.full)))
    assert [r.run for r in of(Request, desk.do(Urgent(1 << 20)))] == [20]


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
    assert desk.up() == [LeaseCredit(1)]
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
    assert wake - desk.now == SETTINGS.busy_rest_s
    assert [r.peer for r in of(Request, desk.sleep(SETTINGS.busy_rest_s))] == [2]


def test_a_refused_run_is_asked_elsewhere_only() -> None:
    desk = Desk(runs=1)
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    assert of(Request, desk.do(RequestEnded(asked.request, Outcome.REFUSED))) == []
    assert of(Request, desk.sleep(3)) == []
    assert [r.peer for r in of(Request, desk.do(PeerHas(2, 1, 0)))] == [2]


def test_a_sender_of_wrong_bytes_is_blamed_and_never_asked_again() -> None:
    desk = Desk()
    first = of(Request, desk.do(PeerJoined(2, desk.full)))
    out = desk.do(RequestEnded(first[0].request, Outcome.MISMATCH))
    assert of(Blame, out) == [Blame(2, first[0].run)]
    desk.do(RequestEnded(first[1].request, Outcome.MISMATCH))  # it is blamed once
    assert len(of(Blame, desk.out)) == 1
    desk.do(PeerLeft(2))
    assert of(Request, desk.do(PeerJoined(2, desk.full))) == []
    assert {r.peer for r in of(Request, desk.do(PeerJoined(3, desk.full)))} == {3}


def test_a_new_tracker_is_told_of_banned_nodes() -> None:
    desk = Desk()
    desk.up()
    (first, *_) = of(Request, desk.do(PeerJoined(2, desk.full)))
    said = of(Blame, desk.do(RequestEnded(first.request, Outcome.MISMATCH)))
    desk.do(TrackerDown())
    assert of(Blame, desk.up()) == [], "the same tracker knows it"
    desk.do(TrackerDown())
    assert of(Blame, desk.do(TrackerUp(6))) == said
    desk.do(PeerJoined(3, 1 << 40))
    out = desk.sleep(3 * SETTINGS.stuck_after_s)
    assert of(Stuck, out)
    assert of(Blame, out)[0] == said[0], "that node may have come to the tracker after we blamed it"


def test_a_peer_that_leaves_gives_its_runs_back_at_once() -> None:
    desk = Desk(runs=4)
    lost = of(Request, desk.do(PeerJoined(2, 0b1111)))
    assert of(Request, desk.do(PeerJoined(3, 0b1111))) == []
    again = of(Request, desk.do(PeerLeft(2)))
    assert {r.run for r in again} <= {r.run for r in lost}
    assert {r.peer for r in again} == {3}
    for request in lost:  # each request still ends once, and late bytes count
        desk.do(RequestEnded(request.request, Outcome.LOST))
    for request in again:
        desk.do(RequestEnded(request.request, Outcome.DONE))


# -- local events -----------------------------------------------------------------------------


def test_proved_elsewhere_takes_requests_and_reads_back() -> None:
    desk = Desk(runs=4)
    desk.up()
    desk.do(LeaseGranted(1))
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


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ({"needed": 0}, ""),
        ({"requested": 2, "fetching": 4}, "peers"),
        ({"fetching": 4}, "origin"),
        ({"held": 1}, "busy"),
        ({"held": 8}, "lease"),
        ({"sole": True}, "pause"),
        ({"tracker_up": False, "alone": True, "sole": True}, "pause"),
        ({"tracker_up": False}, "tracker"),
        ({"tracker_up": False, "alone": True, "members": 2}, "owner"),
        # It had met nobody when the tracker went, and read "another node owns what is missing".
        ({"tracker_up": False, "alone": True}, "pause"),
    ],
)
def test_the_causes_of_waits(state: dict[str, int], word: str) -> None:
    desk = Desk(runs=4)
    states, by_itself = desk.s._states, desk.s._by_itself
    states.want_only(state.get("needed", 7))
    states.requested, states.fetching = state.get("requested", 0), state.get("fetching", 0)
    desk.s._book.rarity.add_holder(state.get("held", 0))
    by_itself.owners.on_members(range(1, 1 + state.get("members", 1)))
    by_itself.tracker_up = bool(state.get("tracker_up", True))
    by_itself.is_cut_off = bool(state.get("sole", False))
    by_itself.alone = lambda now: bool(state.get("alone", False))  # type: ignore[method-assign]
    assert desk.s.waits_for(desk.now) == word


@pytest.mark.parametrize("sole", [False, True])
def test_a_node_that_reads_no_storage_waits_for_another_site(*, sole: bool) -> None:
    """It was said to wait for a lease, or for the owner of a run."""
    desk = Desk(runs=4)
    desk.s._by_itself.is_cut_off = sole
    desk.s._settings = replace(SETTINGS, origin_fetches=0)
    assert desk.s.waits_for(desk.now) == "site"
