"""How many reads of storage run at once."""

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.origin.read_concurrency import ReadConcurrency

USUAL, MOST = 16, 128
RUN_S = 0.001  # what the link takes for one read


def link(
    alone_s: Callable[[], float],
    reads: int,
    usual: int = USUAL,
    most: int = MOST,
    rise: int = 4,
) -> tuple[ReadConcurrency, float, list[int]]:
    """Run all reads that are allowed over a link that serves one after the other.

    Args:
        alone_s: what a read takes besides the link's time.
        reads: how many.
        usual: of the `ReadConcurrency`.
        most: of the `ReadConcurrency`.
        rise: reads that run at first; one more for each that ended.

    Returns:
        The reads_at_once, the reads per second, and how many might run at each end.
    """
    reads_at_once, now, free = ReadConcurrency(usual, most), 0.0, 0.0
    answers: list[tuple[float, float]] = []  # when the first byte comes, when it was asked for
    might: list[int] = []
    for ended in range(reads):
        while len(answers) < min(reads_at_once.limit, rise + ended):
            heapq.heappush(answers, (now + alone_s(), now))
        first_byte, asked = heapq.heappop(answers)
        now = free = max(free, first_byte) + RUN_S
        reads_at_once.on_read_done(now - asked, len(answers) + 1)
        might.append(reads_at_once.limit)
    return reads_at_once, reads / now, might


def far(seed: int, median_s: float, sigma: float) -> Callable[[], float]:
    dice = Random(seed)
    return lambda: median_s * dice.lognormvariate(0.0, sigma)


@pytest.mark.parametrize("usual", [1, 2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("alone_s", [0.0, 0.0002])
def test_near_storage_keeps_the_usual_limit(usual: int, alone_s: float) -> None:
    reads_at_once, _, might = link(lambda: alone_s, 3000, usual, 8 * usual, rise=min(4, usual))
    assert reads_at_once.limit == usual
    assert max(might) == usual


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sigma", [0.0, 0.3, 0.6, 0.9])
def test_the_link_of_far_storage_is_kept_full(sigma: float, seed: int) -> None:
    """Also where single reads differ by ten times: the quickest ones once stood for all."""
    _, rate, _ = link(far(seed, 0.03, sigma), 20_000)
    assert rate > 0.9 / RUN_S


def test_the_limit_stays_high_in_a_long_storm() -> None:
    reads_at_once, _, might = link(far(1, 0.03, 0.5), 60_000)
    held = 0.03 * 1.13 / RUN_S  # the mean of that log-normal
    assert reads_at_once.limit >= 1.5 * held
    assert sum(might[20_000:]) / 40_000 >= 1.5 * held


def test_the_limit_is_never_exceeded() -> None:
    reads_at_once, _, might = link(lambda: 1.0, 5000)
    assert reads_at_once.limit == max(might) == MOST


@pytest.mark.parametrize("seed", range(4))
def test_slow_first_connections_are_not_far_storage(seed: int) -> None:
    """The first reads of a storm once took ten usual times: new connections lost packets."""
    count = 0

    def slow_at_first() -> float:
        nonlocal count
        count += 1
        return 0.16 if count <= 16 else 0.0

    reads_at_once, _, might = link(slow_at_first, 4000)
    assert reads_at_once.limit == USUAL
    assert sum(one > USUAL for one in might) < 300


def test_the_limit_falls_when_storage_comes_near() -> None:
    count = 0

    def moves() -> float:
        nonlocal count
        count += 1
        return 0.06 if count < 2000 else 0.0

    reads_at_once, _, might = link(moves, 60_000)
    assert max(might) > 100
    assert reads_at_once.limit < 40


def test_a_node_that_reads_nothing_does_not_hold_the_limit_down() -> None:
    """One of eight has no credentials: reads in flight count, not the limit."""
    reads_at_once, most_ended = ReadConcurrency(USUAL, MOST), 0
    for _ in range(20_000):
        reads_at_once.on_read_done(0.03, max(1, 7 * reads_at_once.limit // 8))
        most_ended = max(most_ended, reads_at_once.limit)
    assert reads_at_once.limit == most_ended == MOST


def test_the_limit_stays_where_few_reads_run() -> None:
    reads_at_once = ReadConcurrency(USUAL, MOST)
    for _ in range(20_000):
        reads_at_once.on_read_done(0.03, 4)
    assert reads_at_once.limit == USUAL


@given(
    st.integers(1, 70), st.integers(0, 140),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200)), max_size=400),
)  # fmt: skip
def test_the_limit_stays_within_its_bounds(
    usual: int, most: int, ends: list[tuple[float, int]]
) -> None:
    reads_at_once = ReadConcurrency(usual, most)
    for took_s, under_way in ends * 3:
        reads_at_once.on_read_done(took_s, under_way)
        assert max(1, usual // 2) <= reads_at_once.limit <= reads_at_once.most
