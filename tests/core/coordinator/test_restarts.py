"""Members that go and come back within seconds: what they have is read from storage once."""

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import RUNS, World, X, state

BACK_S = 3.0  # `MemberSettings.reconnect_grace_s`


def read_alone(world: World, node: int, runs: int) -> int:
    """A lone member reads the first runs; returns them."""
    while bitset.of(world.granted(node)).bit_count() < runs:
        world.done(node, *world.granted(node))
    mine = bitset.lowest(bitset.of(world.granted(node)), runs)
    world.say(node, m.Heartbeat(swarms=(state(mine, credit=1),)))
    return mine


def serve(world: World, node: int, seconds: float, have: int = 0) -> int:
    """For so long a member reads all that it is granted, and answers polls; returns what it has then."""
    end = world.now + seconds
    while world.now < end:
        have |= bitset.of(world.granted(node))
        world.say(node, m.Heartbeat(swarms=(state(have, credit=1),)))
        world.wait(0.05)
    return have


def test_what_a_member_alone_had_that_left_is_read_after_all_others() -> None:
    world = World()
    world.join(1, credit=1)
    mine = read_alone(world, 1, 4)
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    world.wait(BACK_S + 0.2, alive=(2,))
    serve(world, 2, 10.0)
    granted = world.granted(2)
    assert set(granted[-4:]) == set(bitset.members(mine))
    assert sorted(granted) == sorted(set(granted))


def test_a_member_that_left_has_time_to_come_back() -> None:
    world = World()
    world.join(1, credit=1)
    mine = read_alone(world, 1, 4)
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    have = serve(world, 2, BACK_S - 0.3)
    assert have == bitset.full(RUNS) & ~mine
    world.announce(1, state(mine, credit=1))
    serve(world, 2, 4.0, have)
    assert not bitset.of(world.granted(2)) & mine
    assert world.tracking.swarms[X].book.free == 0


def test_what_a_member_had_that_does_not_come_back_is_read_again() -> None:
    world = World()
    world.join(1, credit=1)
    read_alone(world, 1, 4)
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    assert serve(world, 2, BACK_S + 2.0) == bitset.full(RUNS)


def test_a_member_that_comes_back_without_its_runs_is_not_waited_for() -> None:
    world = World()
    world.join(1, credit=1)
    read_alone(world, 1, 4)
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    have = serve(world, 2, 1.5)
    world.announce(1, state(0))
    world.wait(0.1)
    world.say(1, m.Heartbeat(swarms=(state(0),)))  # it is polled
    assert serve(world, 2, 1.0, have) == bitset.full(RUNS)


def test_a_member_that_is_stuck_waits_for_one_that_left() -> None:
    world = World()
    world.join(1, credit=1)
    mine = read_alone(world, 1, 4)
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    world.say(2, m.Stuck(X, tuple(bitset.members(mine))))
    have = serve(world, 2, BACK_S - 0.5)
    assert not have & mine
    assert serve(world, 2, 1.5, have) == bitset.full(RUNS)


def test_what_a_crash_took_is_looked_for_at_the_others_before_it_is_read_again() -> None:
    world = World()
    world.join(1, credit=1)
    mine = read_alone(world, 1, 4)
    world.join(2)
    world.join(3)
    world.take(world.tracking.on_disconnected(1, world.now))
    world.announce(1, state(0))
    world.say(2, m.Stuck(X, tuple(bitset.members(mine))))
    assert not world.tracking.swarms[X].book.free & mine
    world.wait(0.1)
    assert world.got(3, m.Poll)
    for node, had in ((1, 0), (2, 0), (3, mine)):
        world.say(node, m.Heartbeat(swarms=(state(had),)))
    world.wait(0.1)
    assert not world.tracking.swarms[X].book.free & mine
