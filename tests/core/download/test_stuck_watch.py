"""Runs that a node reports as stuck, and runs that it doesn't."""

from p2pcache.core.swarm.commands import (
    Request,
    Stuck,
)
from p2pcache.core.swarm.events import (
    Outcome,
    PeerHas,
    PeerJoined,
    RequestEnded,
    Wanted,
)
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, of


def bring(desk: Desk, run: int) -> None:
    """Node 2 gets a run and sends it to us."""
    (asked,) = of(Request, desk.do(PeerHas(2, 1 << run, 0)))
    desk.do(RequestEnded(asked.request, Outcome.DONE))


def test_runs_that_nobody_has_are_reported_stuck() -> None:
    desk = Desk(runs=8)
    desk.up()
    desk.do(PeerJoined(2, 0b11110110))
    for r in of(Request, desk.out):
        desk.do(RequestEnded(r.request, Outcome.DONE))
    out = desk.sleep(3 * SETTINGS.stuck_after_s)
    assert of(Stuck, out)[0] == Stuck(0b1001, lacking=0b1001)


def test_a_run_that_is_not_read_yet_is_not_stuck_while_others_come() -> None:
    desk = Desk(runs=64)
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(10):
        bring(desk, run)
        desk.sleep(2)
    assert of(Stuck, desk.out) == []


def test_a_run_just_read_out_of_order_is_not_stuck() -> None:
    """Otherwise every node of a storm would report it, and running reads would be granted again."""
    desk = Desk(runs=200)
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in range(0, 200, 2):
        for one in (run + 1, run):
            bring(desk, one)
            desk.sleep(0.13)
    assert of(Stuck, desk.out) == []


def test_a_run_passed_over_a_whole_interval_ago_is_stuck_though_more_comes() -> None:
    desk = Desk(runs=64)
    desk.up()
    desk.do(PeerJoined(2, 0))
    for run in (0, 1, 3, 4, 5, 6, 7, 8):
        bring(desk, run)
        desk.sleep(2)
    assert {c.runs for c in of(Stuck, desk.out)} == {1 << 2}


def test_runs_of_another_part_do_not_make_ours_stuck() -> None:
    """Runs that come for another part are no progress for ours."""
    desk = Desk(runs=64)
    desk.up()
    ours = 1 << 40 | 1 << 41
    desk.do(Wanted(ours))
    desk.do(PeerJoined(2, 0))
    for run in range(10):
        desk.do(PeerHas(2, 1 << run, 0))
        desk.sleep(1)
    assert {c.runs for c in of(Stuck, desk.out)} == {ours}
