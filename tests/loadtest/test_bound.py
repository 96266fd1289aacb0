"""The storm's arithmetic: the bound, the judgement, the verdicts."""

import math

import pytest

from loadtest.storm.faults import FAULTS, Trouble
from loadtest.storm.plan import Links, Plan, bound_s, late_bound_s, lower_bound_s
from loadtest.storm.race import Outcome, Race
from loadtest.storm.report import OriginBytes, Report

MIB = 1 << 20
PLAN = Plan(nodes=8, rate=6.25e6, origin_rate=6.25e6, size_bytes=128 * MIB)
LINKS = Links(node=6e6, origin=6e6)


def report(plan: Plan = PLAN, *, seconds: float = 25.0, codes: dict[int, int] | None = None,
           sent: int = 128 * MIB, busy: float = 0.4) -> Report:  # fmt: skip
    outcomes = [
        Outcome(n, code=(codes or {}).get(n, 0), ended_s=seconds - n, equal=True)
        for n in range(plan.nodes)
    ]
    race = Race(outcomes, busy, {"n0": 1.0, "tracker": 0.1}, 100 * MIB)
    return Report(plan, Trouble.of(plan), LINKS, race, OriginBytes(sent, sent + 1000), 128 * MIB)


def test_bound_is_the_slowest_of_origin_node_and_sum() -> None:
    assert lower_bound_s(100, 1, [10, 10], [10, 10], 5) == pytest.approx(20 + 1 / 10)
    assert lower_bound_s(100, 1, [10, 4], [10, 10], 50) == pytest.approx(25 + 1 / 10)
    # eight nodes that may hardly upload: 800 bytes through 20 + 8 x 1
    assert lower_bound_s(100, 1, [100] * 8, [1] * 8, 20) == pytest.approx(800 / 28 + 3)


def test_one_node_has_nobody_to_pass_chunks_to() -> None:
    assert lower_bound_s(100, 50, [10], [10], 5) == 20


def test_a_storm_of_512_chunks() -> None:
    assert PLAN.chunk_bytes == 256 * 1024
    expected = 128 * MIB / 6e6 + 3 * 256 * 1024 / 6e6
    assert bound_s(PLAN, LINKS, 128 * MIB, 8) == pytest.approx(expected)


def test_eta_and_alpha() -> None:
    data = report().as_json()
    assert data["eta"] == pytest.approx(bound_s(PLAN, LINKS, 128 * MIB, 8) / 25, abs=1e-4)
    assert data["eta_median"] > data["eta"]
    assert data["alpha"] == 1.0
    assert data["chunks"] == 512
    assert not data["void"]
    assert not data["failures"]
    assert "all as it must be" in report().as_text()


def test_a_busy_machine_voids_the_times() -> None:
    assert report(busy=0.9).as_json()["void"]
    assert "void" in report(busy=0.9).as_text()


def test_a_failed_node_leaves_no_eta() -> None:
    failed = report(codes={3: 7})
    assert failed.as_json()["eta"] is None
    assert any("n3" in line for line in failed.failures())
    assert "WRONG" in failed.as_text()


def test_too_many_origin_reads_are_a_failure() -> None:
    assert any("alpha" in line for line in report(sent=140 * MIB).failures())


def test_the_unlucky_node_is_not_counted() -> None:
    plan = Plan(nodes=8, rate=1, origin_rate=1, size_bytes=128 * MIB, faults=("kill-node",))
    killed = report(plan, codes={7: 8})
    assert not killed.failures()
    assert killed.as_json()["counted_nodes"] == list(range(7))


def test_late_nodes_are_judged_from_their_own_start() -> None:
    late = Plan(nodes=7, rate=1, origin_rate=1, size_bytes=128 * MIB, faults=("late-half",))
    assert Trouble.of(late).late(late) == Trouble.of(late).unlucky(late) == {4, 5, 6}
    assert Trouble.of(late).expected(late, 6) == {0}
    assert not Trouble.of(late).liars(late)
    one = Plan(nodes=7, rate=1, origin_rate=1, size_bytes=128 * MIB, faults=("late-join", "liar"))
    assert Trouble.of(one).late(one) == Trouble.of(one).liars(one) == {6}
    storm = report(late, seconds=35.0)
    for outcome in storm.race.outcomes[4:]:
        outcome.started_s = 11.0
    data, own = storm.as_json(), 128 * MIB / 6e6
    assert data["counted_nodes"] == [0, 1, 2, 3]
    assert data["late"] == {f"n{n}": round((35 - n - 11) / own, 4) for n in (4, 5, 6)}
    assert "late       0.894" in storm.as_text()
    assert report().as_json()["late"] == {}


