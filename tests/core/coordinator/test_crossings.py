"""Turns: one node of a site brings a model in from another site."""

import time

from p2pcache.core.coordinator.crossings import Crossings
from p2pcache.core.coordinator.settings import CROSSING_S
from p2pcache.core.membership.settings import MOST_NODES


def test_one_node_of_a_site_at_a_time() -> None:
    turns = Crossings()
    assert turns.take_turn("x", "m", 1, 0.0)
    assert not turns.take_turn("x", "m", 2, 1.0)
    assert turns.take_turn("y", "m", 2, 1.0)  # another site crosses for itself
    assert turns.take_turn("x", "n", 2, 1.0)
    assert turns.take_turn("x", "m", 1, CROSSING_S - 1)  # renewed
    assert not turns.take_turn("x", "m", 2, CROSSING_S + 1)


def test_a_turn_ends_with_its_node_or_when_it_is_given_back() -> None:
    turns = Crossings()
    assert turns.take_turn("", "m", 1, 0.0)
    assert turns.take_turn("", "m", 2, CROSSING_S)  # 1 is silent
    turns.end_turn("", "m", 1)  # it comes back late, and has nothing to give
    assert not turns.take_turn("", "m", 3, CROSSING_S)
    turns.end_turn("", "m", 2)
    assert turns.take_turn("", "m", 3, CROSSING_S)


def test_the_table_is_bounded() -> None:
    turns = Crossings()
    for number in range(MOST_NODES):
        assert turns.take_turn("", str(number), 1, 0.0)
    assert not turns.take_turn("", "more", 1, 1.0)
    assert turns.take_turn("", "0", 1, 1.0)
    assert turns.take_turn("", "more", 1, CROSSING_S)
    assert len(turns._turns) == 2


def test_a_full_table_is_not_looked_through_for_each_that_asks() -> None:
    """That took two milliseconds of the tracker's loop each."""
    turns = Crossings()
    for number in range(MOST_NODES):
        turns.take_turn("", str(number), 1, 0.0)
    began = time.thread_time()
    for number in range(2000):
        assert not turns.take_turn("", f"more {number}", 1, 1.0)
    assert time.thread_time() - began < 0.5
