"""One node's word about wrong bytes stops no other: a second reader is asked, and odd storage is reported."""

from dataclasses import replace

import pytest

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.coordinator.settings import STOP_S
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.odd_reason import OddReason
from p2pcache.core.settings import MemberSettings
from tests.core.coordinator.tracking_kit import EPOCH, RUNS, World, X, state

ALL_RUNS = bitset.full(RUNS)


def reads_wrong(world: World, node: int) -> list[int]:
    """The node reads the runs of its leases, and the bytes don't match; returns the runs."""
    runs = tuple(world.reading(node))
    if runs:
        world.say(node, m.LeaseReport(X, EPOCH, mismatched=runs))
    return list(runs)


def reads_right(world: World, node: int) -> None:
    for run in world.reading(node):
        world.done(node, run)


def stops(world: World, node: int) -> list[int]:
    """Why the node was told to stop, each time; 0: for everybody."""
    return [stop.odd for stop in world.got(node, m.Stop)]


def ends(world: World, node: int) -> None:
    """Its pull is over."""
    world.say(node, m.Heartbeat(swarms=(state(),)))


def test_a_lone_node_reads_wrong_what_the_tracker_reads_right() -> None:
    world = World()
    world.word = WitnessReport.RIGHT
    world.join(1, credit=2)
    (run, *_) = world.granted(1)
    reads_wrong(world, 1)
    assert stops(world, 1) == [OddReason.OTHERS_READ_IT]
    assert world.got(1, m.Stop)[0].run == run
    assert (world.reads[0].node, world.reads[0].run) == (1, run)
    assert world.tracking.swarms[X].doubts.stop is None
    ends(world, 1)
    world.join(2, credit=2)
    assert not stops(world, 2)
    assert run in world.granted(2), "good nodes get the model at once"


def test_the_odd_one_is_named_again_at_once_and_free_when_it_is_mended() -> None:
    world = World()
    world.word = WitnessReport.RIGHT
    world.join(1, credit=1)
    reads_wrong(world, 1)
    ends(world, 1)
    world.forget_mail()
    world.wait(1.0, alive=(1,))
    world.say(1, m.Enter(state(credit=1)))
    reads_wrong(world, 1)
    assert stops(world, 1) == [OddReason.OTHERS_READ_IT]
    assert len(world.reads) == 1, "what the tracker has read it needn't read again so soon"
    ends(world, 1)
    world.forget_mail()
    world.wait(2.0, alive=(1,))
    world.say(1, m.Enter(state(credit=1)))
    reads_right(world, 1)
    reads_right(world, 1)
    assert not stops(world, 1)
    assert len(world.granted(1)) > 1


def test_a_lone_node_and_the_tracker_are_two_and_stop_everybody() -> None:
    world = World()
    world.word = WitnessReport.WRONG
    world.join(1, credit=1)
    world.join(2, credit=0)
    run = world.granted(1)[0]
    reads_wrong(world, 1)
    for node in (1, 2):
        assert stops(world, node) == [0]
        assert world.got(node, m.Stop)[0].run == run
    world.forget_mail()
    world.join(4, credit=1)
    assert stops(world, 4) == [0]
    assert not world.granted(4)


def test_after_a_stop_a_later_pull_may_try_again() -> None:
    world = World()
    world.word = WitnessReport.WRONG
    for node in (1, 2):
        world.join(node, credit=1)
    reads_wrong(world, 1)
    for node in (1, 2):
        ends(world, node)
    world.wait(STOP_S / 2, alive=(1, 2))
    world.say(1, m.Enter(state(credit=2)))
    assert not world.granted(1)[1:]
    ends(world, 1)
    world.wait(STOP_S, alive=(1, 2))
    world.forget_mail()
    world.say(1, m.Enter(state(credit=2)))
    assert not stops(world, 1)
    assert world.granted(1)


def test_nobody_is_judged_while_the_tracker_reads() -> None:
    world = World()
    world.word = None
    for node in (1, 2):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    reads_wrong(world, 1)
    world.wait(0.1, alive=(1, 2))
    while run not in world.granted(2):
        reads_right(world, 2)
    reads_wrong(world, 2)
    assert not stops(world, 1) + stops(world, 2)
    world.witness(world.reads[0], WitnessReport.RIGHT)
    assert world.tracking.swarms[X].doubts.stop is None, "a rack without its mount is many, and odd"
    assert stops(world, 1) == stops(world, 2) == [OddReason.OTHERS_READ_IT]


@pytest.mark.parametrize("word", [WitnessReport.NONE, WitnessReport.RIGHT])
def test_another_reader_gets_the_odd_ones_leases_and_the_odd_one_waits_for_its_bytes(
    word: WitnessReport,
) -> None:
    world = World()
    world.word = word
    for node in (1, 2):
        world.join(node, credit=2)
    for _ in range(4 * RUNS):
        reads_wrong(world, 1)
        reads_right(world, 2)
        world.wait(2.1, alive=(1, 2))
    assert world.tracking.swarms[X].roster.members[2].have == ALL_RUNS
    assert not stops(world, 1) + stops(world, 2)
    assert len(world.granted(1)) <= 4, "who reads wrong what others read right reads no more"


def test_the_odd_one_is_told_when_the_others_are_gone() -> None:
    world = World()
    world.word = WitnessReport.RIGHT
    for node in (1, 2):
        world.join(node, credit=2)
    reads_wrong(world, 1)
    assert not stops(world, 1)
    world.say(2, m.Leaving())
    world.wait(6.0, alive=(1,))
    assert stops(world, 1) == [OddReason.OTHERS_READ_IT]


