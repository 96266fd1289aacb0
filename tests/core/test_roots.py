"""Roots read their stripes: who does, how many at once, and how they are spread over time."""

from itertools import pairwise

import pytest

from p2pcache.core.forest import STRIPES
from p2pcache.core.leases import LeaseBook
from p2pcache.core.roots import LAGS
from p2pcache.core.settings import LeaseSettings

RUNS = 400
NODES = range(1, 13)
ROOTS = (1, 2, 3, 4)


class Book:
    """Leases of a storm with trees: whatever is granted is read in the time that storage takes for it."""

    def __init__(self, read_s: float = 0.0, first_byte_s: float = 0.0) -> None:
        self.have: dict[int, int] = dict.fromkeys(NODES, 0)
        self.book = LeaseBook(run_count=RUNS, settings=LeaseSettings(), seed=1, have=self.have)
        for node in NODES:
            self.book.want(node, 64)
        self.book.roots.planted(ROOTS)
        self.now = 0.0
        self.ended: list[tuple[float, int]] = []  # when which run was read
        self.begun: list[float] = []
        self.most = 0  # at once
        self._read_s = read_s  # what storage's uplink takes for one run
        self._first_byte_s = first_byte_s
        self._left: dict[int, float] = {}  # run -> seconds of the whole uplink

    def grant(self) -> None:
        for node, runs in self.book.grants(self.now).items():
            assert all(node == ROOTS[run % STRIPES] for run in runs)
            self.begun += [self.now] * len(runs)
            self._left |= dict.fromkeys(runs, self._read_s)

    def storm(self, runs: int) -> None:
        """Until so many are read; storage's uplink is shared evenly."""
        step = 0.001
        while len(self.ended) < runs:
            self.grant()
            self.most = max(self.most, len(self._left))
            leases = self.book.leases
            flowing = [r for r in self._left if self.now >= leases[r].since + self._first_byte_s]
            for run in flowing:
                self._left[run] -= step / len(flowing)
            self.now += step
            for run in [r for r in flowing if self._left[r] <= 0]:
                del self._left[run]
                node = leases[run].node
                self.have[node] |= 1 << run
                self.book.claim(node, 1 << run, self.now)
                self.ended.append((self.now, run))


def test_each_root_reads_its_stripe_in_order() -> None:
    storm = Book(read_s=0.04)
    storm.storm(64)
    for stripe in range(STRIPES):
        mine = [run for _, run in storm.ended if run % STRIPES == stripe]
        assert mine == sorted(mine)
    assert sorted(run for _, run in storm.ended)[:50] == list(range(50))


def test_near_storage_few_read_at_once() -> None:
    storm = Book(read_s=0.04, first_byte_s=0.01)
    storm.storm(200)
    assert storm.most <= 2 * STRIPES
    assert storm.now <= 200 * 0.04 * 1.03, "and its uplink is full all the same"


def test_far_storage_is_read_by_as_many_as_pay() -> None:
    storm = Book(read_s=0.0013, first_byte_s=0.03)
    storm.storm(390)
    assert storm.most > 24


def test_a_roots_reads_do_not_end_together() -> None:
    storm = Book(read_s=0.04)
    storm.storm(200)
    for stripe in range(STRIPES):
        times = [at for at, run in storm.ended if run % STRIPES == stripe and run >= 40]
        gaps = [b - a for a, b in pairwise(times)]
        assert min(gaps) > 0.25 * STRIPES * 0.04, "two runs at once, then none for as long"


@pytest.mark.parametrize("why", ["resting", "hidden", "left"])
def test_a_root_that_cannot_read_is_passed_over(why: str) -> None:
    storm = Book()
    if why == "resting":
        storm.book.grants(0.0)
        storm.book.failed(1, storm.book.leased, 0.0)
    elif why == "hidden":
        storm.book.hide(1, 0, 0.0)
    else:
        storm.book.forget(1, 0.0)
    given = storm.book.grants(0.01)
    reader = {run: node for node, runs in given.items() for run in runs}
    assert reader[0] not in ROOTS or why != "resting", reader
    assert reader[0] != 1


def test_without_trees_everybody_reads() -> None:
    storm = Book()
    storm.book.roots.planted(())
    for _ in range(4):
        for node, runs in storm.book.grants(storm.now).items():
            for run in runs:
                storm.have[node] |= 1 << run
                storm.book.claim(node, 1 << run, storm.now)
        storm.now += 1.0
    assert sum(1 for have in storm.have.values() if have) > STRIPES


def test_a_stripe_that_lags_is_read_by_anybody() -> None:
    """16 real nodes: the last of one stripe came over a root's two connections alone, with storage idle."""
    storm = Book()
    readers: dict[int, int] = {}
    for _ in range(20):
        for node, runs in storm.book.grants(storm.now).items():
            readers |= dict.fromkeys(runs, node)
            for run in runs:
                assert node == ROOTS[run % STRIPES] or run + LAGS <= max(readers) + 1
                if node != ROOTS[0]:
                    storm.have[node] |= 1 << run
                    storm.book.claim(node, 1 << run, storm.now)
        storm.now += 0.1
    late = [run for run, node in readers.items() if node not in ROOTS]
    assert late
    assert all(run % STRIPES == 0 for run in late)
    last_batch = 2 * STRIPES
    unread = [run for run in range(max(readers) - LAGS - last_batch) if run not in readers]
    assert not unread


def test_where_few_read_a_lease_is_left_to_its_node_for_longer() -> None:
    """Of 256 runs that real roots read up to nine were taken from them, and read twice."""
    storm = Book(read_s=0.25)
    storm.storm(64)
    storm.grant()
    usual_s, factor = storm.book.readers.usual_s(), LeaseSettings().stuck_factor
    run, lease = next(iter(storm.book.leases.items()))
    assert storm.book.take_over(run, lease.since + 1.9 * factor * usual_s) is None
    storm.book.roots.planted(())
    assert storm.book.take_over(run, lease.since + 1.1 * factor * usual_s) == lease.node
