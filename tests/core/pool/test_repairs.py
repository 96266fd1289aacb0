"""What people are told of repairs: when copies were missing, and what was fetched until they were there."""

from p2pcache.core.format.keep_record import Repair
from p2pcache.core.pool.repairs import Repairs, merged
from p2pcache.core.pool.settings import LATE_S, MAX_REPAIRS
from p2pcache.core.protocol.keep_orders import Kept

DIGEST = "ab" * 32


def said(fetched: int) -> Kept:
    return Kept(DIGEST, "", "", fetched)


def test_a_repair_lasts_while_something_is_missing_and_sums_what_nodes_fetch() -> None:
    repairs = Repairs()
    assert repairs.rows == []
    repairs.on_progress(100, 10.0)
    for node in (1, 2, 3):
        repairs.on_kept(node, said(0), 10.0)
    repairs.on_kept(1, said(40), 12.0)
    repairs.on_kept(2, said(25), 14.0)
    assert repairs.rows == [Repair(10.0, 0.0, 65)]
    repairs.on_kept(1, said(75), 20.0)
    assert repairs.on_progress(0, 20.0) == Repair(10.0, 20.0, 100)
    assert repairs.on_progress(0, 30.0) is None
    repairs.on_progress(50, 40.0)
    repairs.on_kept(3, said(50), 41.0)
    assert repairs.rows == [Repair(40.0, 0.0, 50), Repair(10.0, 20.0, 100)]


def test_what_is_heard_late_counts_for_the_repair_before_and_what_moves_later_for_none() -> None:
    """A node that came back took its share over: its bytes were told as those of a repair before."""
    repairs = Repairs()
    repairs.on_progress(100, 10.0)
    repairs.on_kept(1, said(0), 10.0)
    repairs.on_progress(0, 11.0)
    repairs.on_kept(1, said(100), 11.0 + LATE_S)
    repairs.on_kept(1, said(150), 12.0 + LATE_S)
    assert repairs.rows == [Repair(10.0, 11.0, 100)]


def test_what_nodes_fetched_before_counts_for_nothing_and_a_restart_only_anew() -> None:
    """By a tracker before this one, or for a wish that was ended, and made again: that counted."""
    repairs = Repairs()
    repairs.on_progress(100, 10.0)
    repairs.on_kept(1, said(5000), 11.0)
    assert repairs.rows[0].moved_bytes == 0
    repairs.on_kept(1, said(5010), 12.0)
    repairs.on_kept(1, said(7), 13.0)  # it was started again
    assert repairs.rows[0].moved_bytes == 17


def test_only_the_last_ones_are_remembered() -> None:
    repairs = Repairs()
    for n in range(MAX_REPAIRS + 5):
        repairs.on_progress(1, 2.0 * n + 1)
        repairs.on_progress(0, 2.0 * n + 2)
    assert len(repairs.rows) == MAX_REPAIRS
    assert repairs.rows[-1].began == 11.0


def test_a_later_tracker_goes_on_with_what_was_written() -> None:
    old, new = Repair(10.0, 11.0, 5), Repair(20.0, 21.0, 7)
    repairs = Repairs((old, new))
    assert repairs.rows == [new, old]
    assert merged((old, new), (Repair(20.0, 21.0, 9), Repair(30.0, 31.0))) == (
        old, Repair(20.0, 21.0, 9), Repair(30.0, 31.0)
    )  # fmt: skip
    many = [Repair(float(n), n + 1.0) for n in range(2 * MAX_REPAIRS)]
    assert merged(many[:-1], many[-1:]) == tuple(many[-MAX_REPAIRS:])
