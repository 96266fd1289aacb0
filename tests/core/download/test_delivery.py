"""What a doubted neighbour has does not count until it delivers."""

from p2pcache.core.download.settings import UNMEASURED
from p2pcache.core.swarm.commands import Fetch, Request, Stuck
from p2pcache.core.swarm.events import (
    LeaseGranted,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    TrackerDown,
)
from p2pcache.core.upload.settings import FULL
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, of

HUNG, GOOD = 2, 3


def stalled(desk: Desk) -> list[Stuck]:
    """Requests to the hung neighbour stall; returns what the tracker is told."""
    asked = of(Request, desk.do(PeerJoined(HUNG, desk.full)))
    desk.sleep(10.0)
    for request in asked:
        desk.do(RequestEnded(request.request, Outcome.STALLED))
    return of(Stuck, desk.out)


def test_a_stalled_neighbour_is_reported_at_once_and_its_runs_lack_a_holder() -> None:
    desk = Desk()
    desk.up()
    (told, *_) = stalled(desk)
    assert told.failing == (HUNG,)
    assert told.lacking == desk.full
    assert desk.s.waits_for(desk.now) == "lease"
    assert not desk.s.view(desk.now).peers[0].delivers
    (fetch,) = of(Fetch, desk.do(LeaseGranted(1)))
    assert fetch.run == 0, "a lease doesn't wait for a run that the hung neighbour claims to have"


def test_a_doubted_neighbour_is_probed_and_believed_when_a_run_comes() -> None:
    desk = Desk()
    desk.up()
    stalled(desk)
    (probe,) = of(Request, desk.sleep(SETTINGS.stuck_after_s / 2))
    assert probe.peer == HUNG
    desk.out.clear()
    desk.do(RequestEnded(probe.request, Outcome.DONE))
    assert Stuck(0, recovered=(HUNG,)) in desk.out
    assert desk.s.view(desk.now).peers[0].delivers
    assert len({r.run for r in of(Request, desk.out)}) > 1, "it is asked for several runs again"


def test_runs_asked_of_a_hung_neighbour_are_asked_of_others() -> None:
    desk = Desk(runs=1)
    desk.up()
    stalled(desk)
    desk.sleep(2.0)  # the probe is under way
    assert [r.peer for r in of(Request, desk.do(PeerJoined(GOOD, 1)))] == [GOOD]


def test_a_doubted_neighbour_that_never_sent_a_run_stays_doubted_on_a_new_connection() -> None:
    desk = Desk()
    desk.up()
    stalled(desk)
    desk.do(PeerLeft(HUNG))
    desk.do(PeerJoined(HUNG, desk.full))
    assert not desk.s.view(desk.now).peers[0].delivers


def test_a_neighbour_that_sent_a_run_before_delivers_one_on_a_new_connection_first() -> None:
    desk = Desk()
    desk.up()
    first, second, *_ = of(Request, desk.do(PeerJoined(HUNG, desk.full)))
    desk.do(RequestEnded(first.request, Outcome.DONE))
    desk.do(RequestEnded(second.request, Outcome.STALLED))
    desk.do(PeerLeft(HUNG))
    (probe,) = of(Request, desk.do(PeerJoined(HUNG, desk.full)))
    desk.do(RequestEnded(probe.request, Outcome.DONE))
    assert desk.s.view(desk.now).peers[0].delivers
    assert Stuck(0, recovered=(HUNG,)) in desk.out


def test_a_connection_that_ends_while_something_is_owed_counts_like_a_stall() -> None:
    desk = Desk()
    desk.up()
    request, *_ = of(Request, desk.do(PeerJoined(HUNG, desk.full)))
    desk.do(RequestEnded(request.request, Outcome.LOST))
    desk.do(PeerLeft(HUNG))
    desk.do(PeerJoined(HUNG, desk.full))
    assert not desk.s.view(desk.now).peers[0].delivers


def refused_for(desk: Desk, seconds: float, moving: bool, serves_every: int = 0) -> bool:
    """One neighbour refuses every request for `seconds`; returns whether it is still believed.

    `moving`: another one comes to have a run each second. `serves_every`: it says as often that it serves others.
    """
    desk.up()
    desk.do(PeerJoined(GOOD, 0))
    desk.do(PeerJoined(HUNG, desk.full))
    answered: set[int] = set()
    end, news = desk.now + seconds, 0
    while desk.now < end:
        for request in of(Request, desk.out):
            if request.request not in answered and request.peer == HUNG:
                answered.add(request.request)
                desk.do(RequestEnded(request.request, Outcome.BUSY))
        if moving and desk.now > end - seconds + news + 1:
            desk.do(PeerHas(GOOD, 1 << news, 1))
            news += 1
        desk.sleep(0.1)
        if serves_every and round(10 * (end - desk.now)) % (10 * serves_every) == 0:
            desk.do(PeerHas(HUNG, 0, FULL))
    return next(p.delivers for p in desk.s.view(desk.now).peers if p.node == HUNG)


