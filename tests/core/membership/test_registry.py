"""Two live agents with one node id, told from one that was restarted."""

from p2pcache.core.membership.registry import ClonedIds
from p2pcache.core.membership.settings import MOST_REPLACED


def test_a_restarted_or_reconnecting_agent_takes_over_at_once() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in (7, 7, 8, 8, 9))


def test_a_replaced_process_that_comes_back_is_refused_while_the_other_is_there() -> None:
    clones = ClonedIds()
    assert clones.admit(1, 7)
    assert clones.admit(1, 8)
    assert not clones.admit(1, 7)
    assert not clones.admit(1, 7)
    assert clones.admit(1, 8)
    assert clones.admit(2, 7)  # another id is another matter
    clones.on_left(1)
    assert clones.admit(1, 7)


def test_releases_that_say_nothing_are_let_in() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in (0, 7, 0, 7, 8, 0))


def test_the_memory_of_replaced_processes_is_bounded() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in range(1, 100))
    assert not clones.admit(1, 98)
    assert clones.admit(1, 99 - MOST_REPLACED - 1)  # forgotten
