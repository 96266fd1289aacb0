"""Byte rates and frame rates, on a clock by hand."""

from p2pcache.io.peers.limits import FrameRate, TokenBucket
from p2pcache.io.peers.workers import SlicePool


class Hand:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_lets_its_burst_pass_then_its_rate() -> None:
    clock = Hand()
    bucket = TokenBucket(1000, burst_bytes=100, clock=clock)
    assert bucket.spend(100) == 0
    assert bucket.spend(50) == 0.05
    clock.now = 0.05
    assert bucket.spend(0) == 0
    clock.now = 60  # a pause gives no more than the burst
    assert bucket.spend(150) == 0.05


def test_the_mean_rate_holds_for_any_quantum() -> None:
    clock = Hand()
    bucket = TokenBucket(1_000_000, clock=clock)
    for _ in range(500):
        clock.now += bucket.spend(bucket.quantum)
    assert 0.99e6 < 500 * bucket.quantum / clock.now < 1.02e6


def test_frames_over_the_burst_are_refused() -> None:
    rate = FrameRate(0.001, 5)
    assert [rate.allow() for _ in range(6)] == [True] * 5 + [False]


def test_a_slice_comes_back_after_its_last_holder() -> None:
    pool = SlicePool()
    first = pool.take()
    first.hold()
    first.release()
    assert not first.shared
    assert pool.take() is not first
    first.release()
    assert pool.take() is first
    assert pool.made == 2
