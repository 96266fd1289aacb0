"""The order of nodes for a run."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import rendezvous


@given(st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=20), st.integers(0, 10**6))
def test_rendezvous_is_one_order_for_all(nodes: set[int], run: int) -> None:
    order = rendezvous.order(run, nodes)
    assert sorted(order) == sorted(nodes)
    assert rendezvous.owner(run, nodes) == order[0]
    assert rendezvous.order(run, sorted(nodes, reverse=True)) == order
    survivors = nodes - {order[0]}
    assert rendezvous.order(run, survivors) == order[1:], "only the dead node's runs move"


def test_rendezvous_is_the_same_in_every_process_and_fair() -> None:
    assert [rendezvous.weight(n, r) for n, r in ((1, 0), (1, 1), (2**62, 7))] == [
        0xE4D971771B652C20,
        0xBEEB8DA1658EEC67,
        0x95B04985A6E5D6A3,
    ]
    shares = Counter(rendezvous.owner(run, range(10)) for run in range(10_000))
    assert all(850 < n < 1150 for n in shares.values())


def test_rendezvous_of_nobody_is_nobody() -> None:
    assert rendezvous.owner(3, ()) is None
