"""Readers that were slow and are tried again."""

import pytest

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.membership.member_record import Pace
from tests.core.leases.leases_kit import A, B, C, D, Have, finish, make, run_swarm, taken


def test_a_node_on_probation_reads_one_run_beside_the_others() -> None:
    """It waited until all others were full, which they never were: its rack ended three seconds late."""
    book, have = make(2000, in_flight=4, most_in_flight=4)
    run_swarm(book, have, {A: 1.0, B: 1.0, C: 1.0, D: 3.0}, 20.0)
    now = 1000.0  # its rest is over
    book.expire(now)
    for node in (A, B, C, D):
        book.set_credit(node, 8)
    given = book.grant(now)
    assert {node: len(runs) for node, runs in given.items()} == dict.fromkeys((A, B, C, D), 1)
    finish(book, have, D, given[D][0], now + 1.0)
    assert have.roster.members[D].pace is Pace.USUAL, "one read as quick as theirs ends it"


def on_probation(
    *nodes: int, runs: int = 2000, in_flight: int = 4, credit: int = 8
) -> tuple[LeaseBook, Have]:
    """Four readers, some on probation, long after their rests; all others have credit."""
    book, have = make(runs, in_flight=in_flight, most_in_flight=in_flight)
    for node in (A, B, C, D):
        book.set_credit(node, credit)
    book.readers.times.on_read(have.roster.members[A], 1.0)
    for node in nodes:
        taken(book, have, node, 0.0, 8.0)
    book.expire(1000.0)
    return book, have


def test_a_node_on_probation_reads_one_run_where_the_others_read_several() -> None:
    book, _ = on_probation(D, in_flight=8)
    given = book.grant(1000.0)
    assert sum(map(len, given.values())) == 8
    assert len(given[D]) == 1
    assert {len(given[node]) for node in (A, B, C)} == {2, 3}


@pytest.mark.parametrize("seed", range(16))
def test_a_run_that_a_loader_waits_for_goes_to_a_quick_node(seed: int) -> None:
    """A node on probation had it by the dice, though the others had none, and all waited for eight of their reads."""
    book, _ = on_probation(D)
    book.readers.dice.seed(seed)
    book.on_urgent(1)
    assert 0 not in book.grant(1000.0)[D]


def test_nodes_on_probation_alone_read_as_others_would() -> None:
    """Each had one read, and of four that the way holds three idled."""
    book, _ = on_probation(A, B)
    for node in (C, D):
        book.set_credit(node, 0)
    assert {node: len(runs) for node, runs in book.grant(1000.0).items()} == {A: 2, B: 2}
    book, _ = on_probation(A)
    for node in (B, C, D):
        book.set_credit(node, 0)
    assert {node: len(runs) for node, runs in book.grant(1000.0).items()} == {A: 4}


def test_a_slow_node_does_not_wait_for_the_one_read_of_a_node_on_probation() -> None:
    """It reads one run at a time, and not the rest."""
    book, have = on_probation(A)
    for node in (C, D):
        book.set_credit(node, 0)
    taken(book, have, B, 992.0, 1000.0)
    given = book.grant(1000.0)
    assert B in book.readers.resting
    assert given[A][0] == 0, "the first is its"
    assert sum(map(len, given.values())) == 4


@pytest.mark.parametrize(("runs", "reads"), [(400, True), (200, False)])
def test_a_node_on_probation_gets_none_of_the_last_runs(runs: int, reads: bool) -> None:
    """All others waited ten seconds for it at the end of a storm. It rests as long as 256 of their reads take."""
    book, have = make(runs, in_flight=4, most_in_flight=4)
    for node in (A, B, C, D):
        book.set_credit(node, 1)
    book.readers.times.on_read(have.roster.members[A], 1.0)
    taken(book, have, D, 0.0, 8.0)
    now = 1000.0
    book.expire(now)  # its rest is over
    assert (D in book.grant(now)) == reads
    for _ in range(runs):
        now += 1.0
        for run, lease in list(book.leases.items()):
            if lease.node != D or now >= lease.since + 8.0:
                finish(book, have, lease.node, run, now)
        again = book.grant(now)
        assert reads or D not in again
    assert not book.free
