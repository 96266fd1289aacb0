"""Readers that have far fewer runs than others: their links are slow, to storage as well."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.leases.lease_book import LeaseBook
from tests.core.leases.leases_kit import A, B, C, D, Have, finish, make, run_swarm, taken


def came(book: LeaseBook, runs: int) -> None:
    """The first runs were read by some member, and others get them."""
    book.set_held(bitset.full(runs))
    book.ends["done"] = runs


def says(book: LeaseBook, have: Have, node: int, runs: int) -> None:
    """A heartbeat of a node that has got so many of the runs that are done."""
    have[node] |= bitset.lowest(book.done & ~have[node], runs)
    book.on_progress(node)
    book.check()


def storm(
    laggard: int, *, done: int = 40, first: int = 0, in_flight: int = 4
) -> tuple[LeaseBook, Have]:
    """Four nodes have read nothing. While `done` runs came to the swarm all of them got these, a laggard a tenth."""
    book, have = make(2000, in_flight=in_flight, most_in_flight=in_flight)
    came(book, first)
    for node in (A, B, C, D):
        book.set_credit(node, 8)
        says(book, have, node, 0)
    came(book, first + done)
    for node in (A, B, C, D):
        says(book, have, node, done // 10 if node == laggard else done)
    return book, have


@pytest.mark.parametrize("laggard", [C, D])
def test_a_node_that_lags_gets_no_lease_though_it_never_read(laggard: int) -> None:
    """It read one of the last runs by chance, as nothing was known of it, and all others waited six seconds for it."""
    book, _ = storm(laggard)
    given = book.grant(1.0)
    assert given.keys() == {A, B, C, D} - {laggard}
    assert sum(map(len, given.values())) == 4


def test_a_node_that_keeps_up_again_reads_like_the_others() -> None:
    book, have = storm(D)
    came(book, 80)
    says(book, have, D, 36)
    assert book.grant(1.0).keys() == {A, B, C, D}


def test_a_node_that_comes_late_does_not_lag() -> None:
    """It lacks most runs, and gets as many as the others meanwhile, or half as many. Half of all nodes may be late."""
    book, have = storm(0, first=1000)
    assert book.grant(1.0).keys() == {A, B, C, D}
    came(book, 1080)
    says(book, have, D, 20)
    assert not have.roster.members[D].slow


def test_while_few_runs_came_nobody_lags() -> None:
    """A node may have its runs in hand while others have theirs."""
    book, _ = storm(D, done=30)
    assert book.grant(1.0).keys() == {A, B, C, D}


def test_of_two_nodes_none_lags() -> None:
    """Nobody knows which of them is as nodes usually are."""
    book, have = make(2000)
    for done in (0, 40, 80):
        came(book, done)
        for node in (A, B):
            book.set_credit(node, 1)
            says(book, have, node, 4 if node == B else 40)
    assert book.grant(1.0).keys() == {A, B}


def test_a_node_that_wants_a_part_does_not_lag() -> None:
    """It gets none of the others."""
    book, have = make(2000, in_flight=4)
    for done in (0, 40):
        came(book, done)
        for node in (A, B, C, D):
            book.set_credit(node, 1, 0b1111 << 100 if node == D else bitset.full(2000))
            says(book, have, node, 0 if node == D else 40)
    assert D in book.grant(1.0)


def test_runs_that_a_member_brings_along_make_nobody_lag() -> None:
    """A node that has the whole model comes, and is gone before others got much of it."""
    book, have = storm(0)
    book.set_held(bitset.full(2000))
    for node in (A, B, C, D):
        says(book, have, node, 1)
    book.set_free(bitset.full(2000) & ~bitset.full(44))
    assert book.grant(1.0).keys() == {A, B, C, D}


def test_a_quarter_of_the_readers_may_lag_and_no_more() -> None:
    book, have = make(2000, in_flight=4)
    for done in (0, 40):
        came(book, done)
        for node in (A, B, C, D):
            book.set_credit(node, 1)
            says(book, have, node, done if node in (A, B) else done // 20)
    assert len(book.readers.lagging) == 1


def test_a_node_that_lags_is_judged_anew_when_it_pulls_again() -> None:
    """Its pull was cancelled, or it wants a part now, of which others' runs say nothing."""
    for credit, wanted in ((0, bitset.full(2000)), (8, 0b1111 << 100)):
        book, have = storm(D)
        book.set_credit(D, credit, wanted)
        came(book, 400)
        book.set_credit(D, 8)
        says(book, have, D, 0)
        assert not have.roster.members[D].slow


@pytest.mark.parametrize("seed", range(16))
def test_a_run_that_a_loader_waits_for_goes_to_a_quick_node(seed: int) -> None:
    """A slow node had it by the dice, though the others had none, and all waited for eight of their reads."""
    book, _ = storm(D)
    book.readers.dice.seed(seed)
    book.on_urgent(1 << 40)
    assert all(40 in runs or node != D for node, runs in book.grant(1.0).items())


def test_nodes_that_lag_alone_read_as_others_would() -> None:
    book, _ = storm(D)
    for node in (A, B, C):
        book.set_credit(node, 0)
    assert {node: len(runs) for node, runs in book.grant(1.0).items()} == {D: 4}


def test_a_slow_reader_is_tried_again_when_it_has_rested() -> None:
    book, have = make(2000, in_flight=4, most_in_flight=4)
    run_swarm(book, have, {A: 1.0, B: 1.0, C: 1.0, D: 3.0}, 20.0)
    assert have.roster.members[D].slow
    now = 1000.0
    book.expire(now)
    for node in (A, B, C, D):
        book.set_credit(node, 8)
    given = book.grant(now)
    assert given.keys() == {A, B, C, D}
    finish(book, have, D, given[D][0], now + 1.0)
    assert not have.roster.members[D].slow


def test_a_slow_reader_that_lags_is_not_tried_again() -> None:
    """Each time storage's other readers had a place less while it read one run more, and it may be the last one."""
    book, have = storm(D)
    taken(book, have, D, 0.0, 8.0)
    book.expire(1000.0)
    assert not book.readers.resting
    assert D not in book.grant(1000.0)
