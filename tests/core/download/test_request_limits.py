"""How many requests flow at once."""

from p2pcache.core import bitset
from p2pcache.core.download.in_flight import Requests
from p2pcache.core.download.settings import NEAR_PLACES
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.ids import NodeId, RunSet
from tests.core.context_kit import context_of

SETTINGS = SwarmSettings()
USUAL = SETTINGS.outstanding
RUNS = 100
FULL = bitset.full(RUNS)
FAR = 50  # a node in another rack


class Desk:
    """The limits of node 1, with requests that are sent by hand."""

    def __init__(self, *, run_bytes: int = 1000, rack: tuple[NodeId, ...] = ()) -> None:
        boundaries = Boundaries(1, RUNS)
        if rack:
            boundaries.on_members((*rack, FAR), rack, (*rack, FAR))
        self.states = RunStates(RUNS, have=0)
        self.book = PeerBook(boundaries)
        self.requests = Requests(
            context_of(self.states, self.book, [run_bytes] * RUNS), RequestTiming()
        )

    def meet(self, node: NodeId, have: RunSet = FULL) -> Peer:
        peer = self.book.on_connected(node, have, now=0.0)
        assert peer is not None
        return peer

    def may_ask(self, *, across: bool = False) -> bool:
        return self.requests.may_ask(self.requests.usual, across=across)

    def ask(self, peer: Peer, count: int) -> None:
        for run in bitset.members(bitset.lowest(self.states.free, count)):
            self.requests.on_sent(peer, run, now=0.0)


def test_a_few_requests_flow_at_once() -> None:
    desk = Desk()
    desk.ask(desk.meet(2), USUAL - 1)
    assert desk.may_ask()
    desk.ask(desk.book.peers[2], 1)
    assert not desk.may_ask()


def test_a_link_that_holds_runs_has_places_of_its_own() -> None:
    desk = Desk()
    peer = desk.meet(2)
    desk.ask(peer, USUAL)
    peer.bdp.runs = 2  # and the next one
    assert not desk.may_ask(), "not measured yet"
    desk.requests.on_link_measured()
    desk.ask(peer, 2)
    assert desk.may_ask()
    desk.ask(peer, 1)
    assert not desk.may_ask()


def test_bytes_and_a_failed_disk_stop_everything() -> None:
    desk = Desk(run_bytes=SETTINGS.outstanding_bytes // 2)
    peer = desk.meet(2)
    desk.ask(peer, 1)
    assert desk.may_ask()
    desk.ask(peer, 1)
    assert not desk.may_ask()
    idle = Desk()
    idle.requests.halted = True
    assert not idle.may_ask()


def test_places_are_kept_for_the_rack() -> None:
    desk = Desk(rack=(1, 2, 3))
    far, near = desk.meet(FAR), desk.meet(2)
    desk.ask(far, USUAL)
    assert not desk.may_ask(across=True)
    for _ in range(NEAR_PLACES):
        assert desk.may_ask()
        desk.ask(near, 1)
    assert not desk.may_ask()


def test_without_racks_no_place_is_kept() -> None:
    desk = Desk()
    desk.ask(desk.meet(FAR), USUAL)
    assert not desk.may_ask()
