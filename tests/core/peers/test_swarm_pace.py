"""The clock of a swarm, told by what is to be had."""

import pytest

from p2pcache.core.peers.swarm_pace import Tempo


def test_what_was_there_when_we_came_says_nothing() -> None:
    tempo = Tempo(0.0)
    tempo.look(500, 10.0)
    assert tempo.seconds == 0.0
    for step in range(1, 10):
        tempo.look(500 + 2 * step, 10.0 + step)
    assert tempo.seconds == pytest.approx(0.5)


def test_gusts_do_not_change_the_mean() -> None:
    gusts = Tempo(0.0)
    assert gusts.at_least_s(2.0) == 0.5, "four would be known"
    assert gusts.at_least_s(40.0) == gusts.at_least_s(4000.0), "a model may have less than that"
    gusts.look(500, 10.0)
    assert gusts.mean_s == 0.0
    for second in range(4, 40, 4):
        gusts.look(501 + 8 * (second // 4 - 1), 10.0 + second)
        gusts.look(500 + 8 * (second // 4), 10.1 + second)
    assert gusts.at_least_s(100.0) == gusts.mean_s == pytest.approx(0.5, rel=0.2)


def test_a_pause_and_a_holder_that_leaves_hardly_count() -> None:
    tempo = Tempo(0.0)
    for second in range(8):
        tempo.look(4 * second, float(second))
    tempo.look(20, 8.0)  # who had some of them left
    tempo.look(20, 60.0)  # nothing came for long
    tempo.look(24, 61.0)
    assert tempo.seconds == pytest.approx(0.25)
    tempo.look(28, 62.0)
    assert tempo.seconds == pytest.approx(0.25)


def test_without_a_tracker_pauses_make_nobody_wait_longer() -> None:
    tempo = Tempo(0.0)
    for step in range(1, 11):
        tempo.look(step, step * 2.0)
    tempo.look(20, 21.0)  # quicker at the end
    assert tempo.least_s < 2.0
    tempo.lost()
    assert tempo.least_s == tempo.mean_s
    known_s = tempo.least_s
    for step in range(1, 20):  # everybody waits for one owner after the other
        tempo.look(20 + step, 21.0 + 100.0 * step)
    assert tempo.mean_s > 10 * known_s
    assert tempo.least_s == tempo.at_least_s(5000.0) == known_s
    for step in range(1, 40):
        tempo.look(40 + step, 2000.0 + 0.1 * step)
    assert tempo.least_s == pytest.approx(0.1)
