"""OriginOwners: which node reads a run without a tracker, and which owners are passed over."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import rendezvous
from p2pcache.core.origin.owners import OriginOwners, patience
from p2pcache.core.origin.settings import LEAST_PATIENCE_S
from p2pcache.core.settings import SwarmSettings

SETTINGS = SwarmSettings()
PATIENCE_S = SETTINGS.owner_patience_s
RUNS = 40
bitsets = st.integers(0, (1 << RUNS) - 1)


@given(st.integers(1, 8), st.integers(0, 31))
def test_each_run_has_one_reader_however_the_members_look_at_it(count: int, run: int) -> None:
    nodes = range(1, count + 1)
    readers = []
    for node in nodes:
        owners = OriginOwners(node, SETTINGS)
        owners.on_members(nodes)
        readers += owners.plan([run], set(nodes) - {node}, 0.0, 0.0, PATIENCE_S).read
    assert readers == [run]


def test_a_dead_owner_is_dialled_once_and_then_replaced() -> None:
    nodes = (1, 2)
    run = next(r for r in range(100) if rendezvous.owner(r, nodes) == 2)
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    plan = owners.plan([run], (), 0.0, 0.0, PATIENCE_S)
    assert (plan.read, plan.dial) == ([], [])  # it may well come through a neighbour
    assert plan.wake_at <= SETTINGS.stuck_after_s
    assert owners.plan([run], (), 0.0, SETTINGS.stuck_after_s, PATIENCE_S).dial == [2]
    assert owners.plan([run], (), 0.0, SETTINGS.stuck_after_s + 1, PATIENCE_S).dial == []
    owners.on_peer_failed(2)
    assert owners.plan([run], (), 0.0, 6.0, PATIENCE_S).read == [run]
    owners.on_peer_joined(2)
    assert owners.plan([run], (2,), 0.0, 7.0, PATIENCE_S).read == []


def test_an_owner_that_lets_everybody_wait_loses_all_its_runs() -> None:
    nodes = (1, 2)
    theirs = [r for r in range(100) if rendezvous.owner(r, nodes) == 2][:20]
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    assert owners.plan(theirs, {2}, 0.0, 0.0, PATIENCE_S).read == []
    assert owners.plan(theirs, {2}, 1.0, PATIENCE_S, PATIENCE_S).read == [], (
        "something came from somebody lately"
    )
    assert owners.plan(theirs, {2}, PATIENCE_S, PATIENCE_S, PATIENCE_S).read == theirs
    owners.on_members(nodes)
    owners.on_peer_failed(2)
    assert owners.plan(theirs, {2}, 0.0, PATIENCE_S, PATIENCE_S).read == theirs, (
        "a liar owns nothing"
    )


def many_owners() -> tuple[OriginOwners, list[int]]:
    """One that owns none of these runs, which eight others should read; they are waited for."""
    nodes = tuple(range(1, 10))
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    theirs = [run for run in range(60) if rendezvous.owner(run, nodes) != 1]
    owners.plan(theirs, nodes, 0.0, 0.0, PATIENCE_S)
    return owners, theirs


def test_while_nothing_comes_from_anybody_one_owner_at_a_time_is_passed_over() -> None:
    """Storage was silent for 15 s: each of 8 nodes passed over all others and read everything, 6 copies."""
    owners, theirs = many_owners()
    before = len(owners.live)
    for rounds in (1, 2, 3):
        now = rounds * PATIENCE_S + 0.1
        owners.plan(theirs, owners.live, now, now, PATIENCE_S)
        assert len(owners.live) == before - rounds
        owners.plan(theirs, owners.live, now, now + 1.0, PATIENCE_S)
        assert len(owners.live) == before - rounds, "who comes next in order has its own time"


def test_when_the_next_in_order_gets_something_all_other_idle_owners_are_passed_over() -> None:
    owners, theirs = many_owners()
    owners.plan(theirs, owners.live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    left = len(owners.live)
    came = PATIENCE_S + 1.0
    owners.plan(theirs, owners.live, 0.0, came, PATIENCE_S)
    assert len(owners.live) == left, "others may follow"
    soon = PATIENCE_S / 4
    owners.plan(theirs, owners.live, soon, came + soon, PATIENCE_S)
    assert len(owners.live) <= 2


def test_an_owner_that_brings_its_own_run_was_not_idle_once() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    own = next(run for run in theirs if rendezvous.owner(run, live) == idle)
    other = next(run for run in theirs if rendezvous.owner(run, live) != idle)
    owners.on_new_runs(idle, 1 << other)
    assert idle not in owners.live, "somebody else has read that"
    owners.on_new_runs(idle, 1 << own)
    assert owners.live == live
    owners.plan(theirs, live, 0.0, PATIENCE_S, PATIENCE_S)
    for later in (3, 9):  # again, and by now somebody else as well
        owners.plan(theirs, live, later * PATIENCE_S, later * PATIENCE_S, PATIENCE_S)
    owners.on_peer_failed(idle)
    owners.on_new_runs(idle, 1 << own)
    assert idle not in owners.live, "the second time it is so"


def test_an_idle_owner_that_lies_does_not_get_its_place_back() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    owners.on_peer_failed(idle)
    owners.on_new_runs(
        idle, 1 << next(run for run in theirs if rendezvous.owner(run, live) == idle)
    )
    assert idle not in owners.live


def test_owners_have_the_time_that_reads_take_which_share_an_uplink() -> None:
    assert patience(40, 0.0, PATIENCE_S) == PATIENCE_S, "it isn't known"
    assert patience(40, 0.005) == LEAST_PATIENCE_S
    assert patience(40, 0.5) == 40.0
    assert patience(3, 0.5) == 3.0


def test_neighbours_are_members_even_if_the_tracker_had_no_time_to_say_so() -> None:
    readers = []
    for node in (1, 2, 3):
        owners = OriginOwners(node, SETTINGS)
        owners.on_members({1, node})  # each was told another list
        for other in {1, 2, 3} - {node}:
            owners.on_peer_joined(other)
        readers += owners.plan(range(32), {1, 2, 3}, 0.0, 0.0, PATIENCE_S).read
    assert sorted(readers) == list(range(32))
    owners = OriginOwners(1, SETTINGS)
    owners.on_peer_joined(2)
    assert owners.plan([0, 1, 2], {2}, 0.0, 0.0, PATIENCE_S).read == [], (
        "never told anything: reads nothing"
    )