def test_the_verdict_on_a_lone_reader_is_its_own_and_is_looked_at_again_with_the_next_one() -> None:
    world = World()
    world.join(1, credit=1)
    run = world.granted(1)[0]
    reads_wrong(world, 1)
    assert not stops(world, 1), "the cable, or storage? It reads once more"
    world.wait(1.0, alive=(1,))
    reads_wrong(world, 1)
    assert stops(world, 1) == [OddReason.NOBODY_ELSE_READS]
    ends(world, 1)
    world.join(2, credit=1)
    assert not stops(world, 2)
    assert world.granted(2) == [run]
    reads_wrong(world, 2)
    assert stops(world, 2) == [0], "two that agree"


def test_without_a_tracker_that_reads_two_nodes_that_agree_stop_everybody() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    reads_wrong(world, 1)
    reads_right(world, 2)
    reads_right(world, 3)
    assert not stops(world, 1)
    assert run in world.granted(2) + world.granted(3)
    reads_wrong(world, 2 if run in world.granted(2) else 3)
    for node in (1, 2, 3):
        assert stops(world, node) == [0]


def test_only_a_leases_holder_says_what_it_read() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=1)
    run = world.granted(1)[0]
    for liar in (2, 3):
        world.say(liar, m.LeaseReport(X, EPOCH, mismatched=(run,)))
    assert not world.reads
    assert not [stop for node in (1, 2, 3) for stop in stops(world, node)]
    assert world.tracking.swarms[X].book.leases[run].node == 1


@pytest.mark.parametrize("certified", [False, True])
def test_all_ids_of_one_certificate_are_one_witness(*, certified: bool) -> None:
    evil, honest = Member("agent", "evil"), Member("agent", "n1")
    world = World(members=replace(MemberSettings(), certified=certified))
    nodes = [evil.node(5), evil.node(6), honest.node(1)]
    for node in nodes:
        world.say(node, m.Announce("10.0.0.1:7401", "1"))
        world.say(node, m.Enter(state(credit=1)))
    (run,) = world.reading(nodes[0])
    reads_wrong(world, nodes[0])
    while run not in world.reading(nodes[1]):
        reads_right(world, nodes[1])
        if run in world.reading(nodes[2]):  # not the run of this node: its word would count
            world.say(nodes[2], m.LeaseReport(X, EPOCH, failed=(run,)))
            world.wait(0.1, alive=nodes)
    reads_wrong(world, nodes[1])
    assert (world.tracking.swarms[X].doubts.stop is None) is certified


@pytest.mark.parametrize("certified", [False, True])
def test_an_id_of_the_accusers_own_certificate_is_no_witness_that_reads_right(
    *, certified: bool
) -> None:
    evil = Member("agent", "evil")
    world = World(members=replace(MemberSettings(), certified=certified))
    nodes = [evil.node(5), evil.node(6)]
    world.say(nodes[0], m.Announce("10.0.0.1:7401", "1"))
    world.say(nodes[0], m.Enter(state(credit=1)))
    swarm = world.tracking.swarms[X]
    (run,) = world.reading(nodes[0])
    reads_wrong(world, nodes[0])
    world.say(nodes[1], m.Announce("10.0.0.1:7401", "1"))
    world.say(nodes[1], m.Enter(state(credit=1)))
    while run not in world.reading(nodes[1]):
        reads_right(world, nodes[1])
    reads_right(world, nodes[1])
    assert (nodes[0] in swarm.doubts.odd) is not certified


@pytest.mark.parametrize("certified", [False, True])
def test_all_ids_of_one_certificate_are_one_accuser(*, certified: bool) -> None:
    evil, honest = Member("agent", "evil"), Member("agent", "n1")
    world = World(members=replace(MemberSettings(), certified=certified))
    victim = honest.node(1)
    nodes = [evil.node(5), evil.node(6), victim, Member("agent", "n2").node(1)]
    for node in nodes:
        world.say(node, m.Announce("10.0.0.1:7401", "1"))
        world.say(node, m.Enter(state(credit=1)))
    for node in nodes[:2]:
        world.say(node, m.Blame(victim, X, 0))
    swarm = world.tracking.swarms[X]
    assert (victim in swarm.banned) is not certified
    world.say(nodes[3], m.Blame(victim, X, 0))
    assert victim in swarm.banned


def test_a_banned_node_reads_for_itself_and_only_when_no_other_does() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=4)
    for accuser in (1, 2):
        world.say(accuser, m.Blame(3, X, 0))
    swarm = world.tracking.swarms[X]
    assert 3 in swarm.banned
    world.forget_mail()
    had = 0
    world.say(3, m.Heartbeat(swarms=(state(credit=4),)))
    reads_right(world, 1)
    assert world.granted(1) + world.granted(2)
    assert not world.granted(3), "what it reads is of use to itself alone"
    for node in (1, 2):
        world.say(node, m.Leaving())
    for _ in range(4 * RUNS):
        world.wait(2.1, alive=(3,))
        runs = world.reading(3)
        assert not had & bitset.of(runs), "it was told to read what it has"
        had |= bitset.of(runs)
        reads_right(world, 3)
        if had != ALL_RUNS:
            world.say(3, m.Heartbeat(swarms=(state(had, credit=4),)))
    assert had == ALL_RUNS
    assert swarm.book.free == ALL_RUNS, "others may read them all the same"


def test_people_are_told_who_said_what() -> None:
    world = World()
    world.word = WitnessReport.RIGHT
    world.join(1, credit=1)
    run = world.granted(1)[0]
    reads_wrong(world, 1)
    said = [(spoken.node, spoken.text) for spoken in world.spoken]
    assert [node for node, _ in said] == [1, 1, 1]
    assert f"run {run}" in said[0][1]
    assert "the tracker reads run" in said[1][1]
    assert "no leases" in said[2][1]
