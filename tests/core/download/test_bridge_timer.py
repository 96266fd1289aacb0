"""When a node looks at what its bridges haven't brought."""

import math

from p2pcache.core import bitset
from p2pcache.core.download.bridge_timer import BridgeTimer
from p2pcache.core.download.in_flight import PeerRequest
from p2pcache.core.download.settings import VERY_LATE
from p2pcache.core.peers.peer_book import PeerBook
from p2pcache.core.peers.timing import RequestTiming
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunStates
from p2pcache.ids import RunSet
from tests.core.context_kit import context_of

SETTINGS = SwarmSettings()
LEAST_S = SETTINGS.cross_after_s
STUCK_S = SETTINGS.stuck_after_s
RUNS = 32
FULL = bitset.full(RUNS)
RACK = (1, 2, 3)
FAR = 50  # a node in another rack of the site


class Book(PeerBook):
    """Neighbours; notes the reviews of what waits beyond."""

    def __init__(self, boundaries: Boundaries) -> None:
        super().__init__(boundaries)
        self.reviews: list[bool] = []  # whether nothing had come for long

    def review_bridges(self, needed: RunSet, *, starved: bool) -> None:
        assert needed
        self.reviews.append(starved)
        super().review_bridges(needed, starved=starved)


class Desk:
    """Node 1 of a rack of three. A node elsewhere has all runs."""

    def __init__(self, *, took_s: float = 0.0, wanted: RunSet = FULL, racks: bool = True) -> None:
        boundaries = Boundaries(1, RUNS)
        if racks:
            boundaries.on_members((*RACK, FAR), RACK, (*RACK, FAR))
        self.book = Book(boundaries)
        self.states = RunStates(RUNS, have=0)
        self.states.want_only(wanted)
        timing = RequestTiming()
        if took_s:
            timing.on_run(took_s, across=True)
        far = self.book.on_connected(FAR, FULL, now=0.0)
        assert far is not None
        self.far = far
        self.timer = BridgeTimer(context_of(self.states, self.book), timing, now=0.0)

    def looks(self, until: float, *requests: PeerRequest) -> list[float]:
        """Look at each deadline; returns when there was a review."""
        now, at = 0.0, []
        while now < until:
            before = len(self.book.reviews)
            due = self.timer.look_beyond(requests, now)
            if len(self.book.reviews) > before:
                at.append(now)
            assert now < due <= now + LEAST_S, "requests may turn out to be quicker than thought"
            now = due
        return at


def test_without_racks_or_needs_there_is_nothing_to_look_at() -> None:
    assert Desk(racks=False).timer.look_beyond((), 100.0) == math.inf
    done = Desk()
    done.states.set_proved(FULL)
    assert done.timer.look_beyond((), 100.0) == math.inf
    assert done.book.reviews == []


def test_quick_requests_mean_a_look_each_second() -> None:
    assert Desk(took_s=0.01).looks(4.5 * LEAST_S) == [
        LEAST_S,
        2 * LEAST_S,
        3 * LEAST_S,
        4 * LEAST_S,
    ]


def test_slow_requests_mean_longer_pauses() -> None:
    pause_s = VERY_LATE * SETTINGS.duplicate_after * 1.25
    assert Desk(took_s=1.25).looks(2.5 * pause_s) == [pause_s, 2 * pause_s]


def test_a_node_that_knows_no_times_waits_as_for_an_owner() -> None:
    assert Desk().looks(SETTINGS.owner_patience_s + 1.0) == [SETTINGS.owner_patience_s]


def test_requests_that_are_still_out_there_count_by_their_age() -> None:
    desk = Desk(took_s=0.01)
    sent = [PeerRequest(desk.far, run, started=0.0, since=0.0) for run in range(16)]
    assert desk.looks(5 * LEAST_S, *sent) == [], "they are as old as the node has waited"
    assert desk.looks(1.5 * LEAST_S) != [], "they have ended"


def test_nothing_came_for_long_and_nothing_is_under_way() -> None:
    desk = Desk(took_s=0.01)
    desk.looks(STUCK_S + 1.5 * LEAST_S)
    assert desk.book.reviews == [False, False, False, True, True]
    desk.timer.on_run(10.0)
    desk.timer.look_beyond((), 11.0)
    assert not desk.book.reviews[-1], "a run came a second before"
    desk.states.fetching = 1
    desk.timer.look_beyond((), 10.0 + 2 * STUCK_S)
    assert not desk.book.reviews[-1], "a read is under way"


def test_a_part_of_a_model_is_looked_for_early() -> None:
    desk = Desk(wanted=0b11)
    assert desk.looks(2.5 * STUCK_S) == [STUCK_S, 2 * STUCK_S]
    assert desk.book.reviews == [True, True]


def test_while_nothing_waits_out_there_no_time_is_counted() -> None:
    desk = Desk(wanted=0b11)
    near = desk.book.on_connected(2, FULL, now=0.0)  # the rack has all of it
    assert near is not None
    assert desk.looks(SETTINGS.owner_patience_s - 1.0) == []
    desk.book.on_disconnected(2)
    now = SETTINGS.owner_patience_s - 1.0
    desk.timer.look_beyond((), now)
    assert desk.book.reviews == [], "it has waited for a moment only"
