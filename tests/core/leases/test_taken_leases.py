"""Leases that are taken from slow nodes."""

import pytest

from p2pcache.core.membership.member_record import Reach
from p2pcache.core.protocol.messages import Member
from tests.core.leases.leases_kit import A, B, C, finish, hurry, make, taken


def test_a_lease_is_taken_over_when_it_is_far_too_old() -> None:
    book, have = make(in_flight=2, most_in_flight=2)
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    slow = book.grant(0.0)[A][0]
    other = 1 - slow
    finish(book, have, B, other, 0.5)
    assert hurry(book, slow, 0.9) is None
    assert hurry(book, slow, 2.1) == A
    assert hurry(book, 50, 2.1) is None
    book.check()
    assert book.grant(2.1)[B] == [slow]


def test_reads_that_are_silent_together_have_twice_the_time() -> None:
    """Storage fell silent for half a second. All reads began again, and most were taken back just before their ends."""
    book, have = make(in_flight=3, most_in_flight=3)
    for node in (A, B, C):
        book.set_credit(node, 1)
    given = book.grant(0.0)
    finish(book, have, C, given[C][0], 0.5)
    slow = given[A][0]
    assert hurry(book, slow, 2.1) is None
    assert hurry(book, slow, 4.1) == A


@pytest.mark.parametrize(
    "case", ["others read", "a loader waits", "others read nothing", "no run is left"]
)
def test_a_slow_read_is_waited_for_while_others_bring_more(case: str) -> None:
    """Eight nodes, one at a tenth: storage was read for two to four runs more than there were, and none came sooner."""
    book, have = make(in_flight=2, most_in_flight=2)
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    slow = book.grant(0.0)[A][0]
    finish(book, have, B, 1 - slow, 0.5)
    now = 0.5
    while now < 3.0:
        (run,) = book.grant(now)[B]
        now += 0.5
        finish(book, have, B, run, now)
    if case == "a loader waits":
        book.on_urgent(1 << slow)
    if case == "others read nothing":
        now += 1.0
    if case == "no run is left":
        have[B] |= book.free
        book.on_have(B, book.free, now)
    taken = book.take_over(slow, have.roster.members[C], now)
    assert taken == (None if case == "others read" else A)


def test_an_origin_that_became_slow_is_not_read_over_and_over() -> None:
    book, have = make(2, in_flight=2, most_in_flight=2)
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    run = book.grant(0.0)[A][0]
    assert hurry(book, run, 1000.0) is None, "nothing is known of how long a read takes"
    finish(book, have, B, 1 - run, 0.5)
    taken = []
    now, since = 0.5, 0.0
    while now < 100:
        now += 0.5
        if hurry(book, run, now) is not None:
            taken.append(now - since)
            since = now
            book.grant(now)
    assert taken == pytest.approx([2.0, 4.0, 8.0, 16.0, 32.0], abs=0.5)


def test_a_lease_that_is_taken_goes_to_somebody_else() -> None:
    """In two racks both slow readers were as good as each other, and the loser began its read again."""
    for first in (A, B):
        book, have = make(64, in_flight=2, most_in_flight=2)
        for node, rack in ((A, "r1"), (B, "r2")):
            have.roster.enter(Member(node, "h:1", rack=rack))
            book.set_credit(node, 2)
        leases = {node: runs[0] for node, runs in book.grant(0.0).items()}
        other = A + B - first
        finish(book, have, other, leases[other], 0.5)
        taken(book, have, other, 0.0, 4.0)
        assert book.take_over(leases[first], have.roster.members[C], 100.0) == first
        assert leases[first] in book.grant(100.0)[other]
        book.check()


def test_a_lease_that_nobody_else_would_read_is_not_taken() -> None:
    book, have = make(64, in_flight=2, most_in_flight=2)
    book.set_credit(A, 2)
    first, second = book.grant(0.0)[A]
    finish(book, have, A, first, 0.5)
    assert hurry(book, second, 1000.0) is None
    book.set_credit(B, 1)
    assert hurry(book, second, 1000.0) == A


def test_a_slow_read_is_not_taken_for_a_node_that_may_only_read_for_itself() -> None:
    """The slow one alone was reachable: it got each run back at once, and lost what it had read of it."""
    book, have = make(64, in_flight=2, most_in_flight=2)
    for node in (A, B):
        book.set_credit(node, 1)
    slow = book.grant(0.0)[A][0]
    finish(book, have, B, 1 - slow, 0.5)
    reader = have.roster.members[B]
    reader.reach = Reach.UNREACHABLE
    book.readers.review(reader)
    assert hurry(book, slow, 1000.0) is None
    reader.reach = Reach.REACHABLE
    book.readers.review(reader)
    assert hurry(book, slow, 1000.0) == A


@pytest.mark.parametrize("lags", [True, False])
def test_a_slow_read_is_not_taken_while_another_slow_one_has_no_room(lags: bool) -> None:
    """The other had as many leases as it works on, so the run went back to the loser and began again."""
    book, have = make(64, in_flight=16, most_in_flight=16)
    for node in (A, B):
        book.set_credit(node, 2)
    given = book.grant(0.0)
    slow = given[A][0]
    finish(book, have, A, given[A][1], 0.5)
    other = have.roster.members[B]
    other.lags = lags
    book.readers.review(other)
    taken_from = hurry(book, slow, 1000.0)
    assert taken_from == (None if lags else A)
    assert slow not in book.grant(1000.0).get(A, ())
    book.set_credit(B, 3)
    assert taken_from or hurry(book, slow, 1000.0) == A
    assert slow in book.grant(1000.0)[B]
