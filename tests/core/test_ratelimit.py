import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.ratelimit import Rate, RateCounter, RateLimit
from p2pcache.core.settings import MAX_CLIENTS


def test_a_burst_passes_then_the_rate_rules() -> None:
    limit = RateLimit(Rate(10, 3), Rate(1000, 1000))
    assert [limit.take("a", 0.0, patience_s=0) for _ in range(3)] == [0, 0, 0]
    assert limit.take("a", 0.0, patience_s=0) == pytest.approx(0.1)
    assert limit.take("b", 0.0, patience_s=0) == 0
    assert limit.take("a", 0.1, patience_s=0) == 0


def test_a_request_that_waits_counts_and_a_refused_one_does_not() -> None:
    limit = RateLimit(Rate(10, 1), Rate(1000, 1000))
    waits = [limit.take("a", 0.0, patience_s=0.25) for _ in range(5)]
    assert waits == pytest.approx([0, 0.1, 0.2, 0.3, 0.3])


def test_all_clients_share_one_limit() -> None:
    limit = RateLimit(Rate(10, 10), Rate(10, 5))
    assert sum(limit.take(str(n), 0.0, patience_s=0) == 0 for n in range(20)) == 5


def test_the_number_of_clients_is_bounded() -> None:
    limit = RateLimit(Rate(1, 1), Rate(1e9, 1e9))
    for n in range(3 * MAX_CLIENTS):
        limit.take(str(n), 0.0, patience_s=0)
    assert len(limit._each) == MAX_CLIENTS


@given(st.lists(st.floats(0, 0.5), max_size=200))
def test_no_more_than_burst_plus_rate_passes(steps: list[float]) -> None:
    limit = RateLimit(Rate(5, 4), Rate(1e6, 1e6))
    now, passed = 0.0, 0
    for step in steps:
        now += step
        passed += limit.take("a", now, patience_s=0) == 0
    assert passed <= 4 + 5 * now + 1e-6


def test_events_over_the_rate_are_counted_and_refused() -> None:
    frames = RateCounter(Rate(per_s=1, burst=5))
    assert [frames.allow(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert not frames.allow(2.0), "the two refused ones are still owed"
    assert frames.allow(5.0)
