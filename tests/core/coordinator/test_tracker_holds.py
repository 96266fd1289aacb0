"""A tracker that restarted, or stood still, listens before it grants."""

from p2pcache.core import bitset
from p2pcache.core.coordinator.settings import HOLD_S
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import EPOCH, RUNS, World, X, Y, state


def test_a_restarted_tracker_waits_for_those_who_were_there() -> None:
    world = World()
    known = (1, 2, 3)
    world.announce(1, state(0b0011, credit=4, known=known))
    world.announce(2, state(0b0110, credit=4, leases=(7,), known=known))
    assert not world.granted(1) + world.granted(2)
    world.announce(3, state(0b1000, credit=4, known=known))
    runs = world.granted(1) + world.granted(2) + world.granted(3)
    assert runs
    assert not set(runs) & {0, 1, 2, 3, 7}


def test_it_waits_for_one_ttl_at_most() -> None:
    world = World()
    world.announce(1, state(0b1, credit=4, known=(1, 2)))
    world.wait(14.9, alive=(1,))
    assert not world.granted(1)
    world.wait(0.2, alive=(1,))
    assert world.granted(1) == [1, 2, 3, 4]


def test_a_member_that_came_back_without_the_model_is_not_waited_for() -> None:
    world = World()
    world.announce(1, state(0b1, credit=1, known=(1, 2)))
    assert not world.granted(1)
    world.announce(2)
    assert world.granted(1) == [1]


def test_a_member_that_this_tracker_saw_come_and_go_is_not_waited_for() -> None:
    world = World()
    world.join(1, credit=1)
    world.join(2, credit=1)
    world.say(2, m.Leaving())
    # the first one's next heartbeat still lists it: that is no sign of a past unknown to us
    world.say(1, m.Heartbeat(swarms=(state(credit=1, known=(1, 2)),)))
    world.forget_mail()
    world.done(1, *world.reading(1))
    assert world.granted(1)


def test_a_reader_that_rests_during_a_hold_does_not_make_the_clock_spin() -> None:
    world = World()
    world.join(1, credit=2)
    world.say(1, m.LeaseReport(X, EPOCH, failed=(world.granted(1)[0],)))
    world.say(1, m.Heartbeat(swarms=(state(credit=2, known=(1, 9)),)))
    for _ in range(20):
        due = world.tracking.next_wakeup()
        if due == float("inf"):
            break  # the silent member is gone: nothing is left to wait for
        world.now = max(world.now, due)
        world.tracking.tick(world.now)
    assert world.now > 1010.0, "time passes from wakeup to wakeup"


def test_the_trackers_own_notes_hold_too() -> None:
    world = World({X: [2], Y: [3]})
    world.join(1)
    assert not world.granted(1)
    world.announce(2, state(0b1, credit=1))
    assert world.granted(1) + world.granted(2) == [1, 2]


def test_memory_is_for_swarms_that_still_read() -> None:
    world = World()
    world.join(1)
    world.announce(2, state(bitset.full(RUNS), digest=Y))
    assert world.tracking.remembered_members() == {X: [1]}


def test_a_tracker_that_stood_still_listens_before_it_grants() -> None:
    """An agent's old report waited in its socket, and it granted what others had read by themselves meanwhile."""
    world = World()
    for node in (1, 2):
        world.join(node, credit=1)
    (run,) = world.granted(1)
    world.forget_mail()
    world.now += 3.0
    world.tracking.on_stood_still(world.now)
    world.done(1, run)
    assert not world.granted(1)
    read = bitset.full(20)  # by owners
    for node in (1, 2):
        world.announce(node, state(read, credit=1))
    assert not world.granted(1) + world.granted(2)
    world.wait(2 * HOLD_S)
    assert sorted(world.granted(1) + world.granted(2)) == [20, 21], "though nobody asked again"
