"""Pauses double, and end somewhere."""

from p2pcache.core.backoff import pause_s
from p2pcache.core.peers.peer import Peer
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Fetch, Request
from p2pcache.core.swarm.events import FetchEnded, Outcome, RequestEnded
from tests.core.scheduler.scheduler_kit import Desk, of

SETTINGS = SwarmSettings()


def test_pauses_double_up_to_the_limit() -> None:
    assert [pause_s(1.0, 30.0, failures) for failures in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pause_s(0.1, 30.0, 10**6) == 30.0


def test_a_neighbour_that_is_busy_or_stalls_for_ever_is_no_overflow() -> None:
    """After 1,024 refusals in a row, five minutes of a busy neighbour, the scheduler died of an OverflowError."""
    peer = Peer(2, 0, 0.0, 0, 0.0)
    for turn in range(1100):
        peer.on_busy(float(turn), SETTINGS.busy_rest_s)
        peer.on_stall(float(turn))
    assert peer.rest_until < 2000
    desk = Desk(runs=1)
    (request,) = desk.meet({2: 1})
    for _ in range(1100):
        desk.do(RequestEnded(request.request, Outcome.BUSY))
        while not (asked := of(Request, desk.sleep(SETTINGS.busy_rest_s))):
            pass
        (request,) = asked
    desk.do(RequestEnded(request.request, Outcome.DONE))
    assert desk.s.complete


def test_storage_that_fails_for_a_day_is_no_overflow() -> None:
    """Without a tracker storage is tried every half minute: after nine hours the scheduler died of an OverflowError."""
    desk = Desk(runs=1, tracker=False)
    end = desk.now + 24 * 3600
    fetches = of(Fetch, desk.sleep(1))
    while desk.now < end:
        for fetch in fetches:
            desk.do(FetchEnded(fetch.fetch, Outcome.UNAVAILABLE))
        fetches = of(Fetch, desk.sleep(1))
    while not fetches:
        fetches = of(Fetch, desk.sleep(1))
    for fetch in fetches:
        desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    assert desk.s.complete
