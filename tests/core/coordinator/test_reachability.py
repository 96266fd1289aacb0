"""What follows from the tracker's dials: which nodes get leases, what is read again, what people hear."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.settings import AGAIN_S, VERDICT_S
from p2pcache.core.protocol import messages as m
from p2pcache.errors import RemoteProtocolError
from tests.core.coordinator.tracking_kit import EPOCH, World, X, state


def regrants(world: World) -> int:
    return world.tracking.swarms[X].book.regranted


def answer(world: World, *nodes: int, reached: bool) -> list[object]:
    """These nodes' dials end; returns what the tracker says to it."""
    said: list[object] = []
    for node in nodes:
        out = world.tracking.on_dial_ended(world.dials[node], world.now, reached=reached)
        said += out
        world.take(out)
    return said


def second_hidden() -> World:
    """Two members, of which the second can't be dialled."""
    world = World()
    for node in (1, 2):
        world.announce(node)
    answer(world, 1, reached=True)
    answer(world, 2, reached=False)
    return world


def test_a_member_is_dialled_where_it_says() -> None:
    world = World()
    assert world.tracking.handle(1, m.Announce("10.0.0.1:7401", "1", "", "", ()), world.now)
    out = world.tracking.tick(world.now)
    assert Dial(1, m.Member(1, "10.0.0.1:7401")) in out


def test_people_hear_of_it_even_if_it_was_away_when_its_dial_failed() -> None:
    world = World()
    world.join(1)
    world.join(2)
    assert not answer(world, 1, reached=True)
    world.take(world.tracking.on_disconnected(2, world.now))
    assert Notice(Event.UNREACHED, 2) not in answer(world, 2, reached=False)
    world.announce(2)
    world.wait(AGAIN_S, alive=(1, 2))
    assert Notice(Event.UNREACHED, 2) in answer(world, 2, reached=False)


def test_an_announcement_that_is_refused_says_nothing_of_a_place() -> None:
    world = World()
    world.join(1)
    world.join(2)
    answer(world, 1, reached=True)
    answer(world, 2, reached=False)
    bad = m.SwarmState(X, 4, b"\xff\xff")
    with pytest.raises(RemoteProtocolError):
        world.tracking.handle(1, m.Announce("name:1", "1", "", "", (bad,)), world.now)
    world.tracking.check()


def test_a_hidden_node_is_not_called_unreached_for_ever() -> None:
    """Even while no member wants a lease, so that nothing wakes the lease book."""
    world = World()
    world.join(1, have=2**32 - 1)
    world.join(2)
    world.say(2, m.Stuck(X, (0,), vain=(1,)))
    assert world.tracking.unreached() == {1}
    world.wait(VERDICT_S + 1, alive=(1,))
    assert not world.tracking.unreached()


def test_an_unreached_node_gets_no_lease_while_others_work_on_some() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=0)
    said = answer(world, 1, reached=True) + answer(world, 2, reached=False)
    assert said.count(Notice(Event.UNREACHED, 2)) == 1
    assert world.tracking.unreached() == {2}
    world.say(2, m.LeaseReport(X, EPOCH, credit=4))
    assert world.granted(2), "nobody else wants any"
    world.now += 0.5
    world.done(2, *world.granted(2))
    world.say(2, m.LeaseReport(X, EPOCH, credit=0))
    world.forget_mail()
    world.say(1, m.LeaseReport(X, EPOCH, credit=16))
    world.say(2, m.LeaseReport(X, EPOCH, credit=16))
    assert len(world.granted(1)) == 16 - 4, (
        "as if it were alone, while the other ends what it reads"
    )
    assert not world.granted(2)
    world.done(1, *world.granted(1))
    assert not world.granted(2)


def test_what_only_an_unreached_node_has_is_read_again() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=8)
    mine = world.granted(2)
    world.done(2, *mine)
    answer(world, 1, reached=True)
    world.answer_polls()
    assert not regrants(world), "it may only be late"
    answer(world, 2, reached=False)
    world.answer_polls()
    assert regrants(world) == len(mine)
    assert world.tracking.swarms[X].book.free & 1 << mine[0]


