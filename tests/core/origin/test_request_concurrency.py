"""How many requests to storage a node has under way that reads alone."""

import heapq
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.origin.request_concurrency import RequestConcurrency

LEAST, MOST = 4, 128
RUN_S = 0.001  # what the link takes for one run


class Found(NamedTuple):
    """What came of requests over a link that those share whose bytes flow."""

    rate: float  # runs a second
    might: list[int]  # how many might be under way, at the end of each


def link(
    wait_s: Callable[[int], float], count: int, *, runs: int = 1, stream_s: float = RUN_S
) -> Found:  # fmt: skip
    """Make requests, as many at once as are allowed.

    Args:
        wait_s: from the number of requests under way to the time until another one's first byte comes.
        count: of requests.
        runs: that each brings.
        stream_s: what one connection takes for a run at least.
    """
    at_once, now = RequestConcurrency(LEAST, MOST), 0.0
    waiting: list[tuple[float, float]] = []  # when the first byte comes, when it was asked for
    flowing: list[list[float]] = []  # the link's seconds that are left, since when, when asked for
    might: list[int] = []
    while len(might) < count:
        while len(waiting) + len(flowing) < at_once.limit(runs):
            heapq.heappush(waiting, (now + wait_s(len(waiting) + len(flowing)), now))
        share = max(len(flowing), stream_s / RUN_S)
        shortest = min(flowing, default=[float("inf")])
        step_s = min(shortest[0] * share, waiting[0][0] - now if waiting else float("inf"))
        now += step_s
        for one in flowing:
            one[0] -= step_s / share
        if shortest[0] < 1e-12:
            flowing.remove(shortest)
            under_way = len(waiting) + len(flowing) + 1
            at_once.on_done(now - shortest[2], under_way, now - shortest[1], runs, now)
            might.append(at_once.limit(runs))
        elif waiting and waiting[0][0] <= now + 1e-12:
            flowing.append([runs * RUN_S, now, heapq.heappop(waiting)[1]])
    return Found(count * runs / now, might)


@pytest.mark.parametrize("runs", [1, 8])
@pytest.mark.parametrize("wait_s", [0.0, 0.0002])
def test_near_storage_is_asked_by_few(wait_s: float, runs: int) -> None:
    found = link(lambda _: wait_s, 2000 // runs, runs=runs)
    assert found.rate > 0.8 / RUN_S
    assert max(found.might) <= 3 * LEAST


@pytest.mark.parametrize("runs", [1, 8, 32])
def test_a_busy_server_is_not_taken_for_a_far_one(runs: int) -> None:
    """Its first bytes are late because it serves others of ours, and at first because we connect."""
    begun = 0

    def busy(under_way: int) -> float:
        nonlocal begun
        begun += 1
        return 0.1 if begun <= LEAST else 2 * RUN_S * under_way

    found = link(busy, 4000 // runs, runs=runs)
    assert max(found.might) <= 5 * LEAST


@pytest.mark.parametrize("runs", [1, 8])
@pytest.mark.parametrize("sigma", [0.2, 0.6])
def test_the_link_of_far_storage_is_kept_full(sigma: float, runs: int) -> None:
    dice = Random(1)
    found = link(lambda _: 0.03 * dice.lognormvariate(0.0, sigma), 8000 // runs, runs=runs)
    assert found.rate > 0.88 / RUN_S
    held = LEAST + 30 * 2.718 ** (sigma**2 / 2) / runs
    assert max(found.might[1000 // runs :]) <= 3 * held, "not far over twice what the way holds"


@pytest.mark.parametrize("runs", [1, 8])
@pytest.mark.parametrize("wait_s", [0.0, 10 * RUN_S])
def test_requests_become_more_where_connections_are_limited(wait_s: float, runs: int) -> None:
    found = link(lambda _: wait_s, 16000 // runs, runs=runs, stream_s=40 * RUN_S)
    assert found.rate > 0.85 / RUN_S
    assert found.might[-1] <= 110


def test_storage_that_serves_one_after_the_other_is_not_asked_for_ever_more() -> None:
    at_once, now, begun = RequestConcurrency(LEAST, MOST), 0.0, [0.0] * LEAST
    for _ in range(5000):
        now += RUN_S
        at_once.on_done(now - begun.pop(0), len(begun) + 1, RUN_S, 1, now)
        begun += [now] * (at_once.limit(1) - len(begun))
    assert at_once.limit(1) <= 3 * LEAST


def test_longer_requests_are_fewer() -> None:
    at_once = RequestConcurrency(2, 64)
    for number in range(1, 9):
        at_once.on_done(20 * RUN_S, 8, RUN_S, 1, 20 * number * RUN_S / 8)
    assert at_once.limit(1) > 3 * at_once.limit(8)


@given(
    st.integers(1, 70), st.integers(0, 140), st.integers(1, 40),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200), st.floats(0, 5)), max_size=400),
)  # fmt: skip
def test_the_limit_stays_within_its_bounds(
    least: int, most: int, runs: int, ends: list[tuple[float, int, float]]
) -> None:
    at_once = RequestConcurrency(least, most)
    for number, (took_s, under_way, flow_s) in enumerate(ends * 3):
        at_once.on_done(took_s, under_way, flow_s, runs, number)
        assert least <= at_once.limit(runs) <= at_once.most


def test_requests_on_a_far_way_flow_for_longer_than_they_wait() -> None:
    """There are only so many of them, and while one waits nothing flows through it."""
    wait_s = 2.0
    at_once = RequestConcurrency(2, 64)
    for number in range(1, 9):
        at_once.on_done(wait_s + RUN_S, 2, RUN_S, 1, number * wait_s)
    assert at_once.length(10**6) * RUN_S >= 2 * wait_s
    near = RequestConcurrency(2, 64)
    for number in range(1, 9):
        near.on_done(2 * RUN_S, 2, RUN_S, 1, number * RUN_S)
    assert near.length(10**6) * RUN_S <= 1.0
