"""A scheduler in a rack: what it asks for within, what beyond, and when it steps in for a bridge."""

from collections.abc import Iterator

import pytest

from p2pcache.core import bitset
from p2pcache.core.racks.bridge_slots import holders
from p2pcache.core.racks.bridge_slots import order as order_of
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Cancel, Command, Dial, Request
from p2pcache.core.swarm.events import (
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    RequestEnded,
    RunsProved,
    Source,
    Tick,
    Wanted,
)

RUNS = 300  # more than there are slots
FULL = bitset.full(RUNS)


class Desk:
    """A scheduler of node 1, whose rack has 1 and 2; node 9 is elsewhere and has everything."""

    def __init__(self, outstanding: int = RUNS) -> None:
        self.now = 0.0
        settings = SwarmSettings(outstanding=outstanding)
        self.scheduler = Scheduler(
            node=1, run_bytes=[1] * RUNS, have=0, settings=settings, seed=1, tracker=True, now=0.0,
        )  # fmt: skip
        self.asked: dict[int, tuple[int, int]] = {}  # request -> peer, run
        self.do(Members((1, 2, 9), (1, 2), (1, 2, 9)))
        self.do(PeerJoined(2, 0))
        self.do(PeerJoined(9, FULL))

    def do(self, event: object) -> None:
        """One event, and what follows from it."""
        self._note(self.scheduler.handle(event, self.now))  # type: ignore[arg-type]
        self.scheduler.check()

    def _note(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Request):
                self.asked[command.request] = command.peer, command.run
            assert not isinstance(command, Cancel)

    def pass_time(self, until: float) -> Iterator[float]:
        """Every wakeup until then."""
        while (wake := self.scheduler.next_wakeup()) is not None and wake <= until:
            self.now = max(self.now, wake)
            self.do(Tick())
            yield self.now

    def end_all(self, of: int, outcome: Outcome) -> None:
        """Every request to this peer ends, a moment later."""
        self.now += 0.1
        for number in [n for n, (peer, _) in self.asked.items() if peer == of]:
            self.do(RequestEnded(number, outcome))

    def asked_of(self, peer: int) -> set[int]:
        """Runs that were asked of it so far."""
        return {run for node, run in self.asked.values() if node == peer}


def asks_for_all(desk: Desk, seconds: float) -> bool:
    """Whether all runs are asked of node 9 within so many seconds; time stands still then."""
    return any(len(desk.asked_of(9)) == RUNS for _ in desk.pass_time(seconds))


def test_a_node_requests_its_share_beyond_the_rack_and_the_rest_within() -> None:
    desk = Desk()
    share = desk.asked_of(9)
    assert 0 < len(share) < RUNS
    rest = set(range(RUNS)) - share
    desk.do(PeerHas(2, bitset.of(rest), 0))
    assert desk.asked_of(2) == rest
    assert desk.asked_of(9) == share


def test_requests_beyond_a_thin_uplink_leave_places_for_the_rack() -> None:
    """All seven requests of one node of twelve were there: it got half of the model while the others got all."""
    desk = Desk(outstanding=7)
    near, far = range(2, 6), range(9, 17)
    every = (1, *near, *far)
    desk.do(Members(every, (1, *near), every))
    for node in near[1:]:
        desk.do(PeerJoined(node, 0))
    for node in far[1:]:
        desk.do(PeerJoined(node, FULL))
    share = set[int]().union(*map(desk.asked_of, far))
    assert len(share) == 7
    for node in near:
        desk.do(PeerHas(node, bitset.of(set(range(RUNS)) - share), 0))
    assert sum(len(desk.asked_of(node)) for node in near) == 3
    desk.end_all(of=2, outcome=Outcome.DONE)
    assert sum(len(desk.asked_of(node)) for node in near) > 3, "and for the next one"
    assert share == set[int]().union(*map(desk.asked_of, far))


def test_rarity_counts_holders_in_the_rack_only() -> None:
    desk = Desk(outstanding=1)
    rack, beyond = (1, 2, 3), (7, 8, 9)
    desk.do(Members((*rack, *beyond), rack, (*rack, *beyond)))
    rare, other = sorted({*range(RUNS)} - desk.asked_of(9))[:2]
    for node in beyond[:2]:
        desk.do(PeerJoined(node, 1 << rare))
    desk.do(PeerJoined(3, 1 << other))
    desk.do(PeerHas(2, 1 << other | 1 << rare, 0))
    desk.end_all(of=9, outcome=Outcome.LOST)
    assert desk.asked_of(2) == {rare}


def test_the_holder_of_the_same_slot_in_another_rack_is_dialled() -> None:
    desk = Desk()
    racks = (7, 8), (9, 10, 11)
    event = Members((1, 2, *racks[0], *racks[1]), (1, 2), (1, 2, *racks[0], *racks[1]), racks)
    dialled = {c.peer for c in desk.scheduler.handle(event, 0.0) if isinstance(c, Dial)}
    ours = [slot for slot, holder in enumerate(holders((1, 2))) if holder == 1]
    bridges = {holders(rack)[slot] for rack in racks for slot in ours}
    site = {holders(event.site)[slot] for slot in ours}
    assert dialled == (bridges | site) - {1, 2, 9}, "two are connected"
    desk.scheduler.handle(RunsProved(FULL, Source.LOCAL), 0.0)
    assert not desk.scheduler.handle(event, 0.0), "nothing is missing"


