"""How many reads of the origin run at once where its first byte is far away."""

import heapq
from collections import Counter

import pytest

from p2pcache.core.leases.lease_book import LeaseBook
from tests.core.leases.leases_kit import SETTINGS, A, Have, finish, make

RUNS = 4000
NODES = 16
RUN_S = 0.001  # what the origin's link takes for one


def swarm(runs: int = RUNS, nodes: int = NODES) -> tuple[LeaseBook, Have]:
    book, have = make(runs, in_flight=SETTINGS.in_flight)
    for node in range(1, nodes + 1):
        book.set_credit(node, 64)
    return book, have


def storm(first_byte_s: float, run_s: float = RUN_S, runs: int = RUNS) -> tuple[LeaseBook, float]:
    """All nodes read their leases over a link that serves one after the other; returns how long it took, too."""
    book, have = swarm(runs)
    now = link_free = 0.0
    ends: list[tuple[float, int, int]] = []
    while True:
        for node, granted in book.grant(now).items():
            for run in granted:
                link_free = max(link_free, now + first_byte_s) + run_s
                heapq.heappush(ends, (link_free, node, run))
        if not ends:
            return book, now
        now, node, run = heapq.heappop(ends)
        finish(book, have, node, run, now, flow_s=run_s)


def all_read(book: LeaseBook, have: Have, now: float, took_s: float) -> float:
    """All nodes read their leases, each read takes equally long; returns when the last one ends."""
    given, at = list(book.grant(now).items()), book.next_wakeup()
    while at is not None and at < now + took_s:
        given += book.grant(at).items()
        at = book.next_wakeup()
    for node, runs in given:
        for run in runs:
            finish(book, have, node, run, now + took_s, flow_s=took_s / 100)
    return now + took_s


def test_a_far_origins_link_is_kept_full() -> None:
    """26 reads are under way at any moment; with 16 the link stood idle for over a third of it."""
    book, took_s = storm(first_byte_s=25 * RUN_S)
    assert took_s < 1.15 * RUNS * RUN_S
    assert book.readers.concurrency.limit >= 40


def test_a_near_origin_is_read_by_few() -> None:
    """Over a link that all reads share evenly."""
    book, have = swarm(1000)
    now, left, who, since = 0.0, dict[int, float](), dict[int, int](), dict[int, float]()
    might: list[int] = []
    while True:
        for node, granted in book.grant(now).items():
            left.update(dict.fromkeys(granted, RUN_S))
            who.update(dict.fromkeys(granted, node))
            since.update(dict.fromkeys(granted, now))
        if not left:
            break
        run = min(left, key=lambda one: left[one])
        share_s = left.pop(run)
        now += share_s * (len(left) + 1)
        left = {other: rest_s - share_s for other, rest_s in left.items()}
        finish(book, have, who[run], run, now, flow_s=now - since[run])
        might.append(book.readers.concurrency.limit)
    assert max(might) <= 16


def test_there_is_a_limit() -> None:
    book, _ = storm(first_byte_s=1000 * RUN_S)
    assert book.readers.concurrency.limit == SETTINGS.most_in_flight


def test_a_node_alone_reads_as_many_as_it_says_it_can() -> None:
    """A lone node had eight connections of S3's 90 MB/s, 0.15 of 25 Gbit/s."""
    book, have = make(RUNS, in_flight=SETTINGS.in_flight)
    book.set_credit(A, 64)
    now, at_once = 0.0, list[int]()
    while before := book.free.bit_count():
        now = all_read(book, have, now, 0.1)
        at_once.append(before - book.free.bit_count())
        assert at_once[-1] > 0
    assert max(at_once) == 64
    book.check()


def test_after_a_restart_in_mid_storm_it_is_found_out_again() -> None:
    book, have = swarm()
    for run in range(40):
        book.renew(run % NODES + 1, 1 << run, 0.0)
    now = 0.0
    for run in range(40):
        finish(book, have, run % NODES + 1, run, now := now + 0.001)
    for _ in range(60):
        now = all_read(book, have, now, 0.1)
    assert book.readers.concurrency.limit > 48


