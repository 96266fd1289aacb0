"""Byte rates, on a clock by hand."""

from p2pcache.io.peers.protocol.limits import TokenBucket


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


def test_without_a_rate_everything_passes() -> None:
    bucket = TokenBucket(clock=Hand())
    assert bucket.spend(1 << 40) == 0
    assert bucket.quantum > 1 << 30


def test_a_lower_limit_keeps_a_debt_as_long_as_it_was() -> None:
    clock = Hand()
    bucket = TokenBucket(1000, burst_bytes=0, clock=clock)
    assert bucket.spend(2000) == 2
    bucket.limit(100)
    assert bucket.spend(0) == 2
    clock.now = 2
    assert bucket.spend(100) == 1
    bucket.limit(5000)  # no more than it was made with
    assert bucket.bytes_per_s == 1000
    bucket.limit(0)
    assert bucket.bytes_per_s == 1000


def test_a_limit_on_an_unlimited_bucket_can_be_lifted() -> None:
    clock = Hand()
    bucket = TokenBucket(clock=clock)
    bucket.spend(1 << 30)
    bucket.limit(1000)
    assert bucket.spend(1000) == 1
    bucket.limit(0)
    assert bucket.spend(1 << 30) == 0
