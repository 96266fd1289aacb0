"""What the tracker knows of a member: which changes are possible, and that leaving ends all of it."""

from p2pcache.core import bitset
from p2pcache.core.membership.member_record import (
    Reach,
)
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import RUNS, World, X, state

HERE = m.Member(1, "10.0.0.1:7401", "rack", "site")


def test_a_member_that_leaves_is_forgotten_with_all_that_was_thought_of_it() -> None:
    world = World()
    everything = bitset.full(RUNS)
    for node in (1, 2, 3):
        world.join(node, have=everything if node == 3 else 0, credit=4)
    for node in (1, 2):
        world.say(node, m.Stuck(X, (0,), bitset.to_bytes(everything, RUNS), vain=(3,)))
    swarm = world.tracking.swarms[X]
    record = swarm.roster.members[3]
    assert record.reach is Reach.UNREACHABLE
    assert record.verdict_until == world.now + VERDICT_S
    world.say(3, m.Exit(X))
    world.say(3, m.Enter(state(everything)))
    fresh = swarm.roster.members[3]
    assert not fresh.complained_by
    assert fresh.reach is Reach.UNKNOWN


def test_a_banned_member_that_announces_itself_is_readmitted() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, have=1 if node == 3 else 0)
    for node in (1, 2):
        world.say(node, m.Blame(3, X, 0))
    swarm = world.tracking.swarms[X]
    assert swarm.banned == {3}
    world.announce(3, state(0b11))
    assert not swarm.banned
    record = swarm.roster.members[3]
    assert (record.reach, record.have) == (Reach.UNKNOWN, 0b11)
