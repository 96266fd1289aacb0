"""What people are told of repairs: when copies were missing, and what was fetched until they were there."""

from p2pcache.core.pool.repairs import Repair, Repairs
from p2pcache.core.pool.settings import MAX_REPAIRS
from p2pcache.core.protocol.keep_orders import Kept

DIGEST = "ab" * 32


def said(fetched: int) -> Kept:
    return Kept(DIGEST, 1, 2, "", "", fetched)


def test_a_repair_lasts_while_something_is_missing_and_sums_what_nodes_fetch() -> None:
    repairs = Repairs(older=False)
    assert repairs.rows == []
    repairs.on_progress(100, 10.0)
    repairs.on_kept(1, said(40))
    repairs.on_kept(2, said(25))
    assert repairs.rows == [Repair(10.0, 0.0, 65)]
    repairs.on_kept(1, said(75))
    assert repairs.on_progress(0, 20.0) == Repair(10.0, 20.0, 100)
    assert repairs.on_progress(0, 30.0) is None
    repairs.on_progress(50, 40.0)
    repairs.on_kept(3, said(50))
    assert repairs.rows == [Repair(40.0, 0.0, 50), Repair(10.0, 20.0, 100)]


def test_what_is_heard_late_counts_for_the_repair_before() -> None:
    repairs = Repairs(older=False)
    repairs.on_progress(100, 10.0)
    repairs.on_progress(0, 11.0)
    repairs.on_kept(1, said(100))
    assert repairs.rows == [Repair(10.0, 11.0, 100)]


def test_what_nodes_fetched_before_this_tracker_counts_for_nothing_and_a_restart_only_anew() -> (
    None
):
    repairs = Repairs(older=True)
    repairs.on_progress(100, 10.0)
    repairs.on_kept(1, said(5000))
    assert repairs.rows[0].moved_bytes == 0
    repairs.on_kept(1, said(5010))
    repairs.on_kept(1, said(7))  # it was started again
    assert repairs.rows[0].moved_bytes == 17


def test_only_the_last_ones_are_remembered() -> None:
    repairs = Repairs(older=False)
    for n in range(MAX_REPAIRS + 5):
        repairs.on_progress(1, 2.0 * n + 1)
        repairs.on_progress(0, 2.0 * n + 2)
    assert len(repairs.rows) == MAX_REPAIRS
    assert repairs.rows[-1].began == 11.0
