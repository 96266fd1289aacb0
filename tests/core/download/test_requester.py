"""Asking ahead, and recalls."""

import pytest

from p2pcache.core.swarm.commands import (
    Request,
)
from p2pcache.core.swarm.events import (
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    Urgent,
)
from p2pcache.core.upload.settings import FULL
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, of

TOOK_S = 1.0  # that each run takes
TRIP_S = 0.1  # from a request to its first byte
SENDERS = range(2, 2 + SETTINGS.outstanding)


def busy_desk() -> tuple[Desk, dict[int, Request]]:
    """As many neighbours as are asked at once have sent us a run; returns the request to each now."""
    desk = Desk(runs=1000)
    first = desk.meet(dict.fromkeys(SENDERS, desk.full))
    desk.now += TOOK_S
    asked = [again for one in first for again in end(desk, one)]
    assert sorted(r.peer for r in asked) == list(SENDERS), "one request to each"
    return desk, {r.peer: r for r in asked}


def end(desk: Desk, request: Request, outcome: Outcome = Outcome.DONE) -> list[Request]:
    return of(Request, desk.do(RequestEnded(request.request, outcome, TRIP_S)))


def test_a_sender_is_asked_for_the_next_run_a_question_before_the_last_one_ends() -> None:
    desk, sent = busy_desk()
    # The first byte of the next run comes now. From this moment the run takes its usual time.
    assert of(Request, desk.sleep(TOOK_S - 2.3 * TRIP_S)) == []
    following = of(Request, desk.sleep(1.1 * TRIP_S))
    assert sorted(r.peer for r in following) == list(SENDERS)
    assert of(Request, desk.sleep(0.1 * TRIP_S)) == [], "only one request is sent ahead"
    assert end(desk, sent[2]) == [], "its next run is asked for already"
    (second,) = [r for r in following if r.peer == 2]
    # Its duration counts from the end of the first run.
    assert [r.peer for r in of(Request, desk.sleep(TOOK_S - 2.3 * TRIP_S)) if r.peer == 2] == []
    assert [r.peer for r in of(Request, desk.sleep(0.1 * TRIP_S)) if r.peer == 2] == [2]
    assert end(desk, second) == []


def test_a_sender_without_a_place_for_the_next_run_is_asked_when_the_last_one_is_here() -> None:
    desk, sent = busy_desk()
    following = of(Request, desk.sleep(TOOK_S - TRIP_S))
    (refused,) = [r for r in following if r.peer == 2]
    assert end(desk, refused, Outcome.BUSY) == []
    assert of(Request, desk.sleep(TRIP_S / 2)) == [], "it isn't asked again while it sends"
    assert [r.peer for r in end(desk, sent[2])] == [2]


def test_a_request_that_waits_for_another_is_not_overdue() -> None:
    desk, _ = busy_desk()
    following = of(Request, desk.sleep(TOOK_S - TRIP_S))
    behind = {r.run for r in following}
    twins = of(Request, desk.sleep(3 * TOOK_S))
    assert not behind & {r.run for r in twins}


def test_a_waiting_request_takes_the_place_of_one_that_ends_badly() -> None:
    desk, sent = busy_desk()
    assert len(of(Request, desk.sleep(TOOK_S - TRIP_S))) == len(SENDERS)
    assert end(desk, sent[2], Outcome.CANCELLED) == [], (
        "the limit is reached by the request that waited"
    )
    assert desk.s._requester.requests.flowing == SETTINGS.outstanding
    desk.do(PeerLeft(2))
    assert desk.s._requester.requests.flowing == SETTINGS.outstanding - 1


def test_both_runs_of_a_lost_connection_are_free_though_one_waited() -> None:
    desk, sent = busy_desk()
    (ahead,) = [r for r in of(Request, desk.sleep(TOOK_S - TRIP_S)) if r.peer == 2]
    both = 1 << sent[2].run | 1 << ahead.run
    requests, states = desk.s._requester.requests, desk.s._states
    assert not states.free & both
    requests.halted = True  # or others are asked for them at once
    assert end(desk, sent[2], Outcome.LOST) == []
    assert requests.flowing == SETTINGS.outstanding - 1
    assert states.free & both == both


def test_nothing_is_asked_ahead_before_it_is_known_how_long_runs_take() -> None:
    desk = Desk(runs=1000)
    asked = desk.meet(dict.fromkeys(SENDERS, desk.full))
    assert len(asked) == SETTINGS.outstanding
    assert of(Request, desk.sleep(0.9)) == []


# -- recalls ---------------------------------------------------------------------------------


def refused(desk: Desk, outcome: Outcome = Outcome.BUSY) -> None:
    (asked,) = desk.meet({2: 1})
    assert of(Request, desk.do(RequestEnded(asked.request, outcome, 0.001))) == []


def test_a_neighbour_with_room_again_is_asked_at_once() -> None:
    desk = Desk(runs=1)
    refused(desk)
    desk.now += 0.012
    assert [r.peer for r in of(Request, desk.do(PeerHas(2, 0, 3)))] == [2]


def test_a_recall_does_not_end_the_rest_after_a_stall() -> None:
    desk = Desk(runs=1)
    refused(desk, Outcome.STALLED)
    desk.now += 0.02
    assert of(Request, desk.do(PeerHas(2, 0, 0))) == []


