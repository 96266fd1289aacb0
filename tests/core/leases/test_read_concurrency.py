"""How many reads of storage run at once."""

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.leases.read_concurrency import ReadConcurrency
from p2pcache.core.leases.settings import EVEN_PACE, UNEVEN_PACE

LEAST, MOST = 4, 128
RUN_S = 0.001  # what the link takes for one read


def never() -> float:
    return 0.0


def link(
    wait_s: Callable[[], float], reads: int, *, least: int = LEAST, most: int = MOST, stream_s: float = RUN_S,
    told: bool = True,
) -> tuple[float, list[int]]:  # fmt: skip
    """Run all reads that are allowed over a link that those share whose bytes flow.

    Args:
        wait_s: until a read's first byte comes.
        reads: how many.
        least: of the `ReadConcurrency`.
        most: of the `ReadConcurrency`.
        stream_s: what one connection takes for a read at least.
        told: whether it is known how long bytes flowed.

    Returns:
        The reads per second, and how many might run at each end.
    """
    at_once, now = ReadConcurrency(least, most), 0.0
    waiting: list[tuple[float, float]] = []  # when the first byte comes, when it was asked for
    flowing: list[
        list[float]
    ] = []  # the link's seconds that are left, since when, when it was asked for
    might: list[int] = []
    while len(might) < reads:
        while at_once.may_begin(len(waiting) + len(flowing), now):
            heapq.heappush(waiting, (now + wait_s(), now))
            at_once.on_begun(len(waiting) + len(flowing), now)
        # Seconds that a read takes for each second of the whole link.
        share = max(len(flowing), stream_s / RUN_S)
        shortest = min(flowing, default=[float("inf")])
        step_s = min(shortest[0] * share, waiting[0][0] - now if waiting else float("inf"))
        if len(waiting) + len(flowing) < at_once.limit:
            step_s = min(step_s, at_once.next_at - now)
        now += step_s
        for one in flowing:
            one[0] -= step_s / share
        if shortest[0] < 1e-12:
            flowing.remove(shortest)
            flow_s = now - shortest[1] if told else 0.0
            at_once.on_read_done(now - shortest[2], len(waiting) + len(flowing) + 1, flow_s, now)
            might.append(at_once.limit)
        elif waiting and waiting[0][0] <= now + 1e-12:
            flowing.append([RUN_S, now, heapq.heappop(waiting)[1]])
    return reads / now, might


def far(seed: int, median_s: float, sigma: float) -> Callable[[], float]:
    dice = Random(seed)
    return lambda: median_s * dice.lognormvariate(0.0, sigma)


