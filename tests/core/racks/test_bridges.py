"""The boundaries of racks and sites: each run has one bridge, and another one steps in where it is slow."""

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.racks.bridge_slots import holders
from p2pcache.core.racks.bridge_slots import order as order_of
from p2pcache.core.racks.bridges import EVERYWHERE, Boundaries
from p2pcache.core.racks.settings import BRIDGE_SLOTS

RUNS = 300  # more than there are slots
FULL = bitset.full(RUNS)
FAR = 10_000  # a node in another rack
groups = st.sets(st.integers(1, FAR - 1), min_size=1, max_size=40).map(lambda g: tuple(sorted(g)))


def boundaries(node: int, rack: tuple[int, ...], site: tuple[int, ...] | None = None) -> Boundaries:
    """The boundaries of a node that knows its rack, and one node more in its site."""
    made = Boundaries(node, RUNS)
    site = (*rack, FAR) if site is None else site
    made.on_members((*site, FAR + 1), rack, site)
    return made


@settings(deadline=None, max_examples=20)  # dozens of nodes each
@given(groups)
def test_each_run_has_one_bridge(rack: tuple[int, ...]) -> None:
    shares = [boundaries(node, rack).reach(0, 0)[1] & FULL for node in rack]
    assert sum(share.bit_count() for share in shares) == RUNS
    assert bitset.full(RUNS) == sum(shares)
    assert sum(map(bool, shares)) <= BRIDGE_SLOTS


@settings(deadline=None, max_examples=20)  # dozens of nodes each
@given(groups)
def test_runs_in_the_rack_are_not_fetched_from_beyond(rack: tuple[int, ...]) -> None:
    near = FULL // 3
    for node in rack:
        every, in_site, elsewhere = boundaries(node, rack).reach(near, near)
        assert every == EVERYWHERE[0]
        assert not (in_site | elsewhere) & near


def test_without_labels_and_with_one_rack_there_is_no_boundary() -> None:
    plain = Boundaries(1, RUNS)
    plain.on_members((1, 2, 3), (), ())
    assert not plain.active
    assert plain.reach(0, 0) == EVERYWHERE
    plain.on_members((1, 2, 3), (1, 2, 3), (1, 2, 3))
    assert not plain.active
    assert {plain.distance(node) for node in (1, 2, 3, 4)} == {0}


def test_distances() -> None:
    one = boundaries(1, (1, 2), (1, 2, 3))
    assert [one.distance(node) for node in (2, 3, 4)] == [0, 1, 2]
    one.on_members((1, 2, 3), (1, 2, 3), (1, 2, 3))
    assert not one.active


def test_a_site_has_one_bridge_per_run_whatever_its_racks() -> None:
    site = tuple(range(1, 13))
    racks = [site[i : i + 4] for i in range(0, 12, 4)]
    shares = [boundaries(n, rack, site).reach(0, 0)[2] & FULL for rack in racks for n in rack]
    assert sum(share.bit_count() for share in shares) == RUNS == sum(shares).bit_count()


@settings(deadline=None, max_examples=20)  # dozens of nodes each
@given(groups)
def test_while_nobody_brings_anything_no_node_steps_in(rack: tuple[int, ...]) -> None:
    """It may be the uplink. Nodes to which nothing comes are starved in the end."""
    nodes = [boundaries(node, rack) for node in rack]
    for _ in range(12):
        for node in nodes:
            node.review(FULL, 0)
        assert sum(n.reach(0, 0)[1] & 1 for n in nodes) == 1


@settings(deadline=None, max_examples=20)  # dozens of nodes each
@given(groups, st.integers(1, 6))
def test_a_wait_that_ended_does_not_count_any_more(rack: tuple[int, ...], reviews: int) -> None:
    one = boundaries(rack[0], rack)
    duty = one.reach(0, 0)
    for _ in range(reviews):
        one.review(FULL, FULL)
    for _ in range(8):  # bridges that were late are left out for some time
        one.review(0, 0)
    assert one.reach(0, 0) == duty


def test_no_node_steps_in_where_all_bridges_are_slow() -> None:
    rack = (1, 2, 3, 4)
    nodes = [boundaries(node, rack) for node in rack]
    duties = [node.reach(0, 0) for node in nodes]
    for missing in range(RUNS, 0, -60):
        for node in nodes:
            node.review(bitset.full(missing) << RUNS - missing, 0)
    assert [node.reach(0, 0) for node in nodes] == duties


def test_the_second_in_order_does_the_work_of_a_slow_bridge() -> None:
    rack = (1, 2, 3, 4)
    nodes = {node: boundaries(node, rack) for node in rack}
    duties = {node: one.reach(0, 0)[1] & FULL for node, one in nodes.items()}
    for missing in (RUNS, RUNS - 120, RUNS - 220):  # of all shares but the first one's
        waiting = bitset.full(missing) << RUNS - missing | duties[1]
        for one in nodes.values():
            one.review(waiting, 0)
    relief = [nodes[node].reach(0, 0)[1] & duties[1] for node in (2, 3, 4)]
    assert sum(relief) == duties[1], "each of its runs has exactly one other bridge now"


