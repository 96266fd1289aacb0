"""A node that reaches no other one reads storage itself, though the tracker is up."""

from p2pcache.core import bitset
from p2pcache.core.swarm.commands import Blame, Command, Dial, Fetch, LeaseReport, OriginCorrupt
from p2pcache.core.swarm.events import (
    DialFailed,
    FetchEnded,
    LeaseGranted,
    Members,
    Outcome,
    PeerJoined,
    PeerLeft,
    RequestEnded,
    RunsLost,
    RunsProved,
    Source,
    Urgent,
    Wanted,
)
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, of, read_all


def cut_off(runs: int = 40) -> Desk:
    """A node whose tracker is up, and which can dial no other node."""
    desk = Desk(runs=runs)
    desk.do(Members((1, 2, 3)))
    desk.up()
    for node in (2, 3):
        desk.do(DialFailed(node))
    return desk


def test_a_cut_off_node_reads_what_it_lacks_though_the_tracker_is_up() -> None:
    desk = cut_off()
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []
    assert read_all(desk, of(Fetch, desk.sleep(SETTINGS.stuck_after_s))) == set(range(40))
    assert desk.s.complete


def test_a_cut_off_node_joins_runs_in_requests() -> None:
    """No other node could read a part of them."""
    desk = cut_off(runs=400)
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    out: list[Command] = []
    for fetch in fetches:
        desk.now += 0.01
        out += desk.do(FetchEnded(fetch.fetch, Outcome.DONE, 0.01))
    assert any(fetch.joined for fetch in of(Fetch, out))


def test_a_cut_off_node_reads_its_leases_first_and_reports_them() -> None:
    desk = cut_off()
    for run in range(4):
        desk.do(LeaseGranted(1 << run))
        assert of(Fetch, desk.sleep(SETTINGS.stuck_after_s)) == [], (
            "it reads nothing beyond its leases yet"
        )
        desk.do(FetchEnded(of(Fetch, desk.out)[-1].fetch, Outcome.DONE))
    assert read_all(desk, of(Fetch, desk.sleep(3 * SETTINGS.stuck_after_s))) == set(range(4, 40))
    assert sum(report.done for report in of(LeaseReport, desk.out)) == desk.full


def test_a_few_leases_do_not_keep_a_cut_off_node_waiting() -> None:
    """Nodes that can't reach each other must not live on one lease every few seconds."""
    desk = cut_off()
    fetches: list[Fetch] = []
    for run in range(8):
        desk.do(LeaseGranted(1 << run))
        desk.do(FetchEnded(of(Fetch, desk.out)[-1].fetch, Outcome.DONE))
        fetches += of(Fetch, desk.sleep(SETTINGS.stuck_after_s - 1))
    assert fetches, "it reads runs that weren't granted"


def test_a_node_that_has_not_dialled_in_vain_reads_nothing() -> None:
    desk = Desk(runs=40)
    desk.do(Members((1, 2, 3)))
    desk.up()
    assert of(Fetch, desk.sleep(60)) == []


def test_a_neighbour_ends_the_reads_of_a_cut_off_node() -> None:
    desk = cut_off()
    first = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    assert first
    assert not of(LeaseReport, desk.out), "the tracker granted nothing"
    desk.do(PeerJoined(2, 0))
    reading = bitset.of(fetch.run for fetch in first)
    assert desk.s.origin_runs == reading, "an announce names the runs that are being read"
    for fetch in first:
        assert of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE))) == []
    assert sum(report.done for report in of(LeaseReport, desk.out)) == reading
    assert of(Fetch, desk.sleep(60)) == [], "from now on the tracker decides who reads"
    desk.do(PeerLeft(2))
    for node in (2, 3):
        desk.do(DialFailed(node))
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))


def test_a_cut_off_node_reports_an_origin_that_mismatches_twice() -> None:
    """Without a lease the tracker doesn't count its report, so the node says it itself."""
    desk = cut_off()
    wait_s = SETTINGS.owner_patience_s + SETTINGS.stuck_after_s
    fetches = of(Fetch, desk.sleep(wait_s))
    run = fetches[0].run
    for _ in range(3):
        for fetch in fetches:
            desk.do(FetchEnded(fetch.fetch, Outcome.MISMATCH))
        fetches = of(Fetch, desk.sleep(wait_s))
    assert run in {corrupt.run for corrupt in of(OriginCorrupt, desk.out)}


def test_a_node_whose_neighbour_has_just_left_is_not_cut_off() -> None:
    desk = cut_off()
    desk.do(PeerJoined(2, 0))
    desk.sleep(60)
    desk.do(PeerLeft(2))
    for node in (2, 3):
        desk.do(DialFailed(node))
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []


def test_dials_that_failed_before_the_last_neighbour_came_do_not_count() -> None:
    desk = cut_off()
    desk.do(PeerJoined(2, 0))
    desk.do(PeerLeft(2))
    out = desk.sleep(60)
    assert of(Fetch, out) == []
    assert {dial.peer for dial in of(Dial, out)} == {2, 3}, "it dials them again"


def test_the_last_neighbour_lied() -> None:
    desk = cut_off()
    (asked,) = desk.meet({2: 1 << 7})[:1]
    desk.do(RequestEnded(asked.request, Outcome.MISMATCH))
    assert of(Blame, desk.out)
    for node in (2, 3):
        desk.do(DialFailed(node))
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    assert read_all(desk, fetches) == set(range(40))


