"""How many may read the origin at once where its first byte is far away."""

import heapq
from collections.abc import Collection

import pytest

from p2pcache.core.leases import LeaseBook
from tests.core.leases_kit import SETTINGS, A, finish, make

RUNS = 4000
NODES = 16
RUN_S = 0.001  # what the origin's link takes for one
MOST = SETTINGS.in_flight * (1 + SETTINGS.ahead_ratio)


def swarm(
    runs: int = RUNS, in_flight: int = SETTINGS.in_flight
) -> tuple[LeaseBook, dict[int, int]]:
    first = min(in_flight, SETTINGS.first_in_flight)
    book, have = make(runs, in_flight=in_flight, first_in_flight=first)
    for node in range(1, NODES + 1):
        book.want(node, SETTINGS.usual_credit)
    return book, have


def storm(first_byte_s: float, run_s: float = RUN_S, runs: int = RUNS) -> tuple[LeaseBook, float]:
    """Everybody reads what he may, over a link that serves one after the other; also says how long it took."""
    book, have = swarm(runs)
    now = link_free = 0.0
    ends: list[tuple[float, int, int]] = []
    while True:
        for node, granted in book.grants(now).items():
            for run in granted:
                link_free = max(link_free, now + first_byte_s) + run_s
                heapq.heappush(ends, (link_free, node, run))
        if not ends:
            return book, now
        now, node, run = heapq.heappop(ends)
        finish(book, have, node, run, now)


def all_read(
    book: LeaseBook,
    have: dict[int, int],
    now: float,
    took_s: float,
    elsewhere: Collection[int] = (),
) -> float:
    """Everybody reads what he may, each read takes as long; returns when. Runs `elsewhere` are had at once."""
    for node, runs in book.grants(now).items():
        for run in runs:
            finish(book, have, node, run, now + (0.0001 if run in elsewhere else took_s))
    return now + took_s


def test_a_far_origins_link_is_kept_full() -> None:
    """25 reads wait for their first byte at any moment; with 16 the link stood idle for over a third of it."""
    book, took_s = storm(first_byte_s=25 * RUN_S)
    assert took_s < 1.1 * RUNS * RUN_S
    assert 3 * 25 - 4 <= book._at_once <= 3 * 27


@pytest.mark.parametrize("in_flight", [2, 3, 4, 6, 8, SETTINGS.in_flight, 64])
def test_a_near_origin_is_read_as_ever(in_flight: int) -> None:
    """Over a link that all reads share evenly: none is quicker than the first few, which share it, too."""
    book, have = swarm(1000, in_flight)
    now, left, who = 0.0, dict[int, float](), dict[int, int]()
    while True:
        for node, granted in book.grants(now).items():
            left.update(dict.fromkeys(granted, RUN_S))
            who.update(dict.fromkeys(granted, node))
        if not left:
            break
        run = min(left, key=lambda one: left[one])
        share_s = left.pop(run)
        now += share_s * (len(left) + 1)
        left = {other: rest_s - share_s for other, rest_s in left.items()}
        finish(book, have, who[run], run, now)
        assert book._readers.at_once == in_flight


def test_there_is_a_limit() -> None:
    book, _ = storm(first_byte_s=1000 * RUN_S)
    assert book._at_once == MOST


def test_storage_that_becomes_slow_is_not_flooded() -> None:
    book, have = swarm()
    now, at_once = 0.0, []
    for took_s in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 4.0, 4.0):
        now = all_read(book, have, now, took_s)
        at_once.append(book._at_once)
    assert at_once[5] > SETTINGS.in_flight
    assert at_once[-1] == SETTINGS.in_flight


def test_what_others_had_or_began_before_the_grant_does_not_count_as_quick() -> None:
    book, have = make(RUNS)
    book.want(A, SETTINGS.usual_credit)
    book.renew(A, 0b1, 0.0)  # adopted
    finish(book, have, A, 0, 0.001)
    assert book.rescue(0, 1.0)
    have[A] = 0
    assert 0 in book.grants(1.0)[A]
    finish(book, have, A, 0, 1.001)
    assert not book._readers._way.rtt_s
    book.grants(2.0)
    finish(book, have, A, min(book.leases), 2.5)
    assert book._readers._way.rtt_s == 1.5


def test_one_that_was_had_from_elsewhere_says_nothing() -> None:
    book, have = swarm()
    now = 0.0
    for _ in range(12):
        now = all_read(book, have, now, 0.1, elsewhere={50, 90})
    assert book._at_once > 3 * SETTINGS.in_flight


def test_after_a_restart_in_mid_storm_the_usual_ones_do() -> None:
    """Then no read is alone on its way, so storage would seem to be far (eta 0.866 instead of 0.895)."""
    book, have = swarm()
    book.renew(A, 0b1, 0.0)
    now = 0.0
    for _ in range(20):
        now = all_read(book, have, now, 0.1)
    assert book._readers.at_once == SETTINGS.in_flight
    finish(book, have, A, 0, now)
    for _ in range(20):
        now = all_read(book, have, now, 0.1)
    assert book._readers.at_once > SETTINGS.in_flight, "all was quiet for a moment"


def test_a_pause_says_nothing_about_the_origin() -> None:
    book, _ = storm(first_byte_s=25 * RUN_S, runs=400)
    before = book._at_once
    assert before > SETTINGS.in_flight
    book.release(1, 1000.0)
    for runs in book.grants(1000.0).values():
        assert runs == [0]
    book.claim(book.leases[0].node, 1, 1000.03)
    assert book._at_once == before
