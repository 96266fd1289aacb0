"""The rolling median against the sorted list, and the verdict "far slower than the others"."""

import math

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.stats import RollingMedian, Straggler, median

TIMES = st.lists(st.floats(0, 1e6), max_size=40)


@given(TIMES, st.integers(1, 12))
def test_the_rolling_median_is_the_upper_median_of_the_last_samples(
    times: list[float], length: int
) -> None:
    rolling = RollingMedian(length)
    for index, sample in enumerate(times):
        rolling.add(sample)
        kept = sorted(times[: index + 1][-length:])
        assert rolling.median == kept[len(kept) // 2] == median(kept)
        assert list(rolling.samples) == times[: index + 1][-length:]
    assert len(rolling) == min(length, len(times))


def test_nothing_has_a_median_of_zero() -> None:
    assert RollingMedian(3).median == RollingMedian(3).mean == median([]) == 0.0


def test_a_party_is_slow_above_the_ratio_of_enough_samples() -> None:
    rule = Straggler(ratio=2.0, min_samples=4)
    assert rule.is_slow(2.1, 1.0, 4)
    assert not rule.is_slow(2.0, 1.0, 4)
    assert not rule.is_slow(2.1, 1.0, 3)


def test_the_limit_is_the_largest_value_that_is_not_slow() -> None:
    rule = Straggler(ratio=2.0, min_samples=4)
    assert rule.threshold(1.0, 4) == 2.0
    assert rule.threshold(1.0, 3) == math.inf


def test_slow_is_an_exception_but_one_may_always_be() -> None:
    rule = Straggler(ratio=2.0, max_share=0.25)
    assert rule.allows_one_more(0, 2)
    assert not rule.allows_one_more(1, 7)
    assert rule.allows_one_more(1, 8)
