"""What follows from members' messages: several parts of the tracker together."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from p2pcache.errors import RemoteProtocolError
from tests.core.coordinator.tracking_kit import EPOCH, RUNS, World, X, Y, members_of, state


def test_a_fresh_storm_is_granted_at_once() -> None:
    world = World()
    for node in (1, 2, 3, 4):
        world.join(node, credit=8)
    assert world.got(1, m.Settled) == [m.Settled(EPOCH, "s3://m", 5.0, 15.0)]
    runs = [run for node in (1, 2, 3, 4) for run in world.granted(node)]
    assert sorted(runs) == list(range(16))
    assert all(grant.epoch == EPOCH for grant in world.got(1, m.Grant))


def test_a_grant_says_how_many_leases_all_members_have() -> None:
    """A node that loses the tracker waits for so many reads of others."""
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=2)
        sent = world.got(node, m.Grant)[-1].in_flight
        assert sent == len(world.tracking.swarms[X].book.leases) > 2 * (node - 1)


def test_everybody_learns_of_everybody_and_is_dialled() -> None:
    world = World()
    for node in range(1, 7):
        world.join(node)
        world.wait(0.02)
    world.wait(1.0)
    for node in range(1, 7):
        assert members_of(world, node) == set(range(1, 7))
    dialled = {n for s in world.got(6, m.Swarm) for n in s.neighbours}
    assert dialled == {1, 2, 3, 4, 5}


def test_deltas_are_batched() -> None:
    world = World()
    for node in range(1, 101):
        world.join(node)
    world.wait(1.0)
    deltas = [s for s in world.got(1, m.Swarm) if not s.full and not s.neighbours]
    assert len(deltas) <= 5
    assert [s.version for s in deltas] == list(range(deltas[0].version, deltas[-1].version + 1))
    assert members_of(world, 1) == set(range(1, 101))


def test_a_complete_member_hears_no_deltas() -> None:
    world = World()
    world.join(1, have=bitset.full(RUNS), credit=0)
    for node in range(2, 6):
        world.join(node)
    world.wait(1.0)
    assert [s.full for s in world.got(1, m.Swarm)] == [True]
    assert not any(world.granted(node) for node in range(2, 6))


def test_every_run_is_read_once() -> None:
    world = World()
    nodes = (1, 2, 3)
    for node in nodes:
        world.join(node, credit=2)
    read: list[int] = []
    while mail := [(n, g) for n, g in world.sent if isinstance(g, m.Grant)]:
        world.forget_mail()
        for node, grant in mail:
            read += grant.runs
            world.done(node, *grant.runs)
    assert sorted(read) == list(range(RUNS))


def test_a_killed_nodes_work_is_done_again_only_where_needed() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=1)
    mine = world.granted(1)
    world.done(1, *mine)
    last = world.granted(1)[-1]
    world.take(world.tracking.on_disconnected(1, world.now))
    world.wait(2.9, alive=(2, 3))
    assert not world.got(2, m.Poll)
    world.wait(0.2, alive=(2, 3))
    assert world.got(2, m.Poll) == [m.Poll(X)]
    assert world.got(3, m.Poll) == [m.Poll(X)]
    world.say(2, m.Heartbeat(swarms=(state(bitset.of(mine), credit=8),)))
    world.forget_mail()
    world.say(3, m.Heartbeat(swarms=(state(0, credit=8),)))
    world.wait(0.01)
    again = world.granted(2) + world.granted(3)
    assert last in again
    assert not set(mine) & set(again)


def test_a_poll_waits_no_longer_than_a_heartbeat() -> None:
    world = World()
    world.join(1, credit=1)
    world.join(2, credit=1)
    world.done(1, *world.granted(1))
    world.say(1, m.Leaving())
    world.wait(0.1)
    assert world.got(2, m.Poll)
    world.wait(4.9, alive=(2,))
    assert not world.tracking.swarms[X].book.free & 1
    world.wait(0.2, alive=(2,))
    assert world.tracking.swarms[X].book.free & 1


def test_nodes_that_leave_one_after_the_other_cost_few_polls() -> None:
    world = World()
    for node in range(1, 9):
        world.join(node, credit=1)
    for node in range(1, 8):
        world.done(node, *world.granted(node))
        world.say(node, m.Leaving())
        world.say(8, m.Heartbeat(swarms=(state(credit=1),)))
        world.wait(0.1)
    assert len(world.got(8, m.Poll)) == 1
    world.wait(0.5)
    world.say(8, m.Heartbeat(swarms=(state(credit=1),)))
    assert len(world.got(8, m.Poll)) <= 2
    world.wait(3.0, alive=(8,))  # they may be starting again
    world.say(8, m.Heartbeat(swarms=(state(credit=1),)))
    assert world.tracking.swarms[X].book.done == 0


def test_a_blip_costs_nothing() -> None:
    world = World()
    world.join(1, credit=2)
    world.join(2, credit=2)
    reading = tuple(world.granted(1))
    world.take(world.tracking.on_disconnected(1, world.now))
    world.wait(2.0, alive=(2,))
    world.forget_mail()
    world.announce(1, state(credit=2, leases=reading, known=(1, 2)))
    world.wait(3.0, alive=(1, 2))
    assert not world.granted(1)
    assert not world.got(2, m.Poll)
    assert {
        r for r, lease in world.tracking.swarms[X].book.leases.items() if lease.node == 1
    } == set(reading)


def test_a_blip_forgets_nothing_about_the_node() -> None:
    world = World()
    world.announce(1)
    world.say(1, m.Heartbeat(load=3, free_bytes=10, cached_bytes=20))
    world.wait(1.0)
    world.take(world.tracking.on_disconnected(1, world.now))
    world.announce(1, rack="r2")
    node = world.tracking.registry.nodes[1]
    assert (node.beat.load, node.beat.free_bytes, node.member.rack) == (3, 10, "r2")


def test_silence_ends_a_member() -> None:
    world = World()
    world.join(1, credit=2)
    world.join(2, credit=2)
    world.wait(15.1, alive=(2,))
    assert world.closed == [1]
    assert set(world.tracking.registry.nodes) == {2}
    assert members_of(world, 2) == {2}
    world.say(1, m.Heartbeat())
    assert world.closed == [1, 1]


def test_leases_need_heartbeats_that_list_them() -> None:
    world = World()
    world.join(1, credit=1)
    world.join(2, credit=1)
    (run,) = world.granted(1)
    for _ in range(3):
        world.wait(4.9, alive=(2,))
        world.say(1, m.Heartbeat(swarms=(state(credit=1, leases=(run,)),)))
    assert world.tracking.swarms[X].book.leases[run].node == 1
    world.wait(16.0, alive=(1, 2))
    assert run not in world.tracking.swarms[X].book.leases or world.got(2, m.Poll)


def test_reports_of_another_epoch_count_only_for_what_is_done() -> None:
    world = World()
    world.join(1, credit=2)
    world.join(2, credit=2)
    run, other = world.granted(1)[:2]
    world.say(1, m.LeaseReport(X, EPOCH - 1, done=(run,), failed=(other,)))
    assert run not in world.tracking.swarms[X].book.leases
    assert world.tracking.swarms[X].book.leases[other].node == 1


def test_in_a_swarm_of_two_one_accuser_is_enough() -> None:
    world = World()
    world.announce(2, state(bitset.full(RUNS)))
    world.join(1, credit=2)
    assert not world.granted(1), "the liar has everything"
    world.say(1, m.Blame(2, X, 0))
    world.wait(10.0, alive=(1, 2))
    assert world.granted(1)


def test_exit_and_leaving() -> None:
    world = World()
    world.announce(1, state(0b1), state(0b1, digest=Y))
    world.join(2)
    world.say(1, m.Exit(Y))
    assert set(world.tracking.swarms) == {X}
    world.say(1, m.Leaving())
    world.wait(0.5, alive=(2,))
    assert set(world.tracking.registry.nodes) == {2}
    assert members_of(world, 2) == {2}
    world.say(2, m.Leaving())
    assert not world.tracking.swarms


def test_losing_runs_is_noticed() -> None:
    world = World()
    world.join(1, have=bitset.full(RUNS), credit=0)
    world.join(2, credit=1)
    world.forget_mail()
    world.say(1, m.Heartbeat(swarms=(state(0b1, credit=2),)))
    assert [s.full for s in world.got(1, m.Swarm)][:1] == [True]
    world.wait(0.1)
    for node in (1, 2):
        have = 0b1 if node == 1 else 0
        world.say(node, m.Heartbeat(swarms=(state(have, credit=2),)))
    world.wait(0.1)
    assert (
        sorted(world.granted(1) + world.granted(2))
        == [1, 2, 3, 4][: len(world.granted(1)) + len(world.granted(2))]
    )
    assert world.granted(2)


@pytest.mark.parametrize(
    "message",
    [
        m.Enter(m.SwarmState(X, -1)),
        m.Enter(m.SwarmState(X, 10**9)),
        m.Enter(m.SwarmState(X, RUNS + 1)),
        m.Enter(m.SwarmState(X, RUNS, b"\x00")),
        m.Enter(m.SwarmState(Y, 9, b"\xff\xff")),
        m.Enter(m.SwarmState(X, RUNS, leases=(RUNS,))),
        m.Enter(m.SwarmState(X, RUNS, leases=(-1,))),
        m.LeaseReport(X, EPOCH, done=(1 << 60,)),
        m.LeaseReport(X, EPOCH, failed=(-5,)),
        m.Stuck(X, (RUNS,)),
    ],
)
def test_bad_messages_are_the_senders_fault(message: m.ToTracker) -> None:
    world = World()
    world.join(1, credit=1)
    with pytest.raises(RemoteProtocolError):
        world.tracking.handle(1, message, world.now)
    world.tracking.check()


def test_an_empty_model_is_complete() -> None:
    world = World()
    world.announce(1, m.SwarmState(Y, 0, b"", complete=True))
    world.announce(2, m.SwarmState(Y, 0, b"", credit=1))
    assert not world.granted(2)


def test_same_words_same_answers() -> None:
    def play() -> list[tuple[int, m.ToAgent]]:
        world = World()
        for node in range(1, 60):
            world.join(node, credit=2)
            world.wait(0.05)
        return world.sent

    assert play() == play()


def test_a_grant_lost_with_its_connection_is_granted_again() -> None:
    world = World()
    world.join(1, credit=2)
    assert world.granted(1) == [0, 1]
    world.take(world.tracking.on_disconnected(1, world.now))
    world.forget_mail()
    world.announce(1, state(credit=4))
    assert world.granted(1)[:2] == [2, 3]
    world.say(1, m.Heartbeat(swarms=(state(credit=6),)))
    world.wait(0.1)  # nobody else is there to ask
    world.say(1, m.Heartbeat(swarms=(state(credit=8),)))
    assert world.granted(1)[-2:] == [0, 1]


def test_leases_follow_what_a_node_wants_and_demands() -> None:
    world = World()
    some = bitset.to_bytes(0b1111 << 8, RUNS)
    world.announce(1)
    world.say(1, m.Enter(m.SwarmState(X, RUNS, credit=2, wanted=some)))
    assert world.granted(1) == [8, 9]
    world.say(1, m.LeaseReport(X, EPOCH, done=(8, 9), demanded=(11,)))
    assert world.granted(1) == [8, 9, 11, 10]
    world.say(1, m.LeaseReport(X, EPOCH, done=(10, 11), credit=2))
    assert world.granted(1)[4:] == [0, 1]


@pytest.mark.parametrize("wanted", [b"1", bytes(RUNS // 8 + 1)])
def test_a_wish_of_another_length_is_refused(wanted: bytes) -> None:
    world = World()
    world.join(1)
    with pytest.raises(RemoteProtocolError, match="bitmap"):
        world.say(1, m.LeaseReport(X, EPOCH, credit=1, wanted=wanted))
    with pytest.raises(RemoteProtocolError, match="bitmap"):
        world.say(1, m.Enter(m.SwarmState(X, RUNS, credit=1, wanted=wanted)))


# -- a tracker that stood still -----------------------------------------------------------------------