def test_a_node_that_wants_a_part_waits_no_longer_than_it_takes_to_starve() -> None:
    """Twenty nodes that wanted one run each: twelve had it after 10 s and one after 20 s, 0.1 s being what it took."""
    run = next(run for run, order in enumerate(order_of((1, 2))) if order[0] == 2)
    full = bitset.full(run + 2)
    for have, part, soonest_s in ((0, 1 << run, 4.0), (full & ~(1 << run), full, 8.0)):
        scheduler = Scheduler(
            node=1, run_bytes=[100] * (run + 2), have=have, settings=SwarmSettings(), seed=1, tracker=True, now=0.0
        )  # fmt: skip
        members = (1, 2, 9)
        for event in (Wanted(part), Members(members, (1, 2), members), PeerJoined(9, full)):
            scheduler.handle(event, 0.0)
        commands: list[Command] = []
        now = 0.0
        while not commands and (wake := scheduler.next_wakeup()) is not None and wake < 120:
            now = wake
            commands = [c for c in scheduler.handle(Tick(), now) if isinstance(c, Request)]
        assert soonest_s <= now <= soonest_s + 1.0


def test_runs_beyond_are_reviewed_though_the_boundary_came_last() -> None:
    """A node that had nothing to ask for when it heard of racks slept for ever (nobody in its rack could dial it)."""
    scheduler = Scheduler(
        node=1, run_bytes=[100], have=0, settings=SwarmSettings(), seed=1, tracker=True, now=0.0
    )  # fmt: skip
    scheduler.handle(PeerJoined(9, 0), 0.0)
    members = (1, 2, 9)
    scheduler.handle(Members(members, (1, 2), members), 0.1)
    commands = scheduler.handle(PeerHas(9, 1, 0), 0.2)
    while not commands and (wake := scheduler.next_wakeup()) is not None and wake < 120:
        commands = [c for c in scheduler.handle(Tick(), wake) if isinstance(c, Request)]
    assert commands


def test_a_dead_bridge_stops_no_node() -> None:
    desk = Desk()
    share = desk.asked_of(9)
    desk.end_all(of=9, outcome=Outcome.DONE)
    assert desk.asked_of(9) == share
    assert asks_for_all(desk, 10.0)  # node 2 is connected and never has anything
    assert 1.0 <= desk.now <= 4.0


def test_a_node_whose_bridges_want_nothing_asks_by_itself() -> None:
    """Eight nodes in a rack that wanted parts: nobody can tell a bridge that doesn't want a run from a full uplink."""
    desk = Desk()
    rack = tuple(range(1, 9))
    desk.do(Members((*rack, 9), rack, (*rack, 9)))
    share = desk.asked_of(9)
    desk.now += 2.0  # a request takes long, so it doesn't look often
    desk.end_all(of=9, outcome=Outcome.DONE)
    assert desk.asked_of(9) == share
    assert asks_for_all(desk, 60.0)
    assert 6.0 <= desk.now <= 20.0


def test_a_node_with_slow_requests_across_does_not_step_in() -> None:
    desk = Desk()
    share = desk.asked_of(9)
    desk.now += 0.1
    desk.do(
        RequestEnded(min(desk.asked), Outcome.DONE)
    )  # the first one came before the uplink was full
    for _ in desk.pass_time(9.0):
        assert desk.asked_of(9) == share
    assert desk.now > 8.0


def test_a_slow_rackmate_hides_no_runs() -> None:
    desk = Desk()
    share = desk.asked_of(9)
    rest = set(range(RUNS)) - share
    desk.do(PeerHas(2, bitset.of(rest), 0))
    desk.end_all(of=9, outcome=Outcome.DONE)
    desk.end_all(of=2, outcome=Outcome.STALLED)
    for _ in desk.pass_time(12.0):
        if desk.asked_of(9) == set(range(RUNS)):
            break
    assert desk.asked_of(9) == set(range(RUNS))


@pytest.mark.parametrize("outcome", [Outcome.STALLED, Outcome.MISMATCH])
def test_a_rackmate_that_delivers_nothing_right_is_no_bridge(outcome: Outcome) -> None:
    desk = Desk()
    share = desk.asked_of(9)
    own = min(set(range(RUNS)) - share)
    desk.do(PeerHas(2, 1 << own, 0))
    desk.end_all(of=2, outcome=outcome)
    desk.end_all(of=9, outcome=Outcome.DONE)
    assert desk.asked_of(9) == set(range(RUNS)), "nothing is waited for"


def test_a_bridge_asks_twice_across_the_boundary_only_when_it_took_very_long() -> None:
    desk = Desk()
    desk.do(PeerJoined(10, FULL))
    desk.now += 0.1
    for number in list(desk.asked)[:20]:  # so that it is known how long a request takes
        desk.do(RequestEnded(number, Outcome.DONE))
    twice: dict[float, int] = {}
    for now in desk.pass_time(5.0):
        runs = [run for _, run in desk.asked.values()]
        twice[now] = len(runs) - len(set(runs))
    assert not any(count for now, count in twice.items() if now < 3.9)
    assert twice[max(twice)]
