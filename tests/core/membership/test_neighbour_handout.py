import random

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.neighbour_handout import neighbours
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.protocol.messages import Member


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
    """Nodes enter one after another; returns the neighbours that each is handed."""
    rng = random.Random(seed)
    everyone, whole = SampledSet(), SampledSet()
    by_rack: dict[int, SampledSet] = {}
    members: dict[int, MemberRecord] = {}
    handed = {}
    for node, rack in enumerate(racks):
        everyone.add(node)
        members[node] = MemberRecord(Member(node, "h:1"))
        by_rack.setdefault(rack, SampledSet()).add(node)
        if node in complete:
            whole.add(node)
        handed[node] = neighbours(
            node, everyone=everyone, rack=by_rack[rack], complete=whole, members=members,
            count=count, rng=rng,
        )  # fmt: skip
        for other in handed[node]:
            members[other].degree += 1
        members[node].degree = len(handed[node])
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
