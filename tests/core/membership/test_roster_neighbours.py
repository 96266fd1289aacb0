import random

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.membership.roster import Roster
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.protocol.messages import Member, Swarm


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_bag_is_a_set(steps: list[tuple[bool, int]]) -> None:
    bag, model = SampledSet(), set[int]()
    for add, member in steps:
        (bag.add if add else bag.discard)(member)
        (model.add if add else model.discard)(member)
        bag.check()
        assert set(bag) == model
        assert len(bag) == len(model)
        assert (member in bag) is (member in model)
    rng = random.Random(1)
    assert sorted(bag.draw(rng, 99)) == sorted(model)
    assert len(set(bag.draw(rng, 3))) == min(3, len(model))


def build(
    racks: list[int], complete: set[int], count: int, seed: int
) -> dict[int, tuple[int, ...]]:
    """Nodes enter one after another, each with a change of the list; returns the neighbours that each is handed."""
    roster, handed = Roster("ab" * 32, 1, seed), {}
    for node, rack in enumerate(racks):
        record = roster.enter(Member(node, "h:1", rack=str(rack)))
        roster.set_have(record, int(node in complete))
        told = roster.hand_out(node, count)
        handed[node] = told.neighbours if told is not None else ()
        roster.flush_list(float(node))
        for _, rest in roster.hand_out_rest(count):
            handed[node] += rest.neighbours
    return handed


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=120),
    st.sets(st.integers(0, 119)),
    st.integers(1, 24),
    st.integers(0, 99),
)
def test_the_graph_is_connected(
    racks: list[int], complete: set[int], count: int, seed: int
) -> None:
    handed = build(racks, complete, count, seed)
    links: dict[int, set[int]] = {n: set() for n in handed}
    for node, others in handed.items():
        assert node not in others
        assert len(set(others)) == len(others) == min(count, node) or node <= count + 1
        for other in others:
            links[node].add(other)
            links[other].add(node)
    seen, todo = {0}, [0]
    while todo:
        for other in links[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    assert seen == set(handed)


def test_small_swarm_gets_everybody_same_rack_first() -> None:
    handed = build([0, 1, 0, 1, 0], set(), 24, 1)
    assert sorted(handed[4]) == [0, 1, 2, 3]
    assert set(handed[4][:2]) == {0, 2}


def test_large_swarm_mixes_rack_complete_and_far() -> None:
    racks = [n % 10 for n in range(400)]
    handed = build(racks, set(range(40)), 24, 1)
    last = handed[399]
    assert sum(racks[n] == 9 for n in last) >= 12
    assert sum(n < 40 for n in last) >= 4
    assert len({racks[n] for n in last}) > 3


def test_no_node_is_the_neighbour_of_all() -> None:
    handed = build([0] * 500, set(), 24, 1)
    degree = dict.fromkeys(handed, 0)
    for node, others in handed.items():
        degree[node] += len(others)
        for other in others:
            degree[other] += 1
    assert max(degree.values()) < 4 * 48  # the mean is 48


def links_of(size: int, count: int, together: int, racks: int = 1) -> list[set[int]]:
    """The neighbours of each node, where so many enter between two changes of the list."""
    roster, links = Roster("ab" * 32, 1, 1), [set[int]() for _ in range(size)]

    def meet(node: int, told: Swarm | None) -> None:
        for other in told.neighbours if told is not None else ():
            assert other not in links[node] | {node}, "it was named before"
            links[node].add(other)
            links[other].add(node)

    for node in range(size):
        roster.enter(Member(node, "h:1", rack=str(node % racks)))
        meet(node, roster.hand_out(node, count))
        roster.check()
        if (node + 1) % together == 0 or node + 1 == size:
            roster.flush_list(float(node))
            for newcomer, rest in roster.hand_out_rest(count):
                meet(newcomer, rest)
            assert not list(roster.hand_out_rest(count))
    return links


def test_nodes_that_come_at_one_time_have_about_as_many_neighbours() -> None:
    """The last ones, too: with fewer they find all of them full sooner."""
    for size, mean in (100, 42), (300, 46):
        degrees = [len(others) for others in links_of(size, 24, together=size)]
        assert sum(degrees) == size * mean
        assert min(degrees) > 0.6 * mean
        assert max(degrees) < 1.5 * mean


@given(st.integers(1, 80), st.integers(1, 24), st.integers(1, 80), st.integers(1, 5))
def test_nobody_is_named_twice_or_to_more(size: int, count: int, together: int, racks: int) -> None:
    links = links_of(size, count, together, racks)
    named = sum(map(len, links)) / 2
    assert named <= sum(min(node, count) for node in range(size))
    assert named >= sum(min(node, (count + 1) // 2) for node in range(size))
    seen, todo = {0}, [0]
    while todo:
        fresh = links[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    assert len(seen) == size, "the graph is connected"


def entered(count: int, run_count: int, parts: dict[int, int], racks: int = 1) -> Roster:
    roster = Roster("ab" * 32, run_count, 1)
    for node in range(count):
        roster.enter(Member(node, "h:1", rack=str(node % racks)))
        roster.set_have(roster.members[node], parts.get(node, 0))
    roster.flush_list(0.0)
    roster.check()
    return roster


def reached(roster: Roster, node: int, seeks: int) -> tuple[int, int]:
    """The runs that the neighbours of a node have, and how many neighbours it got."""
    told = roster.hand_out(node, 24, seeks)
    assert told is not None
    assert len(set(told.neighbours)) == len(told.neighbours)
    assert node not in told.neighbours
    assert {member.node for member in told.joined} == set(told.neighbours)
    runs = 0
    for other in told.neighbours:
        runs |= roster.members[other].have
    return runs, len(told.neighbours)


@given(st.integers(30, 200), st.integers(1, 4), st.integers(1, 5))
def test_who_pulls_is_sent_to_holders_of_every_part(count: int, copies: int, racks: int) -> None:
    holders = count - 1
    parts = {n: sum(1 << (n + k) % holders for k in range(copies)) for n in range(holders)}
    roster = entered(count, holders, parts, racks)
    runs, handed = reached(roster, holders, bitset.full(holders))
    assert runs == bitset.full(holders)
    assert handed < count
    assert reached(roster, holders, 0)[1] == 24, "who only serves needs no more"
    assert reached(roster, holders, 1 << 5)[1] <= 25, "one more for the one run"


def test_nodes_that_pull_all_are_no_holders_of_parts() -> None:
    roster = entered(100, 64, {})
    for node in range(99):
        roster.members[node].pulls_all = True
        roster.set_have(roster.members[node], 1 << node % 64)
    roster.check()
    assert reached(roster, 99, bitset.full(64))[1] == 24
    roster.members[3].pulls_all = False
    roster.set_have(roster.members[3], roster.members[3].have)
    roster.check()
    for _ in range(5):
        assert reached(roster, 99, bitset.full(64))[0] & 1 << 3


def test_holders_of_parts_in_the_same_rack_come_first() -> None:
    parts = {node: 1 << node % 4 for node in range(99)}
    roster = entered(100, 8, parts, racks=2)
    record = roster.members[99]
    told = roster.hand_out(99, 0, seeks=0b1111)
    assert told is not None
    places = [roster.members[node].place for node in told.neighbours]
    assert places[:2] == [record.place] * 2, "this rack has runs 1 and 3"
    assert len(places) == 4


def test_a_member_that_moves_and_leaves_before_the_next_change_of_the_list_is_struck_off() -> None:
    roster = Roster("ab" * 32, 1, 1)
    roster.enter(Member(1, "h:1"))
    assert roster.flush_list(0.0) is not None
    roster.enter(Member(1, "h:2"))
    roster.remove(1)
    delta = roster.flush_list(9.0)
    assert delta is not None
    assert (delta.joined, delta.left) == ((), (1,))
    roster.check()
