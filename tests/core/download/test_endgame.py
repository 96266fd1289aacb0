"""A second request for a run that takes far too long."""

from p2pcache.core.download.settings import REVIEW_S
from p2pcache.core.peers.settings import FIRST_STEPS_S
from p2pcache.core.swarm.commands import (
    Cancel,
    Fetch,
    Request,
)
from p2pcache.core.swarm.events import (
    LeaseGranted,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    Wanted,
)
from tests.core.scheduler.scheduler_kit import MB, Desk, of


def test_late_bytes_of_a_peer_that_left_cancel_the_second_request() -> None:
    desk = Desk(runs=1)
    (old,) = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(PeerLeft(2))
    (new,) = of(Request, desk.do(PeerJoined(3, 1)))
    out = desk.do(RequestEnded(old.request, Outcome.DONE))
    assert of(Cancel, out) == [Cancel(new.request)]
    assert desk.s.complete
    desk.do(RequestEnded(new.request, Outcome.CANCELLED))


def test_a_first_request_whose_bytes_drip_gets_a_duplicate() -> None:
    """Nothing has come yet, so what a request usually takes isn't known. A node waited for ever (seed 1004070)."""
    desk = Desk(runs=1)
    (first,) = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(PeerJoined(3, 1))
    (twin,) = of(Request, desk.sleep(3 * FIRST_STEPS_S))
    assert (twin.run, twin.peer) == (first.run, 3)


def test_a_duplicate_that_brings_nothing_is_followed_by_another() -> None:
    desk = Desk(runs=1)
    desk.do(PeerJoined(2, 1))
    desk.do(PeerJoined(3, 1))
    (twin,) = of(Request, desk.sleep(3 * FIRST_STEPS_S))
    desk.do(PeerJoined(4, 1))
    (another,) = of(Request, desk.do(RequestEnded(twin.request, Outcome.REFUSED)))
    assert another.peer == 4


def test_a_late_read_gets_one_duplicate() -> None:
    desk = Desk(runs=1)
    desk.up()
    assert of(Fetch, desk.do(LeaseGranted(1)))
    desk.do(PeerJoined(2, 1))
    desk.do(PeerJoined(3, 1))
    assert len(of(Request, desk.sleep(3 * FIRST_STEPS_S))) == 1
    assert not of(Request, desk.sleep(10 * FIRST_STEPS_S)), "a read and a request are on their way"


def test_endgame_asks_a_second_peer_and_takes_the_loser_back() -> None:
    desk = Desk(runs=40)
    desk.do(PeerJoined(2, desk.full))
    open_: list[Request] = list(of(Request, desk.out))
    while desk.s.have.bit_count() < 39:  # peer 2 sends all runs but the last one
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


def test_a_second_holder_that_comes_late_is_asked_soon() -> None:
    desk = Desk(runs=40)
    desk.do(PeerJoined(3, 0))
    desk.do(PeerJoined(2, desk.full))
    open_ = of(Request, desk.out)
    while desk.s.have.bit_count() < 39:
        one = open_.pop(0)
        desk.now += 0.1
        open_ += of(Request, desk.do(RequestEnded(one.request, Outcome.DONE)))
    assert of(Request, desk.sleep(10)) == [], "no other neighbour has it"
    desk.do(PeerHas(3, desk.full, 0))
    (twin,) = of(Request, desk.sleep(REVIEW_S + 0.01))
    assert (twin.run, twin.peer) == (open_[0].run, 3)


def test_a_request_after_a_have_batch_gets_a_duplicate_too() -> None:
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


def all_but_one(desk: Desk, *neighbours: int) -> Request:
    """Neighbours send all runs but one, 0.1 s each; returns the last request."""
    open_ = desk.meet(dict.fromkeys(neighbours, desk.full))
    while len(open_) > 1:
        desk.now += 0.1
        open_ += of(Request, desk.do(RequestEnded(open_.pop(0).request, Outcome.DONE)))
    assert desk.s.have.bit_count() == desk.full.bit_count() - 1
    return open_[0]


def test_a_last_run_that_is_asked_of_another_neighbour_is_late_in_its_turn() -> None:
    """It was never looked at again: the deadline that its request had set was lost."""
    desk = Desk(runs=40)
    last = all_but_one(desk, 2, 3, 4)
    (again,) = of(Request, desk.do(RequestEnded(last.request, Outcome.BUSY)))
    assert again.peer != last.peer
    (twin,) = of(Request, desk.sleep(2.0))
    assert twin.run == again.run == last.run
    assert twin.peer != again.peer


def test_a_lone_run_at_a_slow_neighbour_is_asked_of_one_that_gets_it_much_later() -> None:
    desk = Desk(runs=1)
    (first,) = desk.meet({2: 1, 5: 0})
    assert of(Request, desk.sleep(20.0)) == []
    out = desk.do(PeerHas(5, 1, 0))
    (twin,) = of(Request, [*out, *desk.sleep(2 * REVIEW_S)])
    assert (first.peer, twin.peer) == (2, 5)


def test_a_late_run_is_asked_of_one_that_delivers_and_not_of_doubted_ones() -> None:
    desk = Desk(runs=1)
    doubted, good = range(10, 22), 3
    for node in doubted:
        (asked,) = of(Request, desk.do(PeerJoined(node, 1)))
        desk.do(RequestEnded(asked.request, Outcome.STALLED))
    (first,) = of(Request, desk.do(PeerJoined(2, 1)))
    desk.do(PeerJoined(good, 1))
    twins = of(Request, desk.sleep(3 * FIRST_STEPS_S))
    assert [(one.run, one.peer) for one in twins] == [(first.run, good)]
    assert desk.s.counters.duplicates == 1


def test_a_node_that_needs_nothing_more_looks_for_nothing_late() -> None:
    """It woke four times a second until its requests had ended."""
    desk = Desk(runs=40)
    all_but_one(desk, 2)
    desk.do(Wanted(0))
    desk.sleep(10.0)
    wakes = 0
    while (wake := desk.s.next_wakeup()) is not None and wake < desk.now + 10.0 and wakes < 9:
        wakes += 1
        desk.sleep(wake - desk.now)
    assert wakes < 3
