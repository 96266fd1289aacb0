"""Turns: one node of a site brings a model in from another site."""

from p2pcache.core.coordinator.crossings import Crossings
from p2pcache.core.coordinator.settings import CROSSING_S, MAX_CROSSINGS


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
    for number in range(MAX_CROSSINGS):
        assert turns.take_turn("", str(number), 1, 0.0)
    assert not turns.take_turn("", "more", 1, 1.0)
    kept = turns._turns
    assert turns.take_turn("", "0", 1, 1.0)
    assert turns._turns is kept, (
        "a node that goes on needs no room: it would cost a millisecond each time"
    )
    assert turns.take_turn("", "more", 1, CROSSING_S)
    assert len(turns._turns) == 2
