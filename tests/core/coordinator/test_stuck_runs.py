"""What the tracker does for nodes that are stuck, wait for a slow one, or got wrong bytes."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.protocol import messages as m
from p2pcache.errors import RemoteProtocolError
from tests.core.coordinator.tracking_kit import EPOCH, RUNS, World, X, state


def test_stuck_introduces_a_holder() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=1)
    world.wait(1.0)
    world.done(2, *world.granted(2))
    run = world.granted(2)[0]
    world.forget_mail()
    world.say(3, m.Stuck(X, (run,)))
    (told,) = world.got(3, m.Swarm)
    assert told.neighbours == (2,)
    assert [member.node for member in told.joined] == [2]
    assert not told.full


def test_stuck_without_a_holder_waits_for_the_search() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    world.done(1, run)
    world.say(1, m.Heartbeat(swarms=(state(0, credit=0),)))  # its disk lost it
    world.say(2, m.Stuck(X, (run,)))
    assert not world.tracking.swarms[X].book.free >> run & 1, "others may have it by now"
    world.answer_polls()
    assert world.tracking.swarms[X].book.free >> run & 1


def test_holders_that_nobody_reaches_hold_nobody_up_for_ever() -> None:
    world = World()
    world.join(1, credit=16)
    while runs := world.granted(1):
        world.forget_mail()
        for run in runs:
            world.done(1, run)
    world.join(2, credit=4)
    book = world.tracking.swarms[X].book
    lacking = set(range(RUNS))
    for _ in range(RUNS):
        world.say(2, m.Stuck(X, tuple(lacking)))
        world.wait(4.1, alive=(1, 2))
        world.say(2, m.Stuck(X, tuple(lacking)))
        while runs := world.granted(2):
            world.forget_mail()
            world.done(2, *runs)
            lacking -= set(runs)
    assert not lacking
    assert book.regranted == RUNS, "each was read again, whatever the cap"


def test_a_scarce_run_is_granted_again_for_a_member_that_is_stuck_again() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    world.done(1, run)
    world.say(2, m.Stuck(X, (run,)))
    world.say(2, m.Stuck(X, (run,)))
    assert world.tracking.swarms[X].book.regranted == 0
    world.wait(4.1, alive=(1, 2))
    world.say(2, m.Stuck(X, (run,)))
    world.answer_polls()
    assert world.tracking.swarms[X].book.regranted == 1
    world.done(2, *world.granted(2))
    assert run in world.granted(2)


def test_a_node_that_nobody_reaches_reads_no_more_and_all_that_it_has_is_read_again() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=8 * (node == 1))
    for node in (2, 3):
        world.say(node, m.LeaseReport(X, EPOCH, credit=1))
    mine = world.granted(1)
    world.done(1, *mine)
    assert len(mine) > 2
    book, reach = world.tracking.swarms[X].book, world.tracking.swarms[X].reach
    for node in (2, 3):
        world.say(node, m.Stuck(X, (mine[0],)))
    world.wait(4.1, alive=(1, 2, 3))
    for _ in range(3):  # it may be cut off itself
        world.say(2, m.Stuck(X, (mine[0], mine[1])))
        world.wait(4.1, alive=(1, 2, 3))
    assert book.regranted == 0
    assert not reach.lost
    told = world.tracking.handle(3, m.Stuck(X, (mine[0],)), world.now)
    assert Notice(Event.UNREACHED, 1, X) in told
    world.take(told)
    assert reach.lost == {1}
    world.answer_polls()
    assert book.regranted == len(mine), "not only what somebody has asked for"
    world.forget_mail()
    world.say(2, m.LeaseReport(X, EPOCH, credit=4))
    world.say(1, m.LeaseReport(X, EPOCH, credit=16))
    assert world.granted(2)
    assert not world.granted(1)
    world.wait(61.0, alive=(1, 2, 3))
    assert not reach.lost, "somebody may have mended it"


def two_stuck_behind_a_holder() -> tuple[World, int]:
    """Nodes 2 and 3 are stuck without a run that node 1 has; node 4 has nothing. Returns the run."""
    world = World()
    for node in (1, 2, 3, 4):
        world.join(node, credit=8 * (node == 1))
    run = world.granted(1)[0]
    world.done(1, run)
    for node in (2, 3):
        world.say(node, m.LeaseReport(X, EPOCH, credit=1))
    both_are_stuck(world, run)
    return world, run


def both_are_stuck(world: World, run: int) -> None:
    for node in (2, 3):
        world.say(node, m.Stuck(X, (run,)))


def are_void(world: World, *nodes: int) -> list[bool]:
    members = world.tracking.swarms[X].roster.members
    return [members[node].void for node in nodes]


def test_a_member_complains_of_those_it_was_sent_to_and_not_of_a_newcomer() -> None:
    """Of twelve nodes two can be dialled. One read the run at last, and was called unreachable in the same moment."""
    world, run = two_stuck_behind_a_holder()
    world.wait(4.1, alive=(1, 2, 3, 4))
    world.done(4, run)
    both_are_stuck(world, run)
    assert are_void(world, 1, 4) == [True, False]


def test_a_member_does_not_complain_of_a_holder_that_it_was_named_a_moment_ago() -> None:
    """It counted from the first holder on: one named at 3.9 s was called unreachable at 4.1 s."""
    world, run = two_stuck_behind_a_holder()
    world.wait(3.9, alive=(1, 2, 3, 4))
    world.done(4, run)
    both_are_stuck(world, run)
    world.wait(0.2, alive=(1, 2, 3, 4))
    both_are_stuck(world, run)
    assert are_void(world, 1, 4) == [True, False]


def test_stuck_before_any_read_ended_moves_no_lease() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    world.wait(6.0, alive=(1, 2))
    world.say(2, m.Stuck(X, (run,)))
    assert not world.got(1, m.Revoke), "nothing is known of how long a read takes"


def test_a_peer_blamed_by_two_is_banned() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=1)
    run = world.granted(3)[0]
    world.done(3, run)
    world.say(1, m.Blame(3, X, run))
    assert 3 not in world.tracking.swarms[X].banned
    world.say(1, m.Blame(3, X, run))
    world.say(3, m.Blame(3, X, run))
    assert 3 not in world.tracking.swarms[X].banned
    world.say(2, m.Blame(3, X, run))
    assert 3 in world.tracking.swarms[X].banned
    world.say(3, m.Heartbeat(swarms=(state(bitset.full(RUNS)),)))
    assert not world.tracking.swarms[X].roster.complete
    world.join(4)
    assert 3 not in {n for s in world.got(4, m.Swarm) for n in s.neighbours}
    world.announce(3, state(0b1, credit=1))
    assert 3 not in world.tracking.swarms[X].banned


def test_a_stuck_notice_with_a_bad_bitmap_changes_nothing() -> None:
    world = World()
    world.join(1)
    with pytest.raises(RemoteProtocolError, match="bitmap"):
        world.say(1, m.Stuck(X, (0,), b"\xff" * 5))
    assert world.tracking.swarms[X].book.regranted == 0
