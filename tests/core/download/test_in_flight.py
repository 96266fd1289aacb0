"""Requests to neighbours: which runs they hold, and what they count for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core.download.in_flight import Requests
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.core.swarm.snapshot import InFlight
from p2pcache.errors import LocalProtocolError
from p2pcache.ids import NodeId
from tests.core.context_kit import context_of

RUN_BYTES = (100, 200, 300)
ANSWER_S = 0.25


class Desk:
    """The requests of one node; checks after each step."""

    def __init__(self, *nodes: NodeId) -> None:
        self.states = RunStates(len(RUN_BYTES), have=0)
        book = PeerBook(Boundaries(1, len(RUN_BYTES)))
        for node in nodes:
            book.on_connected(node, 0b111, 0.0)
        self.peers = book.peers
        timing = RequestTiming()
        timing.on_answer(ANSWER_S)
        self.requests = Requests(context_of(self.states, book, RUN_BYTES), timing)

    def ask(self, node: NodeId, run: int, now: float = 0.0, *, waits: bool = False) -> int:
        number = self.requests.on_sent(self.peers[node], run, now, waits=waits)
        self.check()
        return number

    def end(self, number: int, now: float) -> None:
        self.cancel(number, now)
        self.requests.pop(number)

    def cancel(self, number: int, now: float) -> None:
        assert self.requests.retire(number, now)
        assert not self.requests.retire(number, now)
        self.check()

    def doubt(self, node: NodeId) -> None:
        self.peers[node].delivers = False
        self.requests.recount()
        self.check()

    def check(self) -> None:
        self.states.check()
        self.requests.check()


def test_a_run_is_requested_until_the_last_request_for_it_ends() -> None:
    desk = Desk(2, 3)
    first, second = desk.ask(2, 1), desk.ask(3, 1)
    assert desk.requests.live_bytes == 400
    desk.end(first, 1.0)
    assert desk.states.requested == 0b010
    desk.end(second, 2.0)
    assert desk.states.requested == 0
    assert (desk.requests.flowing, desk.requests.live_bytes) == (0, 0)


def test_a_request_that_waits_flows_and_counts_from_the_end_of_the_one_before_it() -> None:
    desk = Desk(2, 3)
    before, after = desk.ask(2, 0), desk.ask(2, 1, now=0.5, waits=True)
    desk.ask(3, 2)
    one = desk.requests.live[after]
    assert (one.waits, desk.requests.flowing) == (True, 2)
    desk.end(before, 4.0)
    assert (one.waits, one.since, desk.requests.flowing) == (False, 4.0 - ANSWER_S, 2)
    assert one.started == 0.5, "its age for people counts from when it was sent"


def test_the_end_of_another_neighbours_request_starts_nobody() -> None:
    desk = Desk(2, 3)
    desk.ask(2, 0)
    after, other = desk.ask(2, 1, waits=True), desk.ask(3, 2)
    desk.end(other, 4.0)
    assert desk.requests.live[after].waits


def test_a_run_that_is_only_probed_counts_as_missing() -> None:
    desk = Desk(2)
    desk.peers[2].delivers = False
    number = desk.ask(2, 0)
    assert (desk.states.free, desk.requests.flowing) == (0b111, 0)
    assert desk.requests.live_bytes == 100, "its bytes may come all the same"
    desk.end(number, 1.0)
    assert desk.requests.live_bytes == 0


def test_a_doubted_neighbour_frees_its_runs_but_not_those_of_others() -> None:
    desk = Desk(2, 3)
    desk.ask(2, 0)
    desk.ask(2, 1, waits=True)
    desk.ask(3, 1)
    desk.doubt(2)
    assert desk.states.requested == 0b010
    assert desk.requests.flowing == 1


def test_a_probe_does_not_hold_the_run_of_a_request_that_ends() -> None:
    desk = Desk(2, 3)
    desk.ask(2, 1)
    desk.doubt(2)
    desk.end(desk.ask(3, 1), 1.0)
    assert desk.states.requested == 0


def test_a_request_ends_once() -> None:
    desk = Desk(2)
    number = desk.ask(2, 0)
    desk.end(number, 1.0)
    for wrong in (number, number + 1):
        with pytest.raises(LocalProtocolError, match="isn't in flight"):
            desk.requests.pop(wrong)


def test_people_see_the_live_ones_with_their_ages() -> None:
    desk = Desk(2, 3)
    cancelled, _ = desk.ask(2, 0), desk.ask(3, 2, now=1.0)
    desk.cancel(cancelled, 2.0)
    assert list(desk.requests.views(5.0)) == [InFlight(2, 4.0, 3)]


steps = st.tuples(st.sampled_from(("ask", "end", "doubt")), st.integers(0, 11))


@settings(deadline=None, max_examples=100)
@given(st.lists(steps, max_size=30))
def test_the_counts_hold_whatever_happens(script: list[tuple[str, int]]) -> None:
    desk = Desk(2, 3, 4, 5)
    now = 0.0
    for what, dice in script:
        now += 1.0
        node, run, open_ = 2 + dice % 4, dice // 4, list(desk.requests.live)
        peer = desk.peers[node]
        if what == "ask" and peer.in_flight < 2 and not peer.owed >> run & 1:
            desk.ask(node, run, now, waits=peer.in_flight == 1 and peer.delivers)
        elif what == "end" and open_:
            desk.end(open_[dice % len(open_)], now)
        elif what == "doubt":
            desk.doubt(node)
    for number in list(desk.requests.live):
        desk.end(number, now)
    assert desk.states.requested == 0
    assert (desk.requests.flowing, desk.requests.live_bytes) == (0, 0)


@pytest.mark.parametrize(("neighbours", "each"), [(1, 7), (2, 3), (3, 2), (8, 1)])
def test_the_usual_requests_are_shared_by_those_that_deliver(neighbours: int, each: int) -> None:
    """A doubted neighbour is asked for one run at a time, so it has no share."""
    desk = Desk(*range(2, 2 + neighbours), 50, 51)
    for node in (50, 51):
        desk.doubt(node)
    assert desk.requests.per_peer == each


def test_a_node_whose_neighbours_are_all_doubted_asks_as_if_there_were_one() -> None:
    desk = Desk(2, 3)
    desk.doubt(2)
    desk.doubt(3)
    assert desk.requests.per_peer == 7