def test_a_starved_node_may_fetch_all_waiting_runs() -> None:
    rack = tuple(range(1, 9))
    one = boundaries(1, rack)
    duty = one.reach(0, 0)[1] & FULL
    one.review(FULL, 0, starved=True)
    assert one.reach(0, 0)[1] & FULL == FULL
    one.review(FULL & ~0b11, 0)
    assert one.reach(0, 0)[1] & FULL == FULL & ~0b11 | duty, "it goes on though something comes"
    one.review(0, 0)
    one.review(FULL, 0)
    assert one.reach(0, 0)[1] & FULL == duty, "a new wait is a new wait"


def in_rack_of_four() -> tuple[Boundaries, list[int]]:
    """The boundaries of node 1, and the shares of all four nodes, its own first."""
    nodes = [boundaries(node, (1, 2, 3, 4)) for node in (1, 2, 3, 4)]
    return nodes[0], [node.reach(0, 0)[1] & FULL for node in nodes]


def test_a_bridge_that_brought_all_it_owed_is_not_late_though_others_brought_more() -> None:
    one, shares = in_rack_of_four()
    duty = one.reach(0, 0)
    more = [bitset.lowest(share, 4) for share in shares[1:]]
    for busy in more:  # one share with a single run that waits, beside three with four
        one.review(sum(more) ^ busy | bitset.lowest(busy, 1) | bitset.lowest(shares[0], 4), 0)
        one.review(sum(share & ~bitset.lowest(share, 9) for share in shares), 0)
        assert one.reach(0, 0) == duty


def test_a_single_late_run_does_not_make_a_bridge_late() -> None:
    one, shares = in_rack_of_four()
    duty = one.reach(0, 0)
    slow = next(share for share in shares[1:] if second_of(share))
    late = sum(
        1 << run
        for run in bitset.members(slow)
        if order_of((1, 2, 3, 4))[run % BRIDGE_SLOTS][1] == 1
    )
    late = bitset.lowest(late, 1)
    others = sum(bitset.lowest(share, 2) for share in shares if share != slow)
    for looks, waiting in enumerate((late | others, late, late)):
        assert one.reach(0, 0) == duty, f"after {looks} looks"
        one.review(waiting, 0)
    assert one.reach(0, 0) == duty
    one.review(late, 0, starved=True)
    assert one.reach(0, 0)[1] & late, "nothing else comes"


def test_a_bridge_that_falls_behind_is_relieved_at_the_second_review() -> None:
    one, shares = in_rack_of_four()
    duty = one.reach(0, 0)
    slow = next(share for share in shares[1:] if second_of(share))
    one.review(bitset.lowest(slow, 2) | sum(bitset.lowest(s, 2) for s in shares), 0)
    one.review(bitset.lowest(slow, 5), 0)
    assert one.reach(0, 0)[1] & slow & ~duty[1]


def second_of(share: int) -> bool:
    """Whether node 1 is the second in order for some run of another's share."""
    orders = enumerate(order_of((1, 2, 3, 4)))
    return any(order[1] == 1 for slot, order in orders if share >> slot & 1)


def test_a_node_that_delivers_nothing_holds_no_slot() -> None:
    """A hung one was its rack's bridge. Its neighbour waited for it each time, for four times a slow request's time."""
    rack = (1, 2, 3, 4)
    nodes = {node: boundaries(node, rack) for node in rack}
    duties = {node: one.reach(0, 0)[1] & FULL for node, one in nodes.items()}
    for node in (1, 3, 4):
        nodes[node].on_delivers(2, delivers=False)
        nodes[node].on_members((*rack, FAR, FAR + 1), rack, (*rack, FAR))  # a list again
    taken = {node: nodes[node].reach(0, 0)[1] & FULL & ~duties[node] for node in (1, 3, 4)}
    assert sum(taken.values()) == duties[2], "each of its runs has exactly one other bridge"
    nodes[1].on_delivers(3, delivers=False)
    for node in (2, 3):
        nodes[1].on_delivers(node, delivers=True)
    assert nodes[1].reach(0, 0)[1] & FULL == duties[1]


def test_whoever_delivered_nothing_before_the_racks_were_known_holds_no_slot() -> None:
    made = Boundaries(1, RUNS)
    made.on_delivers(2, delivers=False)
    made.on_members((1, 2, FAR), (1, 2), (1, 2, FAR))
    assert made.reach(0, 0)[1] & FULL == FULL


def test_where_no_bridge_delivers_all_keep_their_slots() -> None:
    """A node of a large rack that is no bridge would bring everything, and so would all the others like it."""
    rack = tuple(range(1, 41))
    bridges = set(holders(rack))
    node = next(one for one in rack if not any(one in order for order in order_of(rack)))
    made = boundaries(node, rack)
    for bridge in bridges:
        made.on_delivers(bridge, delivers=False)
    assert not made.reach(0, 0)[1]


def test_a_rack_whose_site_is_not_known_is_reviewed() -> None:
    made = Boundaries(1, 10)
    made.on_members((1, 2, 3), (1, 2), ())
    made.review(0, 0)
    every, in_site, elsewhere = made.reach(0, 0)
    assert every == EVERYWHERE[0]
    assert in_site
    assert not elsewhere
