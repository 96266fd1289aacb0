"""How many reads of storage run at once: what a way holds is found out by fewer and by more of them."""

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.origin.read_concurrency import Depth

USUAL, MOST = 16, 128
RUN_S = 0.001  # what the link takes for one read


def link(
    alone_s: Callable[[], float],
    reads: int,
    usual: int = USUAL,
    most: int = MOST,
    rise: int = 4,
) -> tuple[Depth, float, list[int]]:
    """All reads that may run do, over a link that serves one after the other.

    Args:
        alone_s: what a read takes besides the link's time.
        reads: how many.
        usual: of the depth.
        most: of the depth.
        rise: so many run at first, and one more for each that ended.

    Returns:
        The depth, the reads per second, and how many might run at each end.
    """
    depth, now, free = Depth(usual, most), 0.0, 0.0
    answers: list[tuple[float, float]] = []  # when the first byte comes, when it was asked for
    might: list[int] = []
    for ended in range(reads):
        while len(answers) < min(depth.reads, rise + ended):
            heapq.heappush(answers, (now + alone_s(), now))
        first_byte, asked = heapq.heappop(answers)
        now = free = max(free, first_byte) + RUN_S
        depth.ended(now - asked, len(answers) + 1)
        might.append(depth.reads)
    return depth, reads / now, might


def far(seed: int, median_s: float, sigma: float) -> Callable[[], float]:
    dice = Random(seed)
    return lambda: median_s * dice.lognormvariate(0.0, sigma)


@pytest.mark.parametrize("usual", [1, 2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("alone_s", [0.0, 0.0002])
def test_a_near_origin_is_read_as_ever(usual: int, alone_s: float) -> None:
    depth, _, might = link(lambda: alone_s, 3000, usual, 8 * usual, rise=min(4, usual))
    assert depth.reads == usual
    assert max(might) == usual


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sigma", [0.0, 0.3, 0.6, 0.9])
def test_a_far_origins_link_is_kept_full(sigma: float, seed: int) -> None:
    """Where single reads differ by ten times, too: the quickest ones once stood for all, and it stayed at 16."""
    _, rate, _ = link(far(seed, 0.03, sigma), 20_000)
    assert rate > 0.9 / RUN_S


def test_it_does_not_forget_in_a_long_storm() -> None:
    depth, _, might = link(far(1, 0.03, 0.5), 60_000)
    held = 0.03 * 1.13 / RUN_S  # the mean of that log-normal
    assert depth.reads >= 1.5 * held
    assert sum(might[20_000:]) / 40_000 >= 1.5 * held


def test_there_is_a_limit() -> None:
    depth, _, might = link(lambda: 1.0, 5000)
    assert depth.reads == max(might) == MOST


@pytest.mark.parametrize("seed", range(4))
def test_a_first_connection_that_was_slow_is_not_a_far_origin(seed: int) -> None:
    """The first reads of a storm once took ten usual times: new connections lost packets."""
    count = 0

    def slow_at_first() -> float:
        nonlocal count
        count += 1
        return 0.16 if count <= 16 else 0.0

    depth, _, might = link(slow_at_first, 4000)
    assert depth.reads == USUAL
    assert sum(one > USUAL for one in might) < 300


def test_storage_that_comes_near_again_is_read_as_ever() -> None:
    count = 0

    def moves() -> float:
        nonlocal count
        count += 1
        return 0.06 if count < 2000 else 0.0

    depth, _, might = link(moves, 60_000)
    assert max(might) > 100
    assert depth.reads < 40


def test_a_node_that_takes_none_does_not_hold_it_up() -> None:
    """One of eight has no credentials: what the others have in flight is looked at, not what might be."""
    depth, most_ended = Depth(USUAL, MOST), 0
    for _ in range(20_000):
        depth.ended(0.03, max(1, 7 * depth.reads // 8))
        most_ended = max(most_ended, depth.reads)
    assert depth.reads == most_ended == MOST


def test_where_nobody_takes_more_it_stays() -> None:
    depth = Depth(USUAL, MOST)
    for _ in range(20_000):
        depth.ended(0.03, 4)
    assert depth.reads == USUAL


@given(
    st.integers(1, 70), st.integers(0, 140),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200)), max_size=400),
)  # fmt: skip
def test_whatever_comes_it_stays_within_its_bounds(
    usual: int, most: int, ends: list[tuple[float, int]]
) -> None:
    depth = Depth(usual, most)
    for took_s, under_way in ends * 3:
        depth.ended(took_s, under_way)
        assert max(1, usual // 2) <= depth.reads <= depth.most
