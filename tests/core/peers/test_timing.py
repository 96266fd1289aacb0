"""The pace of a swarm, from the runs that come here and those that are here or at a neighbour."""

import pytest

from p2pcache.core.peers.timing import SwarmPace, pulse_s


def test_storage_that_is_quicker_than_all_links_does_not_change_how_quickly_runs_come_here() -> (
    None
):
    pace = SwarmPace(0.0)
    for step in range(1, 20):
        pace.on_count(100 * step, float(step))
        pace.on_received(2 * step, float(step))
        assert (pace.received_s > 0.0) == (step >= 4), "a few steps say nothing"
    assert pace.mean_s == pytest.approx(0.01)
    assert pace.received_s == pytest.approx(0.5)


def test_a_pause_hardly_counts() -> None:
    pace = SwarmPace(0.0)
    for second in range(1, 8):
        pace.on_received(2 * second, float(second))
    pace.on_received(14, 60.0)  # nothing has come for long
    pace.on_received(16, 61.0)
    assert pace.received_s == pytest.approx(0.5)


def test_runs_that_were_there_when_we_came_do_not_count() -> None:
    pace = SwarmPace(0.0)
    pace.on_count(500, 10.0)
    assert pace.mean_s == 0.0
    for step in range(1, 10):
        pace.on_count(500 + 2 * step, 10.0 + step)
    assert pace.mean_s == pytest.approx(0.5)


def test_gusts_do_not_change_the_mean() -> None:
    gusts = SwarmPace(0.0)
    assert gusts.estimated_s(2.0) == 0.5, "four steps in two seconds aren't ruled out"
    assert gusts.estimated_s(40.0) == gusts.estimated_s(4000.0), (
        "a model may have fewer runs than are needed to know the pace"
    )
    gusts.on_count(500, 10.0)
    assert gusts.mean_s == 0.0
    for second in range(4, 40, 4):
        gusts.on_count(501 + 8 * (second // 4 - 1), 10.0 + second)
        gusts.on_count(500 + 8 * (second // 4), 10.1 + second)
    assert gusts.estimated_s(100.0) == gusts.mean_s == pytest.approx(0.5, rel=0.2)


def test_a_holder_that_leaves_hardly_counts() -> None:
    pace = SwarmPace(0.0)
    for second in range(8):
        pace.on_count(4 * second, float(second))
    pace.on_count(20, 8.0)  # a holder of some runs left
    pace.on_count(24, 9.0)
    assert pace.mean_s == pytest.approx(0.25, rel=0.2)


def test_without_a_tracker_pauses_make_nobody_wait_longer() -> None:
    pace = SwarmPace(0.0)
    for step in range(1, 11):
        pace.on_count(step, step * 2.0)
    pace.on_count(20, 21.0)  # the pace is quicker at the end
    assert pace.least_mean_s < 2.0
    pace.on_tracker_lost()
    assert pace.least_mean_s == pace.mean_s
    known_s = pace.least_mean_s
    for step in range(1, 20):  # everybody waits for one owner after the other
        pace.on_count(20 + step, 21.0 + 100.0 * step)
    assert pace.mean_s > 10 * known_s
    assert pace.least_mean_s == pace.estimated_s(5000.0) == known_s
    for step in range(1, 40):
        pace.on_count(40 + step, 2000.0 + 0.1 * step)
    assert pace.least_mean_s == pytest.approx(0.1)


def test_pulses_are_three_quarters_of_a_run_apart_on_slow_links_only() -> None:
    assert pulse_s(0.0, 500) == 0.0  # the pace isn't known
    assert pulse_s(0.0013, 500) == 0.0  # runs of 4 MiB at 25 Gbit/s
    assert pulse_s(0.0079, 500) == 0.0
    assert pulse_s(0.0081, 500) == 0.006
    assert pulse_s(0.06, 500) == 0.045
    assert pulse_s(3.0, 500) == 0.05


def test_the_last_runs_wait_for_no_pulse() -> None:
    assert pulse_s(0.065, 33) > 0.0
    assert pulse_s(0.065, 32) == 0.0
