"""Invariants of the scheduler under any sequence of events."""

import os
import subprocess
import sys
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pcache.core import bitset
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import Blame, Cancel, CancelFetch, Command, Dial, Fetch, Request
from p2pcache.core.swarm.events import (
    DialFailed,
    Event,
    FetchEnded,
    LeaseGranted,
    LeaseRevoked,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    PeerLeft,
    Reachable,
    RequestEnded,
    RunsLost,
    RunsProved,
    Source,
    Tick,
    TrackerDown,
    TrackerUp,
    Urgent,
    Wanted,
)

RUNS = 24
SETTINGS = SwarmSettings(window_runs=8, outstanding=6, origin_fetches=3, owner_patience_s=2.0)
bits = st.integers(0, (1 << RUNS) - 1)
nodes = st.integers(2, 7)
SAD = [o for o in Outcome if o not in {Outcome.DONE, Outcome.FAILED}]


def make(seed: int = 1) -> Scheduler:
    return Scheduler(
        node=1, run_bytes=[1000] * RUNS, have=0, settings=SETTINGS, seed=seed, tracker=True, now=0.0
    )


class Machine(RuleBasedStateMachine):
    """Sends events in any order, and keeps what is needed to judge the commands."""

    def __init__(self) -> None:
        super().__init__()
        self.s = make()
        self.now = 0.0
        self.requests: dict[int, Request] = {}
        self.fetches: dict[int, Fetch] = {}
        self.has: dict[int, int] = {}  # connected peer -> what it said it has
        self.blamed: set[int] = set()
        self.dials: set[int] = set()
        self.granted = 0
        self.epoch = 1
        self.events: list[tuple[Event, float]] = []
        self.said: list[list[Command]] = []

    def do(self, event: Event) -> None:
        before = self.s.have
        self.events.append((event, self.now))
        out = self.s.handle(event, self.now)
        self.said.append(out)
        self.s.check()
        wake = self.s.next_wakeup()
        assert wake is None or wake > self.now
        for command in out:
            self.judge(command)
        if not isinstance(event, RunsLost):
            assert before & ~self.s.have == 0

    def judge(self, command: Command) -> None:
        match command:
            case Request(number, peer, run):
                assert number not in self.requests
                assert peer in self.has
                assert peer not in self.blamed
                assert self.has[peer] >> run & 1
                assert not self.s.have >> run & 1
                self.requests[number] = command
            case Fetch(number, run):
                assert number not in self.fetches
                assert self.granted >> run & 1 or self.s._by_itself.alone(self.now)
                self.fetches[number] = command
            case Cancel(number):
                assert number in self.requests
            case CancelFetch(number):
                assert number in self.fetches
            case Dial(peer):
                assert peer not in self.dials
                self.dials.add(peer)
            case Blame(peer, _):
                assert peer in self.s._book.banned
                self.blamed.add(peer)
            case _:
                pass

    @rule(peer=nodes, have=bits, rtt_s=st.sampled_from([0.0, 0.01, 0.5]))
    def joins(self, peer: int, have: int, rtt_s: float) -> None:
        self.has[peer] = have
        self.dials.discard(peer)
        self.do(PeerJoined(peer, have, rtt_s))

    @rule()
    def reachable(self) -> None:
        self.do(Reachable())

    @rule(peer=nodes, runs=bits, load=st.integers(0, 8))
    def has_more(self, peer: int, runs: int, load: int) -> None:
        if peer in self.has:
            self.has[peer] |= runs
        self.do(PeerHas(peer, runs, load))

    @rule(peer=nodes)
    def leaves(self, peer: int) -> None:
        self.has.pop(peer, None)
        self.do(PeerLeft(peer))

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99), outcome=st.sampled_from([Outcome.DONE] * 6 + SAD))
    def request_ends(self, pick: int, outcome: Outcome) -> None:
        number = sorted(self.requests)[pick % len(self.requests)]
        request = self.requests.pop(number)
        # a refusal on a lost connection doesn't count for the next one
        if outcome is Outcome.REFUSED and number in self.s._requester.requests.live:
            self.has[request.peer] &= ~(1 << request.run)
        self.do(RequestEnded(number, outcome))
        if outcome is Outcome.DONE:
            assert self.s.have >> request.run & 1

    @precondition(lambda self: self.fetches)
    @rule(
        pick=st.integers(0, 99), outcome=st.sampled_from([Outcome.DONE] * 6 + SAD),
    )  # fmt: skip
    def fetch_ends(self, pick: int, outcome: Outcome) -> None:
        number = sorted(self.fetches)[pick % len(self.fetches)]
        del self.fetches[number]
        self.do(FetchEnded(number, outcome))

    @rule(runs=bits)
    def lease(self, runs: int) -> None:
        self.granted |= runs
        self.do(LeaseGranted(runs))

    @rule(runs=bits)
    def revoke(self, runs: int) -> None:
        self.do(LeaseRevoked(runs))

    @rule(runs=bits)
    def proved(self, runs: int) -> None:
        self.do(RunsProved(runs & 0x00FF00, Source.LOCAL))

    @rule(runs=bits)
    def lost(self, runs: int) -> None:
        self.do(RunsLost(runs))

    @rule(runs=bits)
    def urgent(self, runs: int) -> None:
        self.do(Urgent(runs))

    @rule(runs=bits)
    def wanted(self, runs: int) -> None:
        self.do(Wanted(runs))

    @rule(members=st.sets(nodes))
    def members(self, members: set[int]) -> None:
        self.do(Members((1, *members)))

    @rule(up=st.booleans(), new=st.booleans())
    def tracker(self, *, up: bool, new: bool) -> None:
        self.epoch += up and new
        self.do(TrackerUp(self.epoch) if up else TrackerDown())

    @precondition(lambda self: self.dials)
    @rule()
    def dial_fails(self) -> None:
        self.do(DialFailed(self.dials.pop()))

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.3, 3.0, 30.0]))
    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(500):
            wake = self.s.next_wakeup()
            if wake is None or wake > end:
                break
            self.now = max(self.now, wake)
            self.do(Tick())
        else:
            raise AssertionError("ticks without end")
        self.now = end

    @invariant()
    def no_link_is_left_idle(self) -> None:
        """While the limits allow a request, no neighbour that delivers has a free run."""
        limits = self.s._requester.requests
        if not limits.may_ask(limits.usual, across=True):
            return
        for peer in self.s._book.peers.values():
            if peer.free_at <= self.now and peer.in_flight < limits.per_peer and peer.delivers:
                assert not peer.have & self.s._states.free

    def teardown(self) -> None:
        """A replay gives the same commands, and with honest peers every run is proved."""
        again = make()
        assert [again.handle(e, at) for e, at in self.events] == self.said
        self.do(Wanted((1 << RUNS) - 1))  # fewer runs may have been wanted last
        self.blamed.discard(99)
        self.has[99] = (1 << RUNS) - 1
        self.do(PeerJoined(99, self.has[99]))
        for _ in range(3000):
            if self.s.complete:
                break
            for number in sorted(self.requests):
                request = self.requests.pop(number)
                honest = request.peer == 99
                self.do(RequestEnded(number, Outcome.DONE if honest else Outcome.REFUSED))
            for number in sorted(self.fetches):
                del self.fetches[number]
                self.do(FetchEnded(number, Outcome.UNAVAILABLE))
            wake = self.s.next_wakeup()
            if not self.requests and not self.fetches and wake is not None:
                self.now = max(self.now, wake)
                self.do(Tick())
        assert self.s.complete, self.s.story(bitset.first(self.s._states.missing))


