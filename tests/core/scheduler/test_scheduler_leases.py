"""What a node does with leases."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.swarm.commands import (
    CancelFetch,
    Fetch,
    LeaseCredit,
    LeaseReport,
    Request,
)
from p2pcache.core.swarm.events import (
    FetchEnded,
    LeaseGranted,
    LeaseRevoked,
    Outcome,
    PeerJoined,
    RequestEnded,
)
from tests.core.scheduler.scheduler_kit import MB, SETTINGS, Desk, of


def test_a_granted_lease_is_read_at_once_and_reported_at_once() -> None:
    desk = Desk()
    desk.up()
    (fetch,) = of(Fetch, desk.do(LeaseGranted(1 << 3)))
    assert fetch.run == 3
    assert desk.s.origin_runs == 1 << 3
    out = desk.do(FetchEnded(fetch.fetch, Outcome.DONE))
    assert of(LeaseReport, out) == [LeaseReport(done=1 << 3)]
    assert desk.s.origin_runs == 0
    assert desk.s.counters.bytes_origin == MB


def test_never_more_reads_than_the_credit() -> None:
    desk = Desk(runs=1000)
    desk.up()
    most = SETTINGS.origin_fetches + SETTINGS.origin_ahead
    fetches = of(Fetch, desk.do(LeaseGranted(desk.full)))
    assert [f.run for f in fetches] == list(range(most))
    assert of(Fetch, desk.do(FetchEnded(1, Outcome.DONE)))[0].run == most


def _credit_after_one_read(took_s: float, flow_s: float) -> int:
    desk = Desk(runs=1000)
    desk.up()
    (fetch,) = of(Fetch, desk.do(LeaseGranted(1)))
    desk.now += took_s
    desk.do(FetchEnded(fetch.fetch, Outcome.DONE, flow_s))
    return desk.s.credit


def test_a_slow_node_asks_for_few_leases_after_its_first_read() -> None:
    """With all of them it read 12 of 32 runs that were taken from it again (seed 1001175)."""
    assert _credit_after_one_read(took_s=3.2, flow_s=1.3) <= 6


def test_a_first_read_that_tells_nothing_leaves_it_to_the_second() -> None:
    desk = Desk(runs=1000)
    desk.up()
    first, second = of(Fetch, desk.do(LeaseGranted(3)))
    desk.do(FetchEnded(first.fetch, Outcome.DONE))
    assert desk.s.credit < 5
    desk.now += 0.31
    desk.do(FetchEnded(second.fetch, Outcome.DONE, 0.01))
    assert desk.s.credit > 60


def test_a_node_far_from_storage_asks_for_all_that_its_way_holds() -> None:
    assert _credit_after_one_read(took_s=0.31, flow_s=0.01) >= 60


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
    (fetch,) = of(Fetch, desk.do(LeaseGranted(2)))
    assert of(LeaseReport, desk.do(FetchEnded(fetch.fetch, outcome))) == [report]
    assert of(Fetch, desk.sleep(60)) == [], "only the tracker may grant it again"


def test_a_lease_for_a_proved_run_is_reported_done() -> None:
    desk = Desk(have=1)
    desk.up()
    assert desk.do(LeaseGranted(1)) == [LeaseReport(done=1)]


def test_a_leased_run_that_a_neighbour_has_is_taken_from_there() -> None:
    desk = Desk()
    desk.up()
    (asked,) = of(Request, desk.do(PeerJoined(2, 1)))
    assert of(Fetch, desk.do(LeaseGranted(1))) == []
    assert desk.s.origin_runs == 1, "the lease is kept, so nobody else reads the run"
    out = desk.do(RequestEnded(asked.request, Outcome.DONE))
    assert of(LeaseReport, out) == [LeaseReport(done=1)]


def test_a_lease_is_used_when_the_neighbour_does_not_deliver() -> None:
    desk = Desk()
    desk.up()
    desk.do(PeerJoined(2, 1))
    desk.do(LeaseGranted(1))
    assert [f.run for f in of(Fetch, desk.sleep(SETTINGS.stuck_after_s))] == [0]


def test_a_revoked_lease_is_dropped_and_its_read_cancelled() -> None:
    desk = Desk()
    desk.up()
    fetches = of(Fetch, desk.do(LeaseGranted(desk.full)))
    out = desk.do(LeaseRevoked(desk.full))
    assert {c.fetch for c in of(CancelFetch, out)} == {f.fetch for f in fetches}
    assert desk.s.origin_runs == 0
    for f in fetches:
        assert of(LeaseReport, desk.do(FetchEnded(f.fetch, Outcome.CANCELLED))) == []


def test_a_broken_disk_stops_everything_and_gives_leases_back() -> None:
    desk = Desk(runs=200)
    desk.up()
    asked = of(Request, desk.do(PeerJoined(2, desk.full << 100 & desk.full)))
    most = SETTINGS.origin_fetches + SETTINGS.origin_ahead
    desk.do(LeaseGranted(bitset.full(most + 12)))
    out = desk.do(RequestEnded(asked[0].request, Outcome.FAILED))
    (report,) = of(LeaseReport, out)
    assert report.failed == bitset.full(most + 12) & ~bitset.full(most)
    assert of(LeaseCredit, out) == [LeaseCredit(0)]
    assert of(Request, desk.do(PeerJoined(3, desk.full))) == []
    for number in range(1, most + 1):
        desk.do(FetchEnded(number, Outcome.CANCELLED))
    assert of(Fetch, desk.sleep(60)) == []
