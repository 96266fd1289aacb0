"""Orders to keep parts of models: lists in parts, limits, and what older releases make of them."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol import keep_orders as k
from p2pcache.core.protocol import messages as m

DIGEST = "ab" * 32


def order(ranges: int, number: int = 0) -> k.KeepOrder:
    pairs = tuple((4 * i, 4 * i + 2) for i in range(ranges))
    return k.KeepOrder("team", f"m{number}", "latest", DIGEST, pairs)


def test_an_empty_list_is_one_part() -> None:
    assert k.split([]) == [k.KeepOrders(0, 1)]


@given(st.lists(st.integers(0, 3 * k.MAX_RANGES), max_size=5))
def test_the_parts_of_a_list_add_up_to_it_and_keep_the_limits(sizes: list[int]) -> None:
    orders = [order(size, number) for number, size in enumerate(sizes)]
    parts = k.split(orders)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.parts for part in parts} == {len(parts)}
    told: dict[str, list[tuple[int, int]]] = {one.name: [] for one in orders}
    for part in parts:
        assert sum(len(one.ranges) for one in part.orders) <= k.MAX_RANGES
        assert len(part.orders) <= k.MAX_ORDERS
        for one in part.orders:
            told[one.name] += one.ranges
    assert told == {one.name: list(one.ranges) for one in orders}


def test_what_no_list_holds_is_left_out() -> None:
    parts = k.split(order(k.MAX_RANGES, number) for number in range(k.MAX_PARTS + 2))
    assert len(parts) == k.MAX_PARTS


def test_the_largest_messages_are_within_the_limits_of_the_wire() -> None:
    name = "n" * 80
    orders = [k.KeepOrder(name, name, "t" * 128, DIGEST, (), whole=True)] * k.MAX_ORDERS
    assert len(m.encode(k.split(orders)[0])) < m.MAX_MESSAGE_BYTES
    far = tuple((2**31, 2**31 + 1) for _ in range(k.MAX_RANGES))
    one = k.KeepOrder(name, name, "t" * 128, DIGEST, far)
    assert len(m.encode(k.KeepOrders(0, 1, (one,)))) < m.MAX_MESSAGE_BYTES
    row = k.Kept(DIGEST, k.NO_MANIFEST, "d" * k.MAX_DETAIL)
    report = k.KeptReport((row,) * k.MAX_KEPT)
    assert len(m.encode(report)) < m.MAX_SHORT_BYTES
    assert m.decode_to_tracker(m.encode(report)) == report


def test_an_older_announcement_keeps_nothing() -> None:
    old = m.Announce("a:1", "0.1", warms=True, tells=True)
    assert m.decode_to_tracker(m.encode(old)) == old
    assert not old.keeps
    assert not old.role


def test_a_detail_is_one_line_and_ends_behind_a_word() -> None:
    assert k.detail_of("no room:\n  make some") == "no room: make some"
    long = "the quota of the cache " * 20
    said = k.detail_of(long)
    assert len(said) <= k.MAX_DETAIL
    assert said.endswith(" ...")
    assert long.startswith(said.removesuffix("...")), said
    assert len(k.detail_of("/" * 500)) <= k.MAX_DETAIL