def test_two_dozen_members_are_dialled_before_a_node_is_cut_off() -> None:
    """The tracker may have named only members that nobody reaches."""
    desk = Desk(runs=40, node=50)
    desk.do(Members(tuple(range(1, 101))))
    desk.up()
    dialled: list[int] = []
    for _ in range(20):
        out = desk.sleep(SETTINGS.stuck_after_s)
        if of(Fetch, out):
            break
        now = [dial.peer for dial in of(Dial, out)]
        for node in now:
            desk.do(DialFailed(node))
        dialled += now
    assert dialled == list(range(51, 75))
    assert of(Fetch, desk.out)


def test_a_cut_off_node_reads_urgent_runs_first() -> None:
    desk = cut_off(runs=400)
    desk.do(Urgent(1 << 399))
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    assert fetches[0].run == 399


def test_a_pull_that_begins_later_waits_from_then() -> None:
    """A node that only served for a day has dialled nobody, and then wants more."""
    desk = Desk(runs=40)
    desk.do(Members((1, 2, 3)))
    desk.do(Wanted(0))
    desk.up()
    desk.sleep(1000)
    desk.do(Wanted(desk.full))
    for node in (2, 3):
        desk.do(DialFailed(node))
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []
    assert of(Fetch, desk.sleep(SETTINGS.stuck_after_s))


def test_a_cut_off_node_lets_failing_storage_rest() -> None:
    desk = cut_off()
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    for fetch in fetches:
        desk.do(FetchEnded(fetch.fetch, Outcome.UNAVAILABLE))
    assert of(Fetch, desk.sleep(0.4)) == []
    assert of(Fetch, desk.sleep(1.2))


def test_a_banned_node_that_can_be_dialled_is_nobody_to_wait_for() -> None:
    """A banned node is no neighbour and no failed dial, so it must count as out of reach."""
    desk = cut_off()
    asked = desk.meet({2: 1 << 7})[0]
    desk.do(RequestEnded(asked.request, Outcome.MISMATCH))
    desk.do(DialFailed(3))
    out: list[Command] = []
    for _ in range(10):
        now = desk.sleep(SETTINGS.stuck_after_s)
        if 2 in {dial.peer for dial in of(Dial, now)}:
            desk.do(PeerJoined(2, desk.full))
        out += now
    assert of(Fetch, out)


def test_a_dial_that_is_under_way_may_yet_reach_somebody() -> None:
    desk = cut_off()
    desk.do(Members((1, 2, 3, 4)))
    out = desk.sleep(SETTINGS.owner_patience_s)
    assert [dial.peer for dial in of(Dial, out)] == [4]
    assert of(Fetch, desk.sleep(10)) == []
    desk.do(DialFailed(4))
    assert of(Fetch, desk.sleep(SETTINGS.stuck_after_s))


def test_dials_that_failed_long_before_runs_were_wanted_do_not_count() -> None:
    desk = Desk(runs=40)
    desk.do(Members((1, 2, 3)))
    desk.do(Wanted(0))
    desk.up()
    for node in (2, 3):
        desk.do(DialFailed(node))
    desk.sleep(3600)
    desk.do(Urgent(1 << 5))
    assert of(Fetch, desk.sleep(SETTINGS.owner_patience_s - 0.1)) == []
    desk.do(Members(tuple(range(1, 100))))
    assert of(Fetch, desk.sleep(60)) == [], "other members may be reachable"


def test_more_wanted_runs_do_not_restart_the_wait() -> None:
    """Each new loader changes what is wanted. If that restarted the wait, it would never end."""
    desk = cut_off()
    desk.do(Wanted(0b1))
    out: list[Command] = []
    for loaders in range(2, 8):
        out += desk.sleep(3)
        desk.do(Wanted(bitset.full(loaders)))
    assert of(Fetch, out)


def test_neighbours_that_left_together_are_not_the_two_dozen() -> None:
    """Neighbours that leave together may all be in one rack that lost its power."""
    desk = Desk(runs=40, node=5000)
    desk.do(Members(tuple(range(1, 10_001))))
    desk.up()
    near = range(1, 25)
    for node in near:
        desk.do(PeerJoined(node, 0))
    for node in near:
        desk.do(PeerLeft(node))
    for node in near:
        desk.do(DialFailed(node))
    out = desk.sleep(2 * SETTINGS.owner_patience_s)
    assert len({dial.peer for dial in of(Dial, out)} - {*near}) == 24
    assert of(Fetch, out) == []


def test_dials_that_failed_long_before_a_run_was_lost_do_not_count() -> None:
    desk = Desk(runs=40)
    desk.do(Members((1, 2, 3)))
    desk.do(RunsProved(desk.full, Source.LOCAL))
    desk.up()
    for node in (2, 3):
        desk.do(DialFailed(node))
    desk.sleep(3600)
    desk.do(RunsLost(1 << 5))
    out = desk.sleep(60)
    assert of(Fetch, out) == []
    assert {dial.peer for dial in of(Dial, out)} == {2, 3}, "it dials them again"


def test_what_a_cut_off_node_reads_is_no_lease_until_it_reaches_another() -> None:
    """The tracker took a hundred joined reads for leases, and the others waited for what nobody gets."""
    desk = cut_off(runs=400)
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + SETTINGS.stuck_after_s))
    assert fetches
    assert desk.s.origin_runs == 0
    desk.do(LeaseGranted(1 << 399))
    assert desk.s.origin_runs == 1 << 399, "it says that it lives on"
    desk.do(PeerJoined(2, 0))
    assert desk.s.origin_runs == bitset.of(one.run for one in fetches) | 1 << 399