def test_a_recall_that_we_have_no_use_for_is_gone() -> None:
    desk = Desk(runs=100)
    for request in full_room(desk)[:2]:
        end(desk, request, Outcome.BUSY)
    (first, second) = (p for p in desk.s._book.peers.values() if p.refused_since)
    desk.now += 0.1
    assert of(Request, desk.do(PeerHas(first.node, 0, 6))) == [], "others have our requests by now"
    (asked, *_) = desk.s._requester.requests.live
    end(desk, Request(asked, 0, 0), Outcome.REFUSED)
    asked_of = {r.peer.node for r in desk.s._requester.requests.live.values()}
    assert not asked_of & {first.node, second.node}
    assert of(Request, desk.do(PeerHas(first.node, 1, 6))) == []
    desk.s.check()


# -- full neighbours -------------------------------------------------------------------------


def test_a_full_neighbour_is_asked_when_it_says_that_it_has_room() -> None:
    desk = Desk(runs=3)
    desk.meet({2: 0})
    assert of(Request, desk.do(PeerHas(2, 1, FULL))) == []
    desk.now += 0.1
    assert len(of(Request, desk.do(PeerHas(2, 2, FULL - 1)))) == 2


def test_a_full_neighbour_that_says_no_more_is_asked_after_a_while() -> None:
    """One that has everything sends no have batches."""
    desk = Desk(runs=1)
    desk.meet({2: 0})
    assert of(Request, desk.do(PeerHas(2, 1, FULL))) == []
    assert of(Request, desk.sleep(SETTINGS.full_rest_s - 0.01)) == []
    assert len(of(Request, desk.sleep(0.02))) == 1


@pytest.mark.parametrize("flow", [0, SETTINGS.outstanding - 2, SETTINGS.outstanding - 1])
def test_a_neighbour_that_says_again_and_again_that_it_is_full_is_asked_but_for_the_last_place(
    flow: int,
) -> None:
    """It may be the only one that has what we need, or others keep their places there and we found none."""
    desk = Desk(runs=100)
    desk.meet({2: 0, **{10 + n: (n < flow) << 99 - n for n in range(SETTINGS.outstanding)}})
    asked = []
    for turn in range(10):
        asked += of(Request, desk.do(PeerHas(2, 1 << turn, FULL)))
        asked += of(Request, desk.sleep(0.8 * SETTINGS.full_rest_s))
    assert [one.peer for one in asked] == ([] if flow > SETTINGS.outstanding - 2 else [2])


def test_after_busy_a_neighbour_with_room_calls_first() -> None:
    """Its room is for those that it calls: whoever waited longest."""
    desk = Desk(runs=3)
    (asked,) = desk.meet({2: 1})
    assert end(desk, asked, Outcome.BUSY) == []
    assert of(Request, desk.do(PeerHas(2, 2, 0))) == []
    desk.now += 0.1
    assert len(of(Request, desk.do(PeerHas(2, 0, 0)))) >= 1


def full_room(desk: Desk) -> list[Request]:
    """Connect thirty neighbours that have everything and serve others; returns as many requests as the limits allow."""
    desk.meet(dict.fromkeys(range(2, 32), 0))
    asked = [
        one for node in range(2, 32) for one in of(Request, desk.do(PeerHas(node, desk.full, 1)))
    ]
    assert len(asked) == SETTINGS.outstanding
    return asked


def test_the_neighbour_that_has_just_sent_a_run_is_asked_for_the_next_one() -> None:
    """TCP is slow over a connection that was idle; others have a free slot as well."""
    desk = Desk(runs=100)
    asked = full_room(desk)
    desk.now += 0.1
    again = {one.peer for one in end(desk, asked[0])}
    assert again == {one.peer for one in asked}, "the six others are asked ahead"


def test_neighbours_that_serve_nobody_come_before_the_one_that_has_just_sent_a_run() -> None:
    desk = Desk(runs=100)
    asked = full_room(desk)
    desk.now += 0.1
    desk.do(PeerJoined(99, 0))
    desk.do(PeerHas(99, 1 << 99, 0))
    again = {one.peer for one in end(desk, asked[0])}
    assert again == {99, *(one.peer for one in asked[1:])}


def test_neighbours_that_serve_nobody_are_all_asked_at_once() -> None:
    """Each has a part of the model, and our link is wider than theirs."""
    desk = Desk(runs=200)
    holders = SETTINGS.outstanding + 4
    asked = desk.meet({2 + n: 0b1111 << 4 * n for n in range(holders)})
    assert len({one.peer for one in asked}) == len(asked) == holders
    busy, idle = 100, 101
    desk.meet({busy: 0, idle: 0})
    desk.do(PeerHas(busy, 1 << 198, 1))
    desk.do(PeerHas(idle, 1 << 199, 0))
    ended = desk.do(RequestEnded(asked[0].request, Outcome.DONE))
    again = {one.peer for one in of(Request, ended)}
    assert idle in again
    assert busy not in again, "it serves others"


def test_no_more_than_some_requests_flow_though_all_are_idle() -> None:
    desk = Desk(runs=200)
    assert len(desk.meet(dict.fromkeys(range(2, 32), desk.full))) == 2 * SETTINGS.outstanding


def test_an_urgent_run_is_asked_of_its_holder_first() -> None:
    desk = Desk(runs=200)
    ended = full_room(desk)[0]
    late = 1 << 199
    for peer in desk.s._book.peers.values():
        desk.s._book.on_refused(peer, late)
    desk.do(PeerJoined(32, 0))
    desk.do(PeerHas(32, late, 1))
    desk.do(Urgent(late))
    (again,) = of(Request, desk.do(RequestEnded(ended.request, Outcome.DONE)))
    assert (again.peer, again.run) == (32, 199)
