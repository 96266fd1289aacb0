"""Bridge slots: which node brings which runs into a rack, and which nodes it knows for that."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core.racks.bridge_slots import holders, links, order
from p2pcache.core.racks.settings import BRIDGE_SLOTS, LINKS

groups = st.sets(st.integers(1, 1 << 62), min_size=1, max_size=40).map(lambda g: tuple(sorted(g)))


@settings(deadline=None)
@given(groups)
def test_every_slot_has_a_holder_and_no_node_has_two_more_than_another(
    group: tuple[int, ...],
) -> None:
    counts = Counter(holders(group))
    assert sum(counts.values()) == BRIDGE_SLOTS
    assert counts.keys() <= set(group)
    if len(group) <= BRIDGE_SLOTS:
        assert counts.keys() == set(group)
    assert max(counts.values()) - min(counts.values()) <= 1


@settings(deadline=None)
@given(groups)
def test_each_slot_has_the_same_nodes_behind_it_in_another_order(
    group: tuple[int, ...],
) -> None:
    orders = order(group)
    assert tuple(first for first, *_ in orders) == holders(group)
    assert len({frozenset(one) for one in orders}) == 1
    assert all(len(set(one)) == len(one) == min(len(group), BRIDGE_SLOTS) for one in orders)


@settings(deadline=None)
@given(groups, st.lists(groups, max_size=4))
def test_holders_of_a_slot_know_each_other_and_other_nodes_need_nobody(
    group: tuple[int, ...], others: list[tuple[int, ...]]
) -> None:
    for node in group:
        slots = [slot for slot, holder in enumerate(holders(group)) if holder == node]
        known = {holders(other)[slot] for other in others for slot in slots}
        assert links(node, group, others) == known - {node}


def test_in_a_large_cluster_each_holder_knows_some_and_all_are_within_three_steps() -> None:
    racks = [tuple(range(1 + 25 * i, 26 + 25 * i)) for i in range(200)]
    ours = [holders(rack)[3] for rack in racks]
    known: dict[int, set[int]] = {node: set() for node in ours}
    for node, rack in zip(ours, racks, strict=True):
        others = [other for other in racks if other != rack]
        for other in links(node, rack, others):
            assert other in known
            known[node].add(other)
            known[other].add(node)  # a dialled node dials back
    assert max(len(k) for k in known.values()) <= 4 * LINKS
    reached = {ours[0]}
    for _ in range(3):
        reached |= {node for one in reached for node in known[one]}
    assert reached == set(ours)


def test_an_empty_group_has_no_slots() -> None:
    assert holders(()) == ()
    assert order(()) == ()