def test_a_pause_says_nothing_about_the_origin() -> None:
    book, _ = storm(first_byte_s=25 * RUN_S, runs=400)
    before = book.readers.concurrency.limit
    assert before > 16
    book.set_free(1)
    for runs in book.grant(1000.0).values():
        assert runs == [0]
    book.on_have(book.leases[0].node, 1, 1000.03)
    assert book.readers.concurrency.limit == before


@pytest.mark.parametrize(
    ("nodes", "limit", "queue", "read"),
    [
        (8, 13, False, 13), (16, 22, False, 22), (16, 40, False, 40),
        (8, 13, True, 8), (8, 14, True, 14),
    ],
)  # fmt: skip
def test_as_many_are_read_as_pay(nodes: int, limit: int, queue: bool, read: int) -> None:
    """Eight read where 12 pay, 16 where 22 do: storage's link, 1 ms away, had 0.85 and 0.90 of what it brings.

    In a queue, where none would wait for the shortest time, second reads pay later.
    """
    book, have = swarm(nodes=nodes)
    now = 0.0
    for _ in range(SETTINGS.in_flight):
        now = all_read(book, have, now, 0.1)
    concurrency = book.readers.concurrency
    concurrency.limit = limit
    if queue:
        concurrency.pays = float(concurrency.least)
    for step in range(100):
        book.grant(now + step / 1000)
    assert len(book.leases) == read


def test_first_reads_come_before_second_ones_where_nodes_want_parts() -> None:
    """Nodes that want the first part had two reads each, those of the other parts none: their links were idle."""
    book, have = make(400, in_flight=SETTINGS.in_flight)
    part = (1 << 50) - 1
    for node in range(1, 9):
        book.set_credit(node, 64, part << 50 * (node - 1))
    now = 0.0
    for _ in range(SETTINGS.in_flight):
        now = all_read(book, have, now, 0.1)
    book.readers.concurrency.limit = 12
    for step in range(100):
        book.grant(now + step / 1000)
    count = Counter(lease.node for lease in book.leases.values())
    assert sorted(count.values()) == [1] * 4 + [2] * 4


@pytest.mark.parametrize("slow", [1, 8])
def test_a_slow_node_keeps_no_second_reads_from_the_others_where_nodes_want_parts(
    slow: int,
) -> None:
    """Its runs wait for a better reader, and those of the others were not looked at."""
    book, have = make(2000, in_flight=SETTINGS.in_flight)
    part = (1 << 1000) - 1
    for node in range(1, 9):
        book.set_credit(node, 64, part << 1000 * (node > 4))
    now = 0.0
    for _ in range(SETTINGS.in_flight):
        now = all_read(book, have, now, 0.1)
    book.readers.on_lease_taken(have.roster.members[slow], 10.0, now)
    concurrency = book.readers.concurrency
    concurrency.limit, concurrency.pays = 24, 24.0
    for step in range(100):
        book.grant(now + step / 1000)
    count = Counter(lease.node for lease in book.leases.values())
    assert count[slow] == 0
    assert all(count[node] >= 2 for node in range(1, 9) if node != slow), count


@pytest.mark.parametrize("nodes", [32, 64])
def test_first_reads_are_granted_at_once_where_many_nodes_want_different_parts(nodes: int) -> None:
    """The run came from one draw of nodes, and its reader was looked for in another one."""
    book, _ = make(4 * nodes, in_flight=32)
    for node in range(1, nodes + 1):
        book.set_credit(node, 64, 0b1111 << 4 * (node - 1))
    book.readers.concurrency.limit = 32
    book.grant(0.0)
    assert len(book.leases) == 32
    assert len({lease.node for lease in book.leases.values()}) == 32
