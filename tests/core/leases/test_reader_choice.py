"""Which reader gets a lease where there are racks: each uplink carries an equal share of the origin's bytes."""

import dataclasses
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.leases.reader_choice import RackBalance
from p2pcache.core.membership.member_record import Place
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol.messages import Member
from p2pcache.core.racks.bridge_slots import holders
from p2pcache.core.racks.settings import BRIDGE_SLOTS
from p2pcache.core.settings import LeaseSettings

RUNS = 640


class Storm:
    """A book whose readers read their leases at once, in the order of the grants."""

    def __init__(self, racks: dict[Place, int], most: int = 16) -> None:
        self.roster = Roster("ab" * 32, RUNS, 1)
        self.places: dict[int, Place] = {}
        for place, size in racks.items():
            for _ in range(size):
                self.enter(place)
        self.roster.flush_list(0.0)
        settings = dataclasses.replace(LeaseSettings(), in_flight=16, most_in_flight=most)
        self.book = LeaseBook(self.roster, settings, 7)
        for node in self.places:
            self.book.set_credit(node, 8)
        self.readers: dict[int, int] = {}  # run -> its reader
        self.now = 0.0

    def enter(self, place: Place) -> int:
        node = 7919 * (len(self.places) + 1)
        self.places[node] = place
        self.roster.enter(Member(node, "h:1", place[1], place[0]))
        return node

    def round(self, slow: frozenset[int] = frozenset()) -> dict[int, list[int]]:
        """Leases go out, and each node that isn't slow reads its own."""
        given = self.book.grant(self.now)
        self.now += 0.1
        for node, runs in given.items():
            for run in runs if node not in slow else ():
                self.readers[run] = node
                record = self.roster.members[node]
                self.roster.set_have(record, record.have | 1 << run)
                self.book.on_have(node, 1 << run, self.now)
        self.book.check()
        return given

    def shares(self) -> Counter[Place]:
        return Counter(self.places[node] for node in self.readers.values())


@pytest.mark.parametrize("most", [16, 128])
def test_each_rack_reads_as_much_as_the_others_whatever_its_size(most: int) -> None:
    """Also where storage is far, and they read up to eight times as many at once."""
    storm = Storm({("", "a"): 40, ("", "b"): 10, ("", "c"): 4, ("", "d"): 25}, most)
    while storm.round():
        pass
    assert sorted(storm.shares().values()) == pytest.approx(
        [RUNS / 4] * 4, abs=2 if most == 16 else 10
    )


def test_a_run_goes_to_the_node_that_would_bring_it_into_its_rack_anyway() -> None:
    storm = Storm({("", "a"): 20, ("", "b"): 20})
    while storm.round():
        pass
    bridges = {
        place: holders(tuple(sorted(n for n, p in storm.places.items() if p == place)))
        for place in storm.roster.places
    }
    for run, node in storm.readers.items():
        assert bridges[storm.places[node]][run % BRIDGE_SLOTS] == node


def test_sites_read_the_same_and_so_do_the_racks_of_each() -> None:
    storm = Storm({("x", "a"): 20, ("y", "a"): 5, ("y", "b"): 5, ("y", "c"): 5, ("y", "d"): 5})
    while storm.round():
        pass
    shares = storm.shares()
    assert shares.pop(("x", "a")) == pytest.approx(RUNS / 2, abs=2)
    assert sorted(shares.values()) == pytest.approx([RUNS / 8] * 4, abs=2)


def test_a_rack_that_is_slow_gets_no_more_than_it_reads() -> None:
    storm = Storm({("", "a"): 20, ("", "b"): 20})
    slow = frozenset(node for node, place in storm.places.items() if place[1] == "b")
    for _ in range(20):
        storm.round(slow)
    assert storm.shares().keys() == {("", "a")}
    assert len(storm.readers) > 100


def test_a_rack_that_comes_late_gets_its_turn_and_not_all_that_is_left() -> None:
    storm = Storm({("", "a"): 20, ("", "b"): 20})
    for _ in range(20):
        storm.round()
    fresh = [storm.enter(("", "c")) for _ in range(20)]
    for node in fresh:
        storm.book.set_credit(node, 8)
    before = len(storm.readers)
    for _ in range(5):
        storm.round()
    late = sum(storm.readers[run] in fresh for run in list(storm.readers)[before:])
    assert 0.3 <= late / (len(storm.readers) - before) <= 0.5


def test_nodes_that_left_or_cannot_read_are_passed_over() -> None:
    storm = Storm({("", "a"): 3, ("", "b"): 3})
    gone = [node for node, place in storm.places.items() if place[1] == "b"]
    for node in gone[:2]:
        storm.book.drop_reader(node)
        storm.roster.remove(node)
    storm.book.drop_reader(gone[2])
    storm.roster.remove(gone[2])
    while storm.round():
        pass
    assert storm.shares() == {("", "a"): RUNS}


def test_without_labels_nothing_is_dealt() -> None:
    storm = Storm({("", ""): 10})
    assert list(RackBalance(storm.roster, Random(1)).order(0)) == []


@given(st.data())
def test_racks_into_which_little_is_read_come_first(data: st.DataObject) -> None:
    """Sites are compared before racks."""
    roster = Roster("ab" * 32, RUNS, 1)
    balance = RackBalance(roster, Random(1))
    reading, read = Counter[str | Place](), Counter[str | Place]()  # and ended
    for node in range(1, data.draw(st.integers(2, 12))):
        place = data.draw(st.sampled_from(("", "s"))), data.draw(st.sampled_from("abc"))
        roster.enter(Member(node, "h:1", place[1], place[0]))
        for leases, ends in ((reading, False), (read, True)):
            for _ in range(data.draw(st.integers(0, 3))):
                balance.on_begun(place)
                leases += Counter((place, place[0]))
                if ends:
                    balance.on_ended(place)
    places = [roster.members[node].place for node in balance.order(3)]
    assert sorted(places) == (sorted(roster.places) if len(roster.places) > 1 else [])
    burdens = [
        tuple((reading[one], reading[one] + read[one]) for one in (place[0], place))
        for place in places
    ]
    assert burdens == sorted(burdens)


def test_a_few_readers_of_many_racks_have_all_leases() -> None:
    """They had the share of their two racks: 12 s for 5."""
    storm = Storm({("", name): 1 for name in "abcdefgh"})
    for node in list(storm.places)[2:]:
        storm.book.set_credit(node, 0)
    assert sum(map(len, storm.round().values())) == 16
