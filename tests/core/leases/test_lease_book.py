"""Which node may read which run from the origin."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.leases import lease_book
from p2pcache.core.membership.member_record import Reach
from p2pcache.core.protocol.messages import run_bits
from p2pcache.errors import RemoteProtocolError
from tests.core.leases.leases_kit import NODES, SETTINGS, A, B, C, D, finish, make


def test_fair_share_in_file_order() -> None:
    book, _ = make()
    for node in (A, B, C, D):
        book.set_credit(node, 8)
    given = book.grant(0.0)
    book.check()
    assert sorted(run for runs in given.values() for run in runs) == list(range(16))
    assert [len(given[n]) for n in (A, B, C, D)] == [4, 4, 4, 4]
    assert all(runs == sorted(runs) for runs in given.values())
    assert book.grant(0.0) == {}


def test_at_most_the_credit() -> None:
    book, _ = make()
    book.set_credit(A, 3)
    assert book.grant(0.0) == {A: [0, 1, 2]}
    book.set_credit(A, 4)
    assert book.grant(0.0) == {A: [3]}


def test_readers_share_evenly_whatever_they_say() -> None:
    book, _ = make(runs=400)
    book.set_credit(A, 1 << 40)  # a member may say what it likes
    book.set_credit(B, 1 << 40)
    assert [len(runs) for runs in book.grant(0.0).values()] == [8, 8]
    book.set_credit(B, 0)  # what it reads goes on
    assert not book.grant(0.0)
    assert len(book.leases) == 16
    book.check()


def test_each_reader_has_a_lease_and_few_of_many_readers_have() -> None:
    """Reads that share the way end together, and until then there is nothing to spread."""
    book, have = make(runs=400, in_flight=SETTINGS.in_flight)
    for node in range(1, 7):
        book.set_credit(node, 1)
    assert len(book.grant(0.0)) == SETTINGS.in_flight
    finish(book, have, book.leases[0].node, 0, 1.0)
    assert book.readers.concurrency.limit == 6
    for node in range(7, 40):
        book.set_credit(node, 1)
    assert book.readers.concurrency.limit == 9, "as many as fill a link"
    assert len(book.grant(1.0)) == 9 - 3


def test_a_finished_lease_makes_room() -> None:
    book, have = make()
    book.set_credit(A, 1)
    assert book.grant(0.0) == {A: [0]}
    finish(book, have, A, 0, 1.0)
    assert book.grant(1.0) == {A: [1]}
    assert book.done == 1


def test_leases_expire_unless_renewed() -> None:
    book, _ = make()
    book.set_credit(A, 2)
    book.grant(0.0)
    book.renew(A, 0b01, 10.0)
    assert book.next_wakeup() == 15.0
    assert book.expire(15.0)
    book.check()
    assert set(book.leases) == {0}
    assert book.done == 0b10  # until it is known that nobody has it
    book.set_free(0b10)
    book.set_credit(A, 0)
    book.set_credit(B, 1)
    assert book.grant(15.0) == {B: [1]}


def test_a_read_nobody_knew_of_is_adopted() -> None:
    book, have = make()
    book.renew(A, 0b110, 0.0)
    book.check()
    assert set(book.leases) == {1, 2}
    have[B] = 1 << 5
    book.on_have(B, 1 << 5, 0.0)
    book.renew(B, 1 << 5, 0.0)
    book.renew(B, 1 << 1, 0.0)
    book.check()
    assert book.leases[1].node == A
    assert 5 not in book.leases


def test_an_adopted_read_that_ends_is_the_first_of_a_new_tracker() -> None:
    """Slow nodes sat on more adopted reads than a new tracker begins with, and quick ones got nothing for 40 s."""
    book, have = make(in_flight=SETTINGS.in_flight)
    for node in range(1, 10):
        book.set_credit(node, 1)
    book.renew(A, 0b111111, 0.0)
    assert not book.grant(0.0)
    finish(book, have, A, 0, 5.0, flow_s=4.0)
    assert len(book.leases) + len(book.grant(5.0)) > SETTINGS.in_flight + 1


def test_a_fresh_announcement_ends_unlisted_leases() -> None:
    book, _ = make()
    book.set_credit(A, 4)
    book.grant(0.0)
    assert book.keep_only(A, 0b1001)
    assert not book.keep_only(A, 0b1001)
    book.check()
    assert set(book.leases) == {0, 3}
    assert book.done == 0b110


def test_failed_goes_to_somebody_else() -> None:
    book, _ = make(in_flight=2)
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    first = book.grant(0.0)
    (run,) = first[A]
    book.on_failed(A, 1 << run, 1.0)
    book.check()
    finished = first[B][0]
    book.on_failed(B, 1 << finished, 1.0)
    again = book.grant(2.0)
    assert again[A] == [finished]
    assert again[B] == [run]


def test_the_only_reader_tries_again_after_a_rest() -> None:
    book, _ = make()
    book.set_credit(A, 1)
    book.grant(0.0)
    book.on_failed(A, 1, 1.0)
    assert book.grant(1.0) == {}
    wakeup = book.next_wakeup()
    assert wakeup is not None
    assert 1.0 < wakeup <= 1.5
    assert book.grant(wakeup) == {A: [0]}
    book.check()


def test_rests_grow() -> None:
    book, _ = make()
    book.set_credit(A, 1)
    now = rest = 0.0
    for _ in range(12):
        assert book.grant(now)
        book.on_failed(A, 1, now)
        rest = (book.next_wakeup() or 0) - now
        now += rest
    assert 4.0 <= rest <= 8.0


def test_a_stuck_run_is_read_by_one_of_the_few_nodes_that_the_tracker_could_dial() -> None:
    """20 nodes, 18 behind firewalls, which the tracker did not believe: 25 of 38 reads were of use to these alone."""
    for reached, most in (({7, 99}, True), ({5, 6, 7, 8, 9}, False)):
        book, have = make(8, in_flight=SETTINGS.in_flight)
        for node in reached & {*NODES}:
            have.roster.members[node].reach = Reach.REACHABLE
        have[1] = 0xFF
        for node in range(1, 11):
            book.set_credit(node, 2)
        book.on_have(1, 0xFF, 0.0)
        book.regrant(0b111)
        given = book.grant(5.0)
        assert sum(map(len, given.values())) == 3
        assert (given.get(7) == [0, 1]) is most


def test_a_stuck_run_is_read_by_a_node_that_may_be_reached_before_those_that_cannot() -> None:
    """Of eight nodes behind firewalls one wasn't known as such: the others were chosen, and passed over for it."""
    book, have = make(8)
    holder = 9
    for node in (holder, A, B, C, D):
        book.set_credit(node, 4)
    for node in (B, C, D):
        have.roster.members[node].reach = Reach.UNREACHABLE
        book.readers.review(have.roster.members[node])
    finish(book, have, holder, 0, 0.0)
    have[holder] = 0xFF
    book.on_have(holder, 0xFF, 0.0)
    book.set_credit(holder, 0)
    book.regrant(0b1111)
    assert book.grant(5.0) == {A: [0, 1, 2, 3]}


