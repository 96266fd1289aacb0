"""Seats: who brings what into a rack, and whom he knows for it."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core.racks.bridge_slots import LINKS, SEATS, holders, links, order

groups = st.sets(st.integers(1, 1 << 62), min_size=1, max_size=40).map(lambda g: tuple(sorted(g)))


@settings(deadline=None)
@given(groups)
def test_every_seat_has_a_holder_and_nobody_has_two_more_than_another(
    group: tuple[int, ...],
) -> None:
    counts = Counter(holders(group))
    assert sum(counts.values()) == SEATS
    assert counts.keys() <= set(group)
    if len(group) <= SEATS:
        assert counts.keys() == set(group)
    assert max(counts.values()) - min(counts.values()) <= 1


@settings(deadline=None)
@given(groups)
def test_each_seat_has_the_same_people_behind_it_each_in_another_order(
    group: tuple[int, ...],
) -> None:
    orders = order(group)
    assert tuple(first for first, *_ in orders) == holders(group)
    assert len({frozenset(one) for one in orders}) == 1
    assert all(len(set(one)) == len(one) == min(len(group), SEATS) for one in orders)


@settings(deadline=None)
@given(groups, st.lists(groups, max_size=4))
def test_holders_of_a_seat_know_each_other_and_the_others_need_nobody(
    group: tuple[int, ...], others: list[tuple[int, ...]]
) -> None:
    for node in group:
        seats = [seat for seat, holder in enumerate(holders(group)) if holder == node]
        known = {holders(other)[seat] for other in others for seat in seats}
        assert links(node, group, others) == known - {node}


def test_in_a_large_cluster_each_knows_some_and_all_are_within_three_steps() -> None:
    racks = [tuple(range(1 + 25 * i, 26 + 25 * i)) for i in range(200)]
    ours = [holders(rack)[3] for rack in racks]
    known: dict[int, set[int]] = {node: set() for node in ours}
    for node, rack in zip(ours, racks, strict=True):
        others = [other for other in racks if other != rack]
        for other in links(node, rack, others):
            assert other in known
            known[node].add(other)
            known[other].add(node)  # who is dialled dials back
    assert max(len(k) for k in known.values()) <= 4 * LINKS
    reached = {ours[0]}
    for _ in range(3):
        reached |= {node for one in reached for node in known[one]}
    assert reached == set(ours)


def test_a_group_of_nobody_has_no_seats() -> None:
    assert holders(()) == ()
    assert order(()) == ()
