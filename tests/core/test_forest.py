"""Trees of suppliers: shape, who moves when somebody comes or goes, and what holds whatever happens."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.forest import NOBODY, STRIPES, Forest, Rank, Tree, stripe_of, stripes

changes = st.lists(st.tuples(st.integers(1, 40), st.none() | st.sampled_from(Rank)), max_size=80)


def planted(nodes: Iterable[int], rank: Rank = Rank.INNER) -> Forest:
    forest = Forest()
    for node in nodes:
        forest.enter(node, rank)
    forest.moved()
    return forest


def depth(tree: Tree, node: int) -> int:
    hops = 0
    while (node := tree.supplier(node)) != NOBODY:
        hops += 1
        assert hops <= len(tree), "a circle"
    return hops


def children(tree: Tree, nodes: Iterable[int]) -> dict[int, int]:
    count: dict[int, int] = {}
    for node in nodes:
        above = tree.supplier(node)
        count[above] = count.get(above, 0) + 1
    count.pop(NOBODY, None)
    return count


def nobody_waits_for_itself(above: dict[int, int]) -> bool:
    ends = set(above)
    for _ in above:
        ends = {above.get(node, NOBODY) for node in ends}
    return ends <= {NOBODY}


def test_every_run_is_in_one_stripe() -> None:
    assert sum(runs.bit_count() for runs in stripes(1001)) == 1001
    assert all(stripe_of(run, 1001) >> run & 1 for run in range(1001))


def test_a_thousand_nodes_are_five_hops_apart_and_each_hands_on_one_stripe() -> None:
    nodes = range(1, 1001)
    forest = planted(nodes)
    assert len(set(forest.roots)) == STRIPES
    handing_on: list[int] = []
    for tree in forest.trees:
        given_to = children(tree, nodes)
        assert set(given_to.values()) <= set(range(1, STRIPES + 1))
        assert sum(given_to.values()) == 999, "everybody but the root has a supplier"
        assert max(depth(tree, node) for node in nodes) == 5
        handing_on += given_to
    assert len(handing_on) == len(set(handing_on)), "nobody hands on two stripes"


def test_who_goes_is_replaced_from_below() -> None:
    forest = planted(range(1, 201))
    tree = forest.trees[0]
    root = tree.root
    before = {node: tree.supplier(node) for node in forest if tree.supplier(node) == root}
    forest.leave(root)
    assert tree.root in before, "it has nearly all that the root had"
    assert len(forest.moved()) < 30


def test_who_supplies_nobody_is_a_leaf_in_all_trees() -> None:
    forest = planted(range(1, 41))
    forest.enter(77, Rank.LEAF)
    forest.enter(78, Rank.SPARE)
    assert all(not children(tree, forest).keys() & {77, 78} for tree in forest.trees)
    forest.check()


def test_spare_nodes_go_without() -> None:
    forest = planted(range(1, 13))
    for node in range(20, 24):
        forest.enter(node, Rank.SPARE)
    for node in range(30, 34):
        forest.enter(node, Rank.INNER)
    forest.check()
    for node in (*range(1, 13), *range(30, 34)):
        assert forest.suppliers(node).count(NOBODY) == (node in forest.roots), "late comers, too"
    assert all(not any(forest.suppliers(node)) for node in range(20, 24))
    assert forest.short <= 0


def test_too_few_that_hand_on_are_short() -> None:
    forest = planted(range(1, 13))
    for node in range(20, 26):
        forest.enter(node, Rank.LEAF)
    assert forest.short == 5 * STRIPES / (18 * STRIPES)
    assert planted(range(1, 9), Rank.LEAF).roots == (NOBODY,) * STRIPES


def test_a_place_that_is_missing_in_one_tree_is_one_to_spare_in_another() -> None:
    """31 nodes of which 30 hand on: places for 33 in two trees, for 29 in the others."""
    forest = planted(range(1, 31))
    forest.enter(40, Rank.LEAF)
    assert sorted(tree.short for tree in forest.trees) == [-2, -2, 2, 2]
    forest.check()
    suppliers = {node: [one for one in forest.suppliers(node) if one] for node in forest}
    assert all(len(set(above)) == len(above) for above in suppliers.values()), (
        "each from another one"
    )
    missing = sum(STRIPES - len(above) for above in suppliers.values())
    assert missing == STRIPES, "the roots'"


@given(
    st.integers(12, 40),
    st.lists(st.tuples(st.integers(1, 44), st.none() | st.sampled_from(Rank)), max_size=30),
)
def test_where_places_suffice_only_roots_go_without(
    count: int, happened: list[tuple[int, Rank | None]]
) -> None:
    """In one case of eight the last inner nodes of three trees had no place in the fourth: each waited for another."""
    forest = planted(range(1, count + 1))
    for node, rank in happened:
        if rank is None:
            forest.leave(node)
        else:
            forest.enter(node, rank)
        forest.check()
        spare = sum(rank is Rank.SPARE for rank in (forest.trees[0].rank(one) for one in forest))
        if len(forest) - spare >= 12 and forest.short <= 0:
            without = sum(forest.suppliers(one).count(NOBODY) for one in forest)
            assert without == STRIPES * (spare + 1)


@given(changes)
def test_laws(happened: list[tuple[int, Rank | None]]) -> None:
    """No circles, nobody above its limit, and whose supplier changed is named."""
    forest = Forest()
    told: dict[int, tuple[int, ...]] = {}
    for node, rank in happened:
        if rank is None:
            forest.leave(node)
            told.pop(node, None)
        else:
            forest.enter(node, rank)
        forest.check()
        for moved in forest.moved():
            told[moved] = forest.suppliers(moved)
        assert told == {one: forest.suppliers(one) for one in forest}
        below = Counter(above for one in forest for above in forest.suppliers(one) if above)
        assert all(count <= STRIPES for count in below.values())
        assert all(
            len(set(above) - {NOBODY}) + above.count(NOBODY) == STRIPES for above in told.values()
        )
        for tree in forest.trees:
            for one in forest:
                depth(tree, one)
                supplier = tree.supplier(one)
                both = {*forest.beside(one, supplier), one}
                assert both == (
                    {n for n in forest if tree.supplier(n) == supplier} if supplier else {one}
                )
        for stripe in range(STRIPES):
            above = {one: forest.suppliers(one)[stripe] for one in forest}
            assert nobody_waits_for_itself(above)