def test_only_the_holder_of_a_lease_reports_a_wrong_read() -> None:
    book, _ = make()
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    given = book.grant(0.0)
    run = given[A][0]
    assert book.on_failed(B, 1 << run, 1.0) == []
    assert book.leases[run].node == A
    assert book.on_failed(A, 1 << run | 1 << given[B][0], 1.0) == [run]
    book.check()


def test_a_lease_goes_on_whoever_has_its_run_meanwhile() -> None:
    """Two members that lie together ended any read of another one."""
    book, have = make()
    book.set_credit(A, 1)
    book.grant(0.0)
    for node in (B, C, D):
        have[node] = 1
        book.on_have(node, 1, 1.0)
    assert book.leases[0].node == A
    book.on_returned(A, 1)
    assert book.done == 1
    book.check()


def test_a_failed_lease_whose_run_came_meanwhile_is_done() -> None:
    book, have = make()
    book.set_credit(A, 1)
    book.grant(0.0)
    have[B] = 1
    book.on_have(B, 1, 1.0)
    book.on_failed(A, 1, 2.0)
    book.check()
    assert book.done == 1


@pytest.mark.parametrize("left", [True, False])
def test_a_failed_lease_is_free_if_the_holder_of_its_run_left_or_lied(left: bool) -> None:
    book, have = make()
    book.set_credit(A, 1)
    book.grant(0.0)
    have[B] = 1
    book.on_have(B, 1, 1.0)
    if left:
        have.roster.remove(B)
    else:
        have[B] = 0
    book.on_failed(A, 1, 2.0)
    book.check()
    assert book.done == 0
    assert book.free & 1


def test_runs_of_a_node_that_left_wait_until_they_are_known_to_be_lost() -> None:
    book, _ = make()
    book.set_credit(A, 2)
    book.grant(0.0)
    book.drop_reader(A)
    book.check()
    assert book.done == 0b11
    assert not book.leases
    book.set_free(0b11)
    assert book.done == 0


def test_returned_counts_as_done_until_known_better() -> None:
    book, _ = make()
    book.set_credit(A, 1)
    book.grant(0.0)
    assert book.on_returned(A, 0b11)
    assert not book.on_returned(B, 0b11)
    assert book.done == 1


