"""Lists of what a node is to keep, as their parts come."""

import pytest

from p2pcache.core.pool.kept_models import OrderUpdate
from p2pcache.core.protocol.keep_orders import KeepOrder, KeepOrders
from p2pcache.errors import RemoteProtocolError


def order(name: str, *ranges: tuple[int, int]) -> KeepOrder:
    return KeepOrder("team", name, "v1", "ab" * 32, ranges)


def test_a_list_is_whole_with_its_last_part() -> None:
    update, orders = OrderUpdate(), [order("a", (0, 4)), order("b", (2, 3))]
    for _ in range(2):
        assert update.take_part(KeepOrders(0, 2, (orders[0],))) is None
        assert update.take_part(KeepOrders(1, 2, (orders[1],))) == orders
    assert update.take_part(KeepOrders(0, 1)) == []


def test_another_list_begins_anew() -> None:
    update = OrderUpdate()
    assert update.take_part(KeepOrders(0, 3, (order("a", (0, 4)),))) is None
    assert update.take_part(KeepOrders(0, 1, (order("b"),))) == [order("b")]


@pytest.mark.parametrize(
    "bad",
    [
        KeepOrders(0, 3, (order("a", (4, 4)),)), KeepOrders(0, 3, (order("a", (4, 6), (5, 7)),)),
        KeepOrders(0, 3, (order("../a"),)), KeepOrders(3, 3), KeepOrders(-1, 3), KeepOrders(0, 257),
        KeepOrders(0, 3, (KeepOrder("team", "a", "v1", "no digest", ()),)),
    ],
)  # fmt: skip
def test_of_a_list_with_a_bad_part_nothing_is_taken(bad: KeepOrders) -> None:
    update = OrderUpdate()
    assert update.take_part(KeepOrders(0, 2, (order("older"),))) is None
    with pytest.raises(RemoteProtocolError):
        update.take_part(bad)
    rest = [update.take_part(KeepOrders(part, 3, (order("b"),))) for part in range(1, 3)]
    assert rest == [None, None]
    assert update.take_part(KeepOrders(0, 1, (order("c"),))) == [order("c")]
