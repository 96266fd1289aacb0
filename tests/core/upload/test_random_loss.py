"""Losses of a line that isn't full."""

from p2pcache.core.upload.random_loss import LossSample, RandomLoss
from p2pcache.core.upload.settings import WINDOW_SEGMENTS


def looks(share: float, rtt_s: float, min_rtt_s: float = 0.04, windows: int = 6) -> list[bool]:
    """What the watch says after each window of a steady line."""
    watch = RandomLoss()
    return [
        watch.is_lossy(
            LossSample(n * WINDOW_SEGMENTS, round(n * WINDOW_SEGMENTS * share), rtt_s, min_rtt_s)
        )
        for n in range(1, windows + 1)
    ]


def test_a_long_line_that_loses_one_in_a_hundred_is_lossy_after_two_windows() -> None:
    assert looks(0.01, 0.042) == [False, True, True, True, True, True]


def test_losses_with_a_queue_are_those_of_a_full_line() -> None:
    assert not any(looks(0.01, 0.09))


def test_a_short_line_or_few_losses_need_nothing() -> None:
    assert not any(looks(0.01, 0.0002, 0.0002))
    assert not any(looks(0.001, 0.041))
    assert not any(looks(0.01, 0.0, 0.0))  # the kernel told no round trip


def test_the_losses_of_a_slow_start_say_nothing() -> None:
    watch = RandomLoss()
    lost = 100
    found = [
        watch.is_lossy(LossSample(n * WINDOW_SEGMENTS, lost, 0.041, 0.04)) for n in range(1, 10)
    ]
    assert not any(found)


def test_small_uploads_are_counted_together() -> None:
    watch = RandomLoss()
    step = WINDOW_SEGMENTS // 10
    found = [
        watch.is_lossy(LossSample(n * step, n * step // 100, 0.041, 0.04)) for n in range(1, 40)
    ]
    assert found.index(True) == 19