def test_the_bound_of_late_nodes() -> None:
    assert late_bound_s(PLAN, LINKS, 128 * MIB, 4, 11.0) == pytest.approx(128 * MIB / 6e6)
    thin = Links(node=6e6, origin=2e6)
    assert late_bound_s(PLAN, thin, 128 * MIB, 4, 11.0) == pytest.approx(128 * MIB / 2e6 - 11)
    racks = Links(node=6e6, origin=6e6, uplink=3e6)
    assert late_bound_s(PLAN, racks, 128 * MIB, 4, 11.0) == pytest.approx(128 * MIB / 3e6)
    many = Plan(nodes=1, rate=1, origin_rate=1, size_bytes=600)
    assert late_bound_s(many, Links(node=10, origin=20), 600, 3, 20.0) == pytest.approx(60)


def test_a_full_disk_must_be_exit_5() -> None:
    plan = Plan(nodes=8, rate=1, origin_rate=1, size_bytes=128 * MIB, faults=("disk-full",))
    assert not report(plan, codes={7: 5}).failures()
    assert report(plan).failures()


def test_corrupt_storage_must_be_exit_6_everywhere() -> None:
    plan = Plan(nodes=8, rate=1, origin_rate=1, size_bytes=128 * MIB, faults=("corrupt-origin",))
    assert not report(plan, codes=dict.fromkeys(range(8), 6)).failures()
    assert report(plan, codes=dict.fromkeys(range(7), 6)).failures()


def test_wrong_bytes_are_always_a_failure() -> None:
    wrong = report()
    wrong.race.outcomes[2].equal = False
    assert wrong.failures()


def test_the_naive_rival_stays_affordable() -> None:
    assert PLAN.naive_bytes * 8 / PLAN.origin_rate <= 30.0 + 1
    assert math.isclose(PLAN.naive_bytes, 30 * 6.25e6 / 8, rel_tol=0.01)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_says_what_it_does(name: str) -> None:
    assert FAULTS[name].help


def test_a_thin_uplink_bounds_a_storm_over_racks() -> None:
    plan = Plan(nodes=7, rate=6.25e6, origin_rate=6.25e6, size_bytes=128 * MIB, racks=2, uplink=3e6)
    assert [plan.rack_of(n) for n in range(7)] == [1, 1, 1, 1, 2, 2, 2]
    assert {PLAN.rack_of(n) for n in range(8)} == {0}
    thin = Links(node=6e6, origin=6e6, uplink=3e6)
    expected = 128 * MIB / 3e6 + 3 * 256 * 1024 / 6e6
    assert bound_s(plan, thin, 128 * MIB, 7) == pytest.approx(expected)


def test_beta_counts_what_left_the_racks() -> None:
    assert report().beta is None
    plan = Plan(nodes=6, rate=6.25e6, origin_rate=6.25e6, size_bytes=128 * MIB, racks=3, uplink=3e6)
    storm = report(plan)
    storm.left_racks = 256 * MIB
    storm.numbers = {f"{n:016x}": n for n in range(6)}
    for outcome in storm.race.outcomes:  # two in each rack: a third from its neighbour
        near, far = outcome.node ^ 1, (outcome.node + 2) % 6
        outcome.bytes_peers = 96 * MIB
        # Who gave the other 32 MiB isn't said: not the neighbour, which is named.
        outcome.came_from = {f"{near:016x}": 32 * MIB, f"{far:016x}": 32 * MIB}
    assert storm.as_json()["beta_data"] == 6 * 64 / (128 * 2)
    assert storm.as_json()["beta"] == 1.0
    storm.sent_again = 70
    assert storm.as_json()["sent_again"] == 70
    assert "; 70 segments sent again" in storm.as_text()


def test_beta_is_too_low_where_a_neighbour_in_the_rack_is_not_named() -> None:
    plan = Plan(nodes=4, rate=6.25e6, origin_rate=6.25e6, size_bytes=128 * MIB, racks=2, uplink=3e6)
    storm = report(plan)
    storm.numbers = {f"{n:016x}": n for n in range(4)}
    for outcome in storm.race.outcomes:
        outcome.bytes_peers = 96 * MIB
        outcome.came_from = {f"{(outcome.node + 2) % 4:016x}": 32 * MIB}
    assert storm.beta_data == 4 * 32 / 128
