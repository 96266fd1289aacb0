"""The tracker and holders that deliver nothing: their claims count for nothing until they deliver."""

from p2pcache.core import bitset
from p2pcache.core.membership.outputs import Event, Notice
from p2pcache.core.membership.settings import VERDICT_S
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import EPOCH, RUNS, World, X, state

SEED = 9
ALL_RUNS = bitset.full(RUNS)
BITS = bitset.to_bytes(ALL_RUNS, RUNS)


def seeded(*pullers: int) -> World:
    """A member that has everything, as it says, and others that want it."""
    world = World()
    world.join(SEED, ALL_RUNS, credit=0)
    for node in pullers:
        world.join(node, credit=4)
        assert not world.granted(node)
    return world


def names(world: World, node: int) -> list[Notice]:
    told = world.tracking.handle(node, m.Stuck(X, (0, 1), BITS, vain=(SEED,)), world.now)
    world.take(told)
    return [one for one in told if isinstance(one, Notice)]


def answer(world: World, *nodes: int) -> None:
    """The answers to the poll: no other member has any run."""
    world.wait(0.1)
    for node in nodes:
        world.say(node, m.Heartbeat(swarms=(state(credit=4),)))


def test_the_only_member_that_pulls_is_believed_and_reads() -> None:
    world = seeded(1)
    assert names(world, 1) == [Notice(Event.UNREACHED, SEED, X)]
    answer(world, 1)
    assert world.granted(1)
    assert not names(world, 1), "people are told once"


def test_of_several_two_have_to_name_it_and_each_run_is_granted_once() -> None:
    world = seeded(1, 2, 3)
    swarm = world.tracking.swarms[X]
    assert not names(world, 1)
    assert not swarm.reach.lost
    assert names(world, 2) == [Notice(Event.UNREACHED, SEED, X)]
    answer(world, 1, 2, 3)
    while runs := {node: world.granted(node) for node in (1, 2, 3) if world.granted(node)}:
        world.forget_mail()
        for node, read in runs.items():
            world.done(node, *read)
    assert swarm.book.granted == RUNS
    assert swarm.book.done == ALL_RUNS


def test_a_lone_accuser_may_be_cut_off_and_gets_its_own_copy() -> None:
    world = seeded(1, 2)
    names(world, 1)
    assert world.granted(1) or world.granted(2), "nobody reads anything else"
    assert not world.tracking.swarms[X].reach.lost


def test_a_copy_that_others_read_meanwhile_is_asked_of_them_and_not_read_again() -> None:
    """Two hidden nodes that knew a hung one only read all of it twice more: 2.5 copies (docs/lab/0117)."""
    world = seeded(1, 2, 3)
    world.say(1, m.LeaseReport(X, EPOCH, credit=0))
    book = world.tracking.swarms[X].book
    assert not names(world, 1)
    while runs := {node: world.granted(node) for node in (2, 3) if world.granted(node)}:
        world.forget_mail()
        for node, read in runs.items():
            world.done(node, *read)
    world.wait(4.1, alive=(1, 2, 3))
    world.forget_mail()
    assert not names(world, 1)
    assert book.regranted == RUNS, "once for all"
    (sent_to,) = world.got(1, m.Swarm)
    assert {2, 3} & {*sent_to.neighbours}


def test_one_that_works_on_no_lease_is_believed_where_one_other_does() -> None:
    """That one alone can't be asked for a second complaint: it may want other runs."""
    world = World()
    world.join(1, credit=2)
    world.done(1, *world.granted(1))
    world.join(2, credit=4)
    world.join(3, credit=0)
    told = world.tracking.handle(3, m.Stuck(X, (0, 1), BITS, vain=(1,)), world.now)
    assert Notice(Event.UNREACHED, 1, X) in told
    assert world.tracking.swarms[X].roster.members[1].void


def test_newcomers_are_not_sent_there_and_read_what_nobody_else_has() -> None:
    world = seeded(1)
    names(world, 1)
    answer(world, 1)
    world.say(1, m.Leaving())
    world.wait(1.0, alive=(SEED,))
    world.join(2, credit=4)
    world.wait(1.0, alive=(SEED, 2))
    assert SEED not in {n for told in world.got(2, m.Swarm) for n in told.neighbours}
    assert world.granted(2)


def test_its_claims_count_again_when_it_delivers() -> None:
    world = seeded(1, 2)
    for node in (1, 2):
        names(world, node)
    world.say(1, m.Stuck(X, (), gives=(SEED,)))
    swarm = world.tracking.swarms[X]
    assert not swarm.reach.lost
    assert not swarm.book.free
    assert SEED in swarm.roster.complete


def test_its_claims_count_again_after_a_while_and_when_it_connects_anew() -> None:
    world = seeded(1)
    names(world, 1)
    world.wait(VERDICT_S + 1, alive=(1, SEED))
    assert not world.tracking.swarms[X].reach.lost
    names(world, 1)
    assert world.tracking.swarms[X].reach.lost
    world.announce(SEED, state(ALL_RUNS))
    assert not world.tracking.swarms[X].reach.lost


def test_what_is_being_read_goes_on_when_silent_holders_are_tried_again() -> None:
    world = World()
    for silent in (SEED, SEED + 1):
        world.join(silent, ALL_RUNS, credit=0)
    world.join(1, credit=4)
    said = m.Stuck(X, (0, 1), BITS, vain=(SEED, SEED + 1))
    world.say(1, said)
    answer(world, 1)
    reading = world.granted(1)
    assert reading
    for _ in range(int(VERDICT_S / 5) + 1):
        world.wait(5.0, alive=(SEED, SEED + 1))
        world.say(1, m.Heartbeat(swarms=(state(credit=4, leases=tuple(reading)),)))
    swarm = world.tracking.swarms[X]
    assert not swarm.reach.lost
    assert not swarm.book.free, "others seem to have them"
    assert not world.got(1, m.Revoke)


def test_a_member_that_delivers_nothing_may_still_pull() -> None:
    """It alone reads: its runs are free, as no other gets them, and must not keep it from the rest."""
    world = World()
    world.join(1, credit=0)
    world.join(SEED, credit=16)
    first = world.granted(SEED)
    world.done(SEED, *first)
    world.say(1, m.Enter(state(credit=1)))
    names(world, 1)
    world.say(1, m.Exit(X))
    for _ in range(4):
        world.wait(0.5, alive=(SEED,))
        if runs := world.granted(SEED):
            world.forget_mail()
            world.done(SEED, *runs)
    assert world.tracking.swarms[X].roster.members[SEED].have == ALL_RUNS


def test_a_release_that_names_nobody_is_understood() -> None:
    assert m.decode_to_tracker(m.encode(m.Stuck(X, (1,)))) == m.Stuck(X, (1,))
    world = seeded(1)
    world.say(1, m.Stuck(X, (1,), vain=(1, 77)))
    assert not world.tracking.swarms[X].reach.lost
