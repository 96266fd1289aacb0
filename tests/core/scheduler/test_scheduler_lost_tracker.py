"""What a lost tracker had granted is left to its readers for a while."""

import pytest

from p2pcache.core.origin.settings import (
    FILL_A_LINK,
    MOST_UNDER_WAY,
    PATIENCE_RATIO,
)
from p2pcache.core.rendezvous import order
from p2pcache.core.swarm.commands import (
    Fetch,
    Request,
)
from p2pcache.core.swarm.events import (
    FetchEnded,
    LeaseGranted,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    RequestEnded,
    TrackerDown,
    TrackerUp,
)
from tests.core.scheduler.scheduler_kit import SETTINGS, Desk, bring, of, of_three, read_all


def test_without_the_tracker_owners_read_once_its_leases_are_over() -> None:
    """After twice the time that so many reads may take."""
    desk = of_three(runs=200)
    bring(desk, 2, range(20), pace_s=0.1)
    desk.do(TrackerDown())
    reads_s = PATIENCE_RATIO * FILL_A_LINK * 0.1
    assert of(Fetch, desk.sleep(reads_s - 0.2)) == []
    fetches = of(Fetch, desk.sleep(0.4))
    assert fetches
    assert read_all(desk, fetches) <= {r for r in range(20, 200) if order(r, (1, 2, 3))[0] == 1}


def test_what_the_tracker_said_to_be_in_flight_is_left_to_its_readers() -> None:
    """A node of two had read all its leases when the tracker was lost, the other had twenty.

    It took the fewest, eight, for all of them, and read five of the twenty again.
    """
    desk = Desk(runs=96)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    bring(desk, 2, range(12), pace_s=0.04)
    leases = of(Fetch, desk.do(LeaseGranted(1 << 12, in_flight=31)))
    desk.sleep(0.25)
    assert read_all(desk, leases) == {12}
    desk.do(TrackerDown())
    for run in range(13, 33):
        assert of(Fetch, desk.sleep(0.08)) == [], "its reader is at it"
        desk.do(PeerHas(2, 1 << run, 0))
    own = {run for run in range(33, 96) if order(run, (1, 2))[0] == 1}
    assert read_all(desk, of(Fetch, desk.sleep(6.0))) == own


def test_a_tracker_that_says_no_number_has_few_leases_in_flight() -> None:
    """One of an older release: its grants to others aren't known."""
    desk = of_three(runs=200)
    bring(desk, 2, range(20), pace_s=0.1)
    desk.do(LeaseGranted(0, in_flight=31))
    read_all(desk, of(Fetch, desk.do(LeaseGranted(1 << 20))))
    desk.do(TrackerDown())
    by_itself = desk.s._by_itself
    assert by_itself._under_way == FILL_A_LINK
    assert by_itself._alone_at > desk.now


@pytest.mark.parametrize(
    ("in_flight", "epoch", "under_way"),
    [(31, 5, 31), (1000, 5, MOST_UNDER_WAY), (31, 6, FILL_A_LINK)],
)
def test_leases_in_flight_are_as_many_as_the_same_tracker_said(
    in_flight: int, epoch: int, under_way: int
) -> None:
    """A tracker that restarted knows nothing of those before; no number is waited for without an end."""
    desk = of_three(runs=200)
    desk.do(LeaseGranted(1, in_flight=in_flight))
    desk.do(TrackerDown())
    desk.do(TrackerUp(epoch))
    assert desk.s._by_itself._under_way == under_way


def test_a_tracker_that_comes_back_again_and_again_stops_no_reads() -> None:
    """It is up for a second of each ten, and each loss began the whole wait anew."""
    desk = Desk(runs=8)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    desk.sleep(15)
    fetches: list[Fetch] = []
    for _ in range(6):
        desk.do(TrackerDown())
        fetches += of(Fetch, desk.sleep(9))
        desk.up()
        desk.sleep(1)
    assert fetches


def test_leases_of_a_lost_tracker_are_no_more_than_the_missing_runs() -> None:
    """The wait follows the runs that are missing, not the usual number of leases."""
    desk = of_three(runs=7)
    for run in range(5):
        desk.now += 4.0
        desk.do(PeerHas(2, 1 << run, 0))
        desk.do(RequestEnded(of(Request, desk.out)[-1].request, Outcome.DONE))
    desk.do(TrackerDown())
    assert of(Fetch, desk.sleep(8)) == []
    assert of(Fetch, desk.sleep(12))


def test_leases_of_a_lost_tracker_are_waited_for_once() -> None:
    """A pace that becomes known during the wait must not lengthen it."""
    desk = Desk(runs=24)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(TrackerDown())
    fetches = of(Fetch, desk.sleep(SETTINGS.owner_patience_s + 1))
    own = [run for run in range(24) if order(run, (1, 2))[0] == 1]
    read: list[int] = []
    while fetches:
        desk.now += 0.5
        fetch = fetches.pop(0)
        read.append(fetch.run)
        fetches += of(Fetch, desk.do(FetchEnded(fetch.fetch, Outcome.DONE)))
    assert read == own


@pytest.mark.parametrize(("pace_s", "most_s"), [(0.5, 17.0), (1.0, 26.0), (2.0, 44.0), (4.0, 53.0)])
def test_a_node_that_nobody_dials_reads_soon_though_its_neighbour_never_does(
    pace_s: float, most_s: float
) -> None:
    """It waited for as long as all reads may take, 112 s at two seconds a run: its pull was given up."""
    desk = Desk(runs=100, dialled=False)
    desk.do(Members((1, 2)))
    desk.up()
    desk.do(PeerJoined(2, 0))
    bring(desk, 2, range(8), pace_s=pace_s)
    desk.do(TrackerDown())
    assert of(Fetch, desk.sleep(most_s))