@pytest.mark.parametrize("least", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("wait_s", [0.0, 0.0002])
def test_near_storage_is_read_by_few(least: int, wait_s: float) -> None:
    rate, might = link(lambda: wait_s, 2000, least=least)
    assert max(might) <= 1.3 * least + 2
    assert rate > 0.8 / RUN_S


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sigma", [0.0, 0.3, 0.6, 0.9])
def test_the_link_of_far_storage_is_kept_full(sigma: float, seed: int) -> None:
    """Also where single reads wait ten times as long as others, or all equally long and could end together."""
    rate, might = link(far(seed, 0.03, sigma), 4000)
    assert rate > 0.9 / RUN_S
    held = 30 * 2.718 ** (sigma**2 / 2)
    assert max(might[1000:]) < 3.5 * held + 2 * LEAST, "not far over twice what the way holds"


def test_connections_that_are_limited_one_by_one_become_more() -> None:
    """S3 gives 90 MB/s to each after a while, and a link holds dozens of them."""
    rate, might = link(lambda: 10 * RUN_S, 8000, stream_s=40 * RUN_S)
    assert rate > 0.9 / RUN_S
    assert might[-1] < 80


def test_storage_that_never_answers_sooner_is_read_by_as_many_as_allowed() -> None:
    _, might = link(lambda: 1.0, 3000)
    assert max(might) == MOST


def test_the_limit_falls_when_storage_comes_near() -> None:
    count = 0

    def moves() -> float:
        nonlocal count
        count += 1
        return 0.06 if count < 2000 else 0.0

    _, might = link(moves, 6000)
    assert max(might) > 60
    assert might[-1] < 12


def test_reads_of_an_older_release_say_nothing_of_their_wait() -> None:
    rate, might = link(lambda: 0.0, 2000, told=False)
    assert rate > 0.95 / RUN_S
    assert max(might) <= 1.3 * LEAST + 2


def test_a_node_that_reads_nothing_does_not_hold_the_limit_down() -> None:
    """One of eight has no credentials: reads in flight count, not the limit."""
    at_once = ReadConcurrency(LEAST, MOST)
    now = 0.0
    for _ in range(3000):
        runs = max(1, 7 * at_once.limit // 8)
        now += 0.03 / runs
        at_once.on_read_done(0.03, runs, 0.001, now)
    assert at_once.limit == MOST


def test_further_reads_begin_one_after_the_other() -> None:
    at_once, now = ReadConcurrency(2, 64), 0.0
    for _ in range(4):
        now += RUN_S
        at_once.on_read_done(20 * RUN_S, 2, RUN_S, now)
    assert at_once.limit > 30, "a few reads tell what the link brings while one waits"
    assert at_once.may_begin(1, now), "the first ones needn't wait"
    for _ in range(2):  # the time before counts for one of them
        at_once.on_begun(3, now)
    assert not at_once.may_begin(3, now)
    assert RUN_S / 8 < at_once.next_at - now < RUN_S, "quicker than they end"
    assert at_once.may_begin(3, at_once.next_at)


def test_reads_that_wait_alike_begin_as_quickly_as_the_link_brings_them() -> None:
    """Those that begin together end together, and the link is idle while all of them wait."""
    at_once, now = ReadConcurrency(2, 64), 0.0
    for _ in range(200):
        now += RUN_S
        at_once.on_read_done(20 * RUN_S, 40, RUN_S, now)
    assert _gap_s(at_once) == pytest.approx(RUN_S / 1.1)


def test_reads_that_wait_unevenly_begin_more_quickly() -> None:
    at_once, now = ReadConcurrency(2, 64), 0.0
    for number in range(200):
        now += RUN_S
        at_once.on_read_done((10 if number % 2 else 30) * RUN_S, 40, RUN_S, now)
    assert RUN_S / 4 < _gap_s(at_once) < RUN_S / 2


def test_reads_begin_more_quickly_while_none_slows_another_down() -> None:
    at_once, now = ReadConcurrency(2, 64), 0.0
    for _ in range(200):
        now += RUN_S
        at_once.on_read_done(30 * RUN_S, 40, 10 * RUN_S, now)
    assert RUN_S / 5 < _gap_s(at_once) < RUN_S / 4


def test_a_low_sample_does_not_leave_the_link_idle() -> None:
    at_once, now = ReadConcurrency(2, 64), 0.0
    for number in range(192):
        step_s = RUN_S if number < 128 else 2 * RUN_S
        now += step_s
        at_once.on_read_done(20 * RUN_S, 40, step_s, now)
    assert at_once.limit > 25, "20 by the last sample alone"


def _gap_s(at_once: ReadConcurrency) -> float:
    """Between two reads that begin."""
    for _ in range(2):  # the time before counts for one of them
        at_once.on_begun(at_once.limit, 1e6)
    return at_once.next_at - 1e6


def test_storage_that_serves_one_after_the_other_is_not_asked_for_ever_more() -> None:
    at_once, now, begun = ReadConcurrency(LEAST, MOST), 0.0, [0.0] * LEAST
    for _ in range(5000):
        now += RUN_S
        at_once.on_read_done(now - begun.pop(0), len(begun) + 1, RUN_S, now)
        begun += [now] * (at_once.limit - len(begun))
    assert at_once.limit <= 8 * LEAST


@given(
    st.integers(1, 70), st.integers(0, 140),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200), st.floats(0, 5)), max_size=400),
)  # fmt: skip
def test_the_limit_stays_within_its_bounds(
    least: int, most: int, ends: list[tuple[float, int, float]]
) -> None:
    at_once = ReadConcurrency(least, most)
    for number, (took_s, under_way, flow_s) in enumerate(ends * 3):
        at_once.on_read_done(took_s, under_way, flow_s, number)
        assert least <= at_once.limit <= at_once.most


def test_the_first_read_tells_roughly_what_the_way_holds() -> None:
    at_once = ReadConcurrency(LEAST, MOST)
    at_once.on_read_done(0.021, LEAST, 4 * RUN_S, 0.021)
    assert at_once.limit == LEAST + 8, "twice what a fourth of the link brings in 17 ms"


def test_reads_begin_in_no_gust_after_a_silence() -> None:
    """Their waits differ from those before by more than they are long."""
    at_once, now = ReadConcurrency(LEAST, MOST), 0.0
    for wait_s in [20 * RUN_S] * 200 + [2 * RUN_S] * 200:
        now += RUN_S
        at_once.on_read_done(wait_s + RUN_S, LEAST, RUN_S, now)
        assert not at_once.measured or at_once._gap_s >= RUN_S / (EVEN_PACE + UNEVEN_PACE) * 0.999