def test_a_neighbour_that_refuses_everything_while_nothing_moves_is_doubted() -> None:
    assert refused_for(Desk(), SETTINGS.owner_patience_s, moving=False)
    assert not refused_for(Desk(), UNMEASURED * SETTINGS.owner_patience_s + 2, moving=False)


def test_a_crowded_neighbour_is_believed_while_the_swarm_moves() -> None:
    assert refused_for(Desk(), 3 * SETTINGS.owner_patience_s, moving=True)


def test_a_neighbour_that_serves_others_is_believed() -> None:
    assert refused_for(Desk(), 120, moving=False, serves_every=12)
    assert not refused_for(Desk(), 52, moving=False, serves_every=26), "it was too late to say so"


def test_news_beyond_our_rack_of_what_a_refuser_has_in_it_is_no_move() -> None:
    """We may not fetch it there: the run isn't nearer to us than before."""
    desk = Desk()
    desk.do(Members((1, HUNG, GOOD), rack=(1, HUNG), site=(1, HUNG, GOOD)))
    assert not refused_for(desk, UNMEASURED * SETTINGS.owner_patience_s + 2, moving=True)


def refused_by_a_reader(desk: Desk, load: int) -> bool:
    """A neighbour reads one run a second, refuses us, and says this load; returns whether it is believed after a while.

    Another neighbour comes to have more, too.
    """
    desk.up()
    desk.do(PeerJoined(GOOD, 0))
    desk.do(PeerJoined(HUNG, 1))
    answered: set[int] = set()
    for news in range(1, 10):
        for request in of(Request, desk.out):
            if request.request not in answered and request.peer == HUNG:
                answered.add(request.request)
                desk.do(RequestEnded(request.request, Outcome.BUSY))
        desk.do(PeerHas(HUNG, 1 << news, load))
        desk.do(PeerHas(GOOD, 1 << news - 1, 1))
        desk.sleep(1.0)
    return next(p.delivers for p in desk.s.view(desk.now).peers if p.node == HUNG)


def test_a_neighbour_that_serves_nobody_and_refuses_us_is_doubted_though_the_swarm_moves() -> None:
    assert not refused_by_a_reader(Desk(runs=32), load=0)
    assert refused_by_a_reader(Desk(runs=32), load=7)


def test_without_a_tracker_an_owner_that_delivers_nothing_is_passed_over() -> None:
    desk = Desk()
    desk.up()
    desk.do(Members((1, HUNG)))
    desk.do(TrackerDown())
    stalled(desk)
    desk.sleep(2 * SETTINGS.owner_patience_s)
    assert of(Fetch, desk.out), "this node owns everything and reads it"


def lost(desk: Desk, asked: list[Request]) -> list[Stuck]:
    """The connections of these requests end, and come back after ten seconds; returns what the tracker is told."""
    nodes = {one.peer for one in asked}
    for one in asked:
        desk.do(RequestEnded(one.request, Outcome.LOST))
    for node in nodes:
        desk.do(PeerLeft(node))
    desk.sleep(10.0)
    for node in nodes:
        desk.do(PeerJoined(node, desk.full))
    return of(Stuck, desk.out)


def test_the_only_holder_whose_connection_ended_is_not_named_to_the_tracker() -> None:
    """A seed's runs were void after its restart."""
    desk = Desk()
    desk.up()
    told = lost(desk, of(Request, desk.do(PeerJoined(HUNG, desk.full))))
    assert not any(one.failing for one in told)
    probe = of(Request, desk.out)[-1]
    desk.do(RequestEnded(probe.request, Outcome.STALLED))
    desk.sleep(SETTINGS.stuck_after_s)
    assert of(Stuck, desk.out)[-1].failing == (HUNG,), "it was asked again, and sent nothing"


def test_many_connections_that_are_reset_together_name_nobody() -> None:
    desk = Desk()
    desk.up()
    told = lost(desk, desk.meet(dict.fromkeys(range(2, 10), desk.full)))
    assert not any(one.failing for one in told)


def test_a_failure_of_our_own_disk_says_nothing_of_the_sender() -> None:
    desk = Desk()
    desk.up()
    request, *_ = of(Request, desk.do(PeerJoined(HUNG, desk.full)))
    desk.do(RequestEnded(request.request, Outcome.FAILED))
    desk.sleep(SETTINGS.stuck_after_s)
    assert desk.s.view(desk.now).peers[0].delivers
    assert of(Stuck, desk.out) == []
