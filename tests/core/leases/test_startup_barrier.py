"""When a new tracker may begin to grant."""

from p2pcache.core.leases.startup_barrier import StartupBarrier
from p2pcache.core.membership.settings import MOST_NODES

TTL_S = 15.0


def test_a_fresh_swarm_waits_for_nobody() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0)
    barrier.on_arrival(1, 100.0)
    barrier.expect((), {1}, 100.0)
    assert not barrier.holds(100.0)


def test_it_waits_until_all_that_were_named_are_here() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0)
    barrier.on_arrival(1, 100.0)
    barrier.expect([1, 2, 3], {1}, 100.0)
    barrier.on_arrival(2, 101.0)
    assert barrier.holds(101.0)
    barrier.on_arrival(3, 102.0)
    assert not barrier.holds(102.0)


def test_members_of_the_trackers_own_notes_are_awaited() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0, remembered=[7])
    assert barrier.holds(100.0)
    barrier.on_arrival(7, 101.0)
    assert not barrier.holds(101.0)


def test_nobody_is_waited_for_longer_than_a_lease_lives() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0, remembered=[7])
    assert barrier.holds(100.0 + TTL_S - 0.1)
    assert not barrier.holds(100.0 + TTL_S)
    barrier.expect([8], set(), 100.0 + TTL_S)
    assert not barrier.awaited, "the past is over"


def test_a_member_that_came_and_went_is_no_sign_of_a_past() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0)
    barrier.on_arrival(2, 100.0)
    barrier.expect([2], set(), 101.0)  # another member met it here, and it has left
    assert not barrier.holds(101.0)


def test_a_member_can_name_a_bounded_number_of_nodes() -> None:
    barrier = StartupBarrier(TTL_S, now=100.0)
    barrier.expect(range(10, 2 * MOST_NODES), set(), 100.0)
    barrier.expect(range(5 * MOST_NODES, 6 * MOST_NODES), set(), 100.0)
    assert barrier.awaited == {*range(10, 10 + MOST_NODES)}
