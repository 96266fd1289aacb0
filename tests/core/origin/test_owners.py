"""OriginOwners: which node reads a run without a tracker, and which owners are passed over."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import rendezvous
from p2pcache.core.origin.owners import OriginOwners
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Dial
from p2pcache.core.swarm.run_states import RunStates
from tests.core.context_kit import context_of

SETTINGS = SwarmSettings()
PATIENCE_S = SETTINGS.owner_patience_s
RUNS = 40


class Owners(OriginOwners):
    """Those that one node sees."""

    def __init__(self, node: int, *neighbours: int) -> None:
        self.book = PeerBook(Boundaries(node, RUNS))
        super().__init__(context_of(RunStates(RUNS, 0), self.book, node=node))
        for one in neighbours:
            self.join(one)

    def join(self, node: int) -> None:
        """It dials us, as we dial it."""
        self.on_reachable()
        self.meet(node)

    def meet(self, node: int) -> None:
        """We have dialled it."""
        self.book.on_connected(node, 0, 0.0)
        self.on_peer_joined(node)


@given(st.integers(1, 8), st.integers(0, 31))
def test_each_run_has_one_reader_however_the_members_look_at_it(count: int, run: int) -> None:
    nodes = range(1, count + 1)
    readers = []
    for node in nodes:
        owners = Owners(node, *(set(nodes) - {node}))
        owners.on_members(nodes)
        readers += owners.plan([run], 0.0, 0.0, PATIENCE_S).read
    assert readers == [run]


def test_a_dead_owner_is_dialled_once_and_then_replaced() -> None:
    nodes = (1, 2)
    run = next(r for r in range(100) if rendezvous.owner(r, nodes) == 2)
    owners = Owners(1)
    owners.on_members(nodes)
    plan = owners.plan([run], 0.0, 0.0, PATIENCE_S)
    assert (plan.read, plan.dial) == ([], [])  # it may well come through a neighbour
    assert plan.wake_at <= SETTINGS.stuck_after_s
    assert owners.plan([run], 0.0, SETTINGS.stuck_after_s, PATIENCE_S).dial == [Dial(2)]
    assert owners.plan([run], 0.0, SETTINGS.stuck_after_s + 1, PATIENCE_S).dial == []
    owners.book.dialling.discard(2)
    owners.on_peer_failed(2)
    assert owners.plan([run], 0.0, 6.0, PATIENCE_S).read == [run]
    owners.join(2)
    assert owners.plan([run], 0.0, 7.0, PATIENCE_S).read == []


def test_an_owner_is_dialled_before_it_is_passed_over() -> None:
    """Where storage is quick patience is shorter than the time after which a node counts as stuck.

    So nobody was dialled, all others were passed over, and a node that began without its tracker read all by itself.
    """
    nodes, patience_s = (1, 2), SETTINGS.stuck_after_s / 2
    run = next(r for r in range(100) if rendezvous.owner(r, nodes) == 2)
    owners = Owners(1)
    owners.on_members(nodes)
    now, plan = 0.0, owners.plan([run], 0.0, 0.0, patience_s)
    while not plan.dial and now < patience_s:
        now = plan.wake_at
        plan = owners.plan([run], now, now, patience_s)
    assert now < patience_s
    assert plan.dial == [Dial(2)]


def test_an_owner_that_lets_everybody_wait_loses_all_its_runs() -> None:
    nodes = (1, 2)
    theirs = [r for r in range(100) if rendezvous.owner(r, nodes) == 2][:20]
    owners = Owners(1, 2)
    owners.on_members(nodes)
    assert owners.plan(theirs, 0.0, 0.0, PATIENCE_S).read == []
    assert owners.plan(theirs, 1.0, PATIENCE_S, PATIENCE_S).read == [], (
        "something came from somebody lately"
    )
    assert owners.plan(theirs, PATIENCE_S, PATIENCE_S, PATIENCE_S).read == theirs
    owners.on_members(nodes)
    owners.on_peer_failed(2)
    assert owners.plan(theirs, 0.0, PATIENCE_S, PATIENCE_S).read == theirs, "a liar owns nothing"


def test_a_node_that_nobody_dials_reads_nothing_that_a_neighbour_may_read() -> None:
    """Seventeen of twenty nodes behind firewalls, the tracker lost: 5.8 copies, each read a fourth for itself alone."""
    owners = Owners(1)
    owners.on_members((1, 2))
    runs = list(range(20))
    assert owners.plan(runs, 0.0, 0.0, PATIENCE_S).read != [], "nobody else may be there"
    owners.meet(2)
    assert owners.plan(runs, 0.0, 0.0, PATIENCE_S).read == []
    owners.join(2)
    assert owners.plan(runs, 0.0, 0.0, PATIENCE_S).read != [], "others can get it from us"


def test_a_node_that_nobody_dials_reads_once_a_neighbour_let_it_wait() -> None:
    owners = Owners(1)
    owners.on_members((1, 2, 3))
    owners.meet(2)
    owners.meet(3)
    runs = list(range(20))
    owners.plan(runs, 0.0, 0.0, PATIENCE_S)
    plan = owners.plan(runs, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    assert plan.read != []


def many_owners() -> tuple[Owners, list[int]]:
    """One that owns none of these runs, which eight others should read; they are waited for."""
    nodes = tuple(range(1, 10))
    owners = Owners(1, *nodes[1:])
    owners.on_members(nodes)
    theirs = [run for run in range(60) if rendezvous.owner(run, nodes) != 1]
    owners.plan(theirs, 0.0, 0.0, PATIENCE_S)
    return owners, theirs


def test_while_nothing_comes_from_anybody_one_owner_at_a_time_is_passed_over() -> None:
    """Storage was silent for 15 s: each of 8 nodes passed over all others and read everything, 6 copies."""
    owners, theirs = many_owners()
    before = len(owners.live)
    for rounds in (1, 2, 3):
        now = rounds * PATIENCE_S + 0.1
        owners.plan(theirs, now, now, PATIENCE_S)
        assert len(owners.live) == before - rounds
        owners.plan(theirs, now, now + 1.0, PATIENCE_S)
        assert len(owners.live) == before - rounds, "who comes next in order has its own time"


def test_when_the_next_in_order_gets_something_all_other_idle_owners_are_passed_over() -> None:
    owners, theirs = many_owners()
    owners.plan(theirs, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    left = len(owners.live)
    came = PATIENCE_S + 1.0
    owners.plan(theirs, 0.0, came, PATIENCE_S)
    assert len(owners.live) == left, "others may follow"
    soon = PATIENCE_S / 4
    owners.plan(theirs, soon, came + soon, PATIENCE_S)
    assert len(owners.live) <= 2


def test_an_owner_that_brings_its_own_run_was_not_idle() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    own = next(run for run in theirs if rendezvous.owner(run, live) == idle)
    other = next(run for run in theirs if rendezvous.owner(run, live) != idle)
    owners.on_new_runs(idle, 1 << other)
    assert idle not in owners.live, "somebody else has read that"
    owners.on_new_runs(idle, 1 << own)
    assert owners.live == live


def test_an_idle_owner_that_lies_does_not_get_its_place_back() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    owners.on_peer_failed(idle)
    owners.on_new_runs(
        idle, 1 << next(run for run in theirs if rendezvous.owner(run, live) == idle)
    )
    assert idle not in owners.live


def test_neighbours_are_members_even_if_the_tracker_had_no_time_to_say_so() -> None:
    readers = []
    for node in (1, 2, 3):
        owners = Owners(node)
        owners.on_members({1, node})  # each was told another list
        for other in {1, 2, 3} - {node}:
            owners.join(other)
        readers += owners.plan(range(32), 0.0, 0.0, PATIENCE_S).read
    assert sorted(readers) == list(range(32))
    owners = Owners(1)
    owners.join(2)
    assert owners.plan([0, 1, 2], 0.0, 0.0, PATIENCE_S).read == [], (
        "never told anything: reads nothing"
    )
