"""How many may read the origin at once where its first byte is far away."""

import heapq

from p2pcache.core.leases import LeaseBook
from tests.core.leases_kit import SETTINGS, A, finish, make

RUNS = 4000
NODES = 16
RUN_S = 0.001  # what the origin's link takes for one
MOST = SETTINGS.in_flight * (1 + SETTINGS.ahead_ratio)


def storm(first_byte_s: float, run_s: float = RUN_S, runs: int = RUNS) -> tuple[LeaseBook, float]:
    """Everybody reads what he may, over one link, until all is read; returns the book and how long that took."""
    book, have = make(runs, first_in_flight=SETTINGS.first_in_flight)
    for node in range(1, NODES + 1):
        book.want(node, SETTINGS.usual_credit)
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


def test_a_far_origins_link_is_kept_full() -> None:
    """25 reads wait for their first byte at any moment; with 16 at once the link stood idle a third of the time."""
    book, took_s = storm(first_byte_s=25 * RUN_S)
    assert took_s < 1.1 * RUNS * RUN_S
    assert 3 * 25 - 4 <= book._at_once <= 3 * 27


def test_a_near_origin_is_read_as_ever() -> None:
    for first_byte_s in (0.0, RUN_S):
        book, _ = storm(first_byte_s)
        assert book._at_once == SETTINGS.in_flight


def test_there_is_a_limit() -> None:
    book, _ = storm(first_byte_s=1000 * RUN_S)
    assert book._at_once == MOST


def test_storage_that_becomes_slow_is_not_flooded() -> None:
    book, have = make(RUNS, first_in_flight=SETTINGS.in_flight)
    for node in range(1, NODES + 1):
        book.want(node, SETTINGS.usual_credit)
    now, at_once = 0.0, []
    for took_s in (0.1, 0.1, 0.1, 0.1, 4.0, 4.0):
        for node, runs in book.grants(now).items():
            for run in runs:
                finish(book, have, node, run, now + took_s)
        now += took_s
        at_once.append(book._at_once)
    assert at_once[3] > SETTINGS.in_flight
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
    assert book._readers._way.rtt_s > 0.4


def test_a_pause_says_nothing_about_the_origin() -> None:
    book, _ = storm(first_byte_s=25 * RUN_S, runs=400)
    before = book._at_once
    assert before > SETTINGS.in_flight
    book.release(1, 1000.0)
    for runs in book.grants(1000.0).values():
        assert runs == [0]
    book.claim(book.leases[0].node, 1, 1000.03)
    assert book._at_once == before