def test_a_book_is_idle_when_nothing_is_left_and_nothing_is_read() -> None:
    book, have = make(2)
    book.set_credit(A, 2)
    assert not book.idle
    book.grant(0.0)
    assert not book.idle
    have[A] = 0b11
    book.on_have(A, 0b11, 1.0)
    assert book.idle


def test_whether_a_book_is_idle_costs_no_look_at_each_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message of a stuck node asks: with 10,000 readers 4.6 ms each, and all of them may be stuck."""
    book, have = make(2)
    book.set_credit(A, 2)
    book.grant(0.0)
    monkeypatch.setattr(lease_book, "lacked_by", None)
    assert not book.idle
    have[A] = 0b11
    book.on_have(A, 0b11, 1.0)
    assert book.idle


def test_run_numbers_are_checked() -> None:
    assert run_bits([0, 9], 10) == 0b1000000001
    for bad in (-1, 10, 1 << 62):
        with pytest.raises(RemoteProtocolError):
            run_bits([bad], 10)


def test_urgent_runs_are_granted_first_in_order() -> None:
    book, have = make()
    book.on_urgent(1 << 40 | 1 << 50)
    book.set_credit(A, 3)
    assert book.grant(0.0) == {A: [40, 50, 0]}
    finish(book, have, A, 40, 1.0)
    assert book.grant(1.0) == {A: [1]}


def test_lost_runs_are_granted_last_unless_a_loader_waits_for_them() -> None:
    """Their holder may be starting again. The loader told of it once, while others still looked for them."""
    book, _ = make(8)
    book.set_held(0b111)
    book.on_urgent(0b010)
    book.set_free(0b111)
    book.set_credit(A, 8)
    assert book.grant(0.0) == {A: [1, 3, 4, 5, 6, 7, 0, 2]}


def test_a_part_that_was_lost_does_not_wait_for_the_whole_model() -> None:
    book, _ = make(64, in_flight=4)
    book.set_held(0b11)
    book.set_free(0b11)
    book.set_credit(A, 1, 0b11)
    for node in range(2, 10):
        book.set_credit(node, 1)
    assert {0, 1} < {run for runs in book.grant(0.0).values() for run in runs}


def test_no_node_gets_a_run_that_it_has_no_use_for() -> None:
    book, _ = make()
    book.set_credit(A, 4, 1 << 40 | 1 << 41)
    assert book.grant(0.0) == {A: [40, 41]}
    book.check()
    book.set_credit(B, 2)
    assert book.grant(0.0) == {B: [0, 1]}
    book.set_credit(C, 1, 1 << 63)
    assert book.grant(0.0) == {C: [63]}, "though B, who wants everything, has no room"
    book.set_credit(A, 4)
    assert book.grant(0.0) == {A: [2, 3]}
    book.check()


def test_who_failed_at_its_part_of_a_model_tries_again() -> None:
    """Two nodes with a part of the model each, one failed read each: no run was ever granted again."""
    book, _ = make(4)
    book.set_credit(A, 8, 0b0011)
    book.set_credit(B, 8, 0b1100)
    for node, runs in book.grant(0.0).items():
        book.on_failed(node, bitset.of(runs), 1.0)
    assert book.grant(10.0) == {A: [0, 1], B: [2, 3]}


def test_who_failed_at_what_an_unreachable_member_has_tries_again() -> None:
    """The holder is out of the others' reach, so they read the run themselves, also after a failure."""
    book, have = make(2)
    book.set_credit(A, 1)
    book.set_credit(B, 1)
    given = book.grant(0.0)
    (mine,), (its,) = given[A], given[B]
    finish(book, have, A, mine, 0.5)
    finish(book, have, B, its, 0.5)
    have.roster.members[B].reach = Reach.UNREACHABLE
    book.readers.review(have.roster.members[B])
    book.regrant(1 << its)
    assert book.grant(1.0) == {A: [its]}
    book.on_failed(A, 1 << its, 2.0)
    assert book.grant(10.0) == {A: [its]}


def test_a_book_is_idle_when_nobody_wants_what_is_left() -> None:
    """A stuck member is helped without a cap while storage is idle, also with partial pulls."""
    book, have = make(4)
    book.set_credit(A, 8, 0b0011)
    book.grant(0.0)
    idle = [book.idle]
    for run in (0, 1):
        finish(book, have, A, run, 0.5)
    assert book.free == 0b1100
    idle.append(book.idle)
    book.set_credit(B, 8)
    idle.append(book.idle)
    assert idle == [False, True, False]
