"""Members that go and come back within seconds: what they have is read from storage once."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.leases.lost_runs import LostRuns
from p2pcache.core.leases.settings import LEFT_BYTES
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId
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


def one_read() -> tuple[World, int]:
    """A member alone has read four runs; they are returned."""
    world = World()
    world.join(1, credit=1)
    return world, read_alone(world, 1, 4)


def one_left() -> tuple[World, int]:
    """It has left, and another one is here that has nothing."""
    world, mine = one_read()
    world.join(2, credit=1)
    world.say(1, m.Leaving())
    return world, mine


def test_what_a_member_alone_had_that_left_is_read_after_all_others() -> None:
    world, mine = one_left()
    world.wait(BACK_S + 0.2, alive=(2,))
    serve(world, 2, 10.0)
    granted = world.granted(2)
    assert set(granted[-4:]) == set(bitset.members(mine))
    assert sorted(granted) == sorted(set(granted))


def test_a_member_that_left_has_time_to_come_back() -> None:
    world, mine = one_left()
    have = serve(world, 2, BACK_S - 0.3)
    assert have == bitset.full(RUNS) & ~mine
    world.announce(1, state(mine, credit=1))
    serve(world, 2, 4.0, have)
    assert not bitset.of(world.granted(2)) & mine
    assert world.tracking.swarms[X].book.free == 0


def test_what_a_member_had_that_does_not_come_back_is_read_again() -> None:
    world, _ = one_left()
    assert serve(world, 2, BACK_S + 2.0) == bitset.full(RUNS)


def test_a_member_that_comes_back_without_its_runs_is_not_waited_for() -> None:
    world, _ = one_left()
    have = serve(world, 2, 1.5)
    world.announce(1, state(0))
    world.wait(0.1)
    world.say(1, m.Heartbeat(swarms=(state(0),)))  # it is polled
    assert serve(world, 2, 1.0, have) == bitset.full(RUNS)


def test_a_member_that_is_stuck_waits_for_one_that_left() -> None:
    world, mine = one_left()
    world.say(2, m.Stuck(X, tuple(bitset.members(mine))))
    have = serve(world, 2, BACK_S - 0.5)
    assert not have & mine
    assert serve(world, 2, 1.5, have) == bitset.full(RUNS)


def test_a_member_that_is_stuck_a_second_time_waits_for_one_that_left() -> None:
    """Runs of which it said that others give them not were read again, and so were those that nobody gives."""
    world, mine = one_read()
    for node in (2, 3, 4):
        world.join(node, have=bitset.full(RUNS) & ~mine, credit=1)
    world.say(1, m.Leaving())
    world.wait(0.2)
    book = world.tracking.swarms[X].book
    assert book.idle
    runs, lacks = tuple(bitset.members(mine)), bitset.to_bytes(mine, RUNS)
    world.say(2, m.Stuck(X, runs, lacks=lacks, vain=(3,)))
    assert book.regranted == 0
    assert not book.free


def test_what_a_member_was_sent_for_in_vain_waits_for_its_holder_that_left() -> None:
    world, mine = one_read()
    for node in (2, 3):
        world.join(node, have=bitset.full(RUNS) & ~mine, credit=1)
    runs = tuple(bitset.members(mine))
    world.say(2, m.Stuck(X, runs))  # it is sent to the member that leaves
    world.wait(4.1, alive=(1, 2, 3))
    world.say(1, m.Leaving())
    world.wait(0.2)
    world.say(2, m.Stuck(X, runs, lacks=bitset.to_bytes(mine, RUNS)))
    book = world.tracking.swarms[X].book
    assert book.regranted == 0
    assert not book.free


def test_all_members_are_looked_at_once_for_a_stuck_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world, mine = one_left()
    covered, looks = LostRuns.covered, list[float]()

    def look(lost: LostRuns) -> int:
        looks.append(world.now)
        found: int = covered.fget(lost)  # type: ignore[attr-defined]
        return found

    holders, scans = Roster.holders, list[int]()

    def scan(roster: Roster, run: int, *, without: NodeId, limit: int) -> list[NodeId]:
        scans.append(run)
        return holders(roster, run, without=without, limit=limit)

    monkeypatch.setattr(LostRuns, "covered", property(look))
    monkeypatch.setattr(Roster, "holders", scan)
    world.tracking.handle(2, m.Stuck(X, tuple(bitset.members(mine))), world.now)
    assert len(looks) == len(scans) == 1
    world.tracking.handle(2, m.Stuck(X, tuple(bitset.members(mine << 8))), world.now)
    assert len(looks) == 1, "these have a holder, or a lease"


def test_many_that_leave_are_few_searches() -> None:
    """Each wait that ended began one of its own: 500 leaves were 500 polls of everybody."""
    world = World()
    leave, stay = range(1, 31), range(31, 61)
    for node in (*leave, *stay):
        world.announce(node, state(1 << node % RUNS if node in leave else 0))
    lost = world.tracking.swarms[X].lost_runs
    polls = lost.polls
    for node in leave:
        world.now += 0.01
        world.say(node, m.Leaving())
    end = world.now + BACK_S + 1.0
    while world.now < end:
        world.answer_polls(0.005)
    assert not world.tracking.swarms[X].book.done
    # They left within 0.3 s, and among 60 members a search may begin each 0.06 s.
    assert 1 <= lost.polls - polls <= 6


def test_what_members_that_left_had_is_noted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that come, say that they have everything, and leave: each kept a set of runs."""
    limit = "p2pcache.core.leases.lost_runs.AWAITED_BYTES"
    monkeypatch.setattr(limit, 2 * (RUNS // 8 + LEFT_BYTES))
    world = World()
    world.announce(9, state(0))
    for node in (1, 2, 3, 4):
        world.announce(node, state(1 << node))
    for node in (4, 1, 2, 3):
        world.say(node, m.Leaving())
    lost = world.tracking.swarms[X].lost_runs
    assert set(lost._left) == {4, 1}
    world.answer_polls()
    world.wait(0.1)
    free = world.tracking.swarms[X].book.free
    assert [run for run in (1, 2, 3, 4) if free >> run & 1] == [2, 3]
    world.announce(1, state(0))
    assert set(lost._left) == {4}


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