Machine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLaws = Machine.TestCase


def walk(seed: int) -> str:
    """A seeded walk among honest and busy peers; returns all commands as text."""
    dice = Random(seed)
    scheduler = make(seed)
    said: list[str] = []
    open_: list[Request] = []
    now = 0.0
    for _ in range(400):
        now += dice.random() * 0.05
        event: Event = Tick()
        if open_ and dice.random() < 0.6:
            outcome = dice.choice([Outcome.DONE, Outcome.DONE, Outcome.BUSY])
            event = RequestEnded(open_.pop(dice.randrange(len(open_))).request, outcome)
        elif dice.random() < 0.7:
            event = PeerHas(2 + dice.randrange(5), 1 << dice.randrange(RUNS), dice.randrange(8))
        else:
            event = PeerJoined(2 + dice.randrange(5), dice.getrandbits(RUNS))
        out = scheduler.handle(event, now)
        open_ += [c for c in out if isinstance(c, Request)]
        said.append(repr(out))
    return "\n".join(said)


def test_commands_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('m', sys.argv[1]);"
        "m = importlib.util.module_from_spec(spec); sys.modules['m'] = m;"
        "spec.loader.exec_module(m); print(m.walk(3), end='')"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] == walk(3)


def calls_during(scheduler: Scheduler, event: Event, now: float) -> int:
    count = 0

    def probe(_frame: object, _what: str, _arg: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(probe)
    try:
        scheduler.handle(event, now)
    finally:
        sys.setprofile(None)
    return count


def test_the_cost_of_an_event_does_not_grow_with_the_model() -> None:
    costs: list[list[int]] = []
    for runs in (100, 40_000):
        scheduler = Scheduler(
            node=1,
            run_bytes=[1000] * runs,
            have=0,
            settings=SwarmSettings(),
            seed=1,
            tracker=True,
            now=0.0,
        )
        dice = Random(4)
        costs.append([])
        for peer in range(2, 26):
            costs[-1].append(calls_during(scheduler, PeerJoined(peer, dice.getrandbits(runs)), 1.0))
        costs[-1].append(calls_during(scheduler, PeerHas(2, bitset.full(runs), 0), 1.1))
        for number in range(1, 12):
            costs[-1].append(calls_during(scheduler, RequestEnded(number, Outcome.DONE), 2.0))
        costs[-1].append(calls_during(scheduler, PeerLeft(2), 3.0))
        costs[-1].append(calls_during(scheduler, Tick(), 9.0))
    small, large = map(max, costs)
    assert large < 2 * small


def test_an_owner_that_is_being_dialled_is_not_dialled_again() -> None:
    """A lonely node dials members to find out whether it is cut off; one of them owns a run that it wants."""
    state = Machine()
    state.lease(runs=25)
    state.revoke(runs=24)
    state.lease(runs=0)
    state.lease(runs=0)
    state.members(members={2, 3, 4})
    state.fetch_ends(outcome=Outcome.DONE, pick=0)
    state.wait(seconds=30.0)
    assert state.dials == {2, 3, 4}
