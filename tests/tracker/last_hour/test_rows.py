"""Rows of the last hour, which are bounded for all and for each node."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.tracker.last_hour.rows import KEPT_S, HourRows
from p2pcache.tracker.last_hour.traffic import POINTS, HourTraffic, Totals


def row(number: int) -> bytes:
    return str(number).encode()


def test_newest_first_and_only_what_is_new() -> None:
    rows = HourRows(10, 5)
    for number in range(1, 5):
        rows.note(number, row(number), float(number))
    assert rows.after(0, 5.0) == [b"4", b"3", b"2", b"1"]
    assert rows.after(2, 5.0) == [b"4", b"3"]
    assert rows.after(4, 5.0) == []
    assert rows.last == 4


def test_rows_are_forgotten_after_an_hour() -> None:
    rows = HourRows(10, 5)
    rows.note(1, b"old", 0.0)
    rows.note(2, b"new", 100.0)
    assert rows.after(0, KEPT_S + 1.0) == [b"new"]
    rows.check()
    assert rows.after(0, KEPT_S + 101.0) == []
    assert len(rows) == 0


def test_one_node_pushes_out_its_own_rows_first() -> None:
    rows = HourRows(10, 3)
    for node in range(5):
        rows.note(node, b"honest", 0.0)
    for _ in range(100):
        rows.note(99, b"loud", 1.0)
    assert rows.after(0, 1.0) == [b"loud"] * 3 + [b"honest"] * 5
    rows.check()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2000)), max_size=60))
def test_bounds_hold_whatever_happens(moves: list[tuple[int, int]]) -> None:
    rows, now = HourRows(8, 3), 0.0
    for node, passed in moves:
        now += passed
        rows.note(node, b"x", now)
        rows.check()
        if passed % 3 == 0:
            rows.after(0, now)
            rows.check()


def test_points_are_rates_between_two_looks() -> None:
    traffic = HourTraffic()
    traffic.note(Totals(100.0, 1000, 50), pulls=1, nodes=2)
    assert traffic.points(100.0) == []
    traffic.note(Totals(110.0, 3000, 50), pulls=3, nodes=4)
    assert traffic.points(115.0) == [(5, 200, 0, 3, 4)]
    for number in range(POINTS + 10):
        traffic.note(Totals(120.0 + number, 3000, 50), pulls=0, nodes=4)
    assert len(traffic.points(500.0)) == POINTS