def test_one_complaint_is_enough_where_the_tracker_dialled_in_vain() -> None:
    """The dial must have been to the node of which the other one complains."""
    for failed, believed in ((1, True), (5, False)):
        world = World()
        world.join(1, have=1, credit=0)
        for node in (2, 3, 4, 5):
            world.join(node)
        answer(world, 2, 3, reached=True)
        answer(world, failed, reached=False)
        out = world.tracking.handle(2, m.Stuck(X, (0,), vain=(1,)), world.now)
        assert (Notice(Event.UNREACHED, 1, X) in out) is believed
        assert world.tracking.swarms[X].roster.members[1].void is believed


def test_a_node_that_is_cut_off_both_ways_reads_for_itself() -> None:
    world = World()
    world.join(1, have=2**32 - 1, credit=0)
    world.join(2, credit=2)
    world.join(3, credit=0)
    answer(world, 1, 2, reached=True)
    answer(world, 3, reached=False)
    world.say(3, m.LeaseReport(X, EPOCH, credit=2))
    swarm = world.tracking.swarms[X]
    for _ in range(10):
        while leases := {node: world.granted(node) for node in (2, 3)}:
            world.forget_mail()
            if not any(leases.values()):
                break
            for node, runs in leases.items():
                world.done(node, *runs)
        missing = [run for run in range(32) if not swarm.roster.members[3].have >> run & 1]
        if not missing:
            return
        world.say(3, m.Stuck(X, tuple(missing)))
        world.wait(4.1, alive=(1, 2, 3))
    raise AssertionError(swarm.book.readers)


def test_a_node_that_wants_other_runs_than_the_rest_is_not_kept_waiting() -> None:
    world = second_hidden()
    world.say(1, m.Enter(state(credit=4)))
    world.say(1, m.LeaseReport(X, EPOCH, credit=4, wanted=bitset.to_bytes(0b1111, 32)))
    assert world.granted(1)[:4] == [0, 1, 2, 3]
    world.say(2, m.Enter(state(credit=4)))
    world.say(2, m.LeaseReport(X, EPOCH, credit=4, demanded=(20,)))
    assert world.granted(2)


def test_runs_of_a_first_unreached_node_are_read_again_when_others_come() -> None:
    """Otherwise the whole storm stands still for four seconds for one run, and for twelve for the second."""
    world = second_hidden()
    world.say(2, m.Enter(state(credit=2)))
    first, second = world.granted(2)
    world.done(2, first)
    assert not regrants(world), "nobody else wants it"
    world.say(1, m.Enter(state(credit=8)))
    world.answer_polls()
    world.done(1, *world.granted(1))
    assert first in world.granted(1)
    world.done(2, second)
    world.wait(1.0, alive=(1, 2))
    world.answer_polls()
    assert regrants(world) == 2


def test_a_stuck_node_is_sent_to_the_reached_holder() -> None:
    world = World()
    world.join(1, have=1, credit=0)
    world.join(2, have=1, credit=0)
    world.join(3, credit=0)
    answer(world, 2, 3, reached=True)
    answer(world, 1, reached=False)
    world.forget_mail()
    world.say(3, m.Stuck(X, (0,)))
    assert {one.node for swarm in world.got(3, m.Swarm) for one in swarm.joined} >= {2}
    assert not regrants(world)


def test_an_unreached_node_reads_runs_that_the_others_cannot() -> None:
    world = World()
    for node in (1, 2):
        world.join(node, credit=1)
    answer(world, 1, reached=True)
    answer(world, 2, reached=False)
    for run in world.granted(2):
        world.done(2, run)
    world.forget_mail()
    for _ in range(3):
        reading = world.reading(1)
        world.say(1, m.LeaseReport(X, EPOCH, failed=tuple(reading)))
        if world.granted(2):
            return
        world.wait(1.0, alive=(1, 2))
    raise AssertionError("the one who reaches storage stood aside")


def test_the_reach_of_a_node_holds_for_the_next_model() -> None:
    world = second_hidden()
    world.say(1, m.Enter(state(credit=1)))
    world.say(2, m.Enter(state(credit=16)))
    assert world.granted(1)
    assert not world.granted(2)
    world.say(1, m.Leaving())
    assert world.granted(2), "now it is the only one"
