"""A scheduler with a clock, for events by hand."""

from collections.abc import Mapping
from typing import TypeVar

from p2pcache.core import bitset
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.commands import (
    Command,
    Fetch,
    Request,
)
from p2pcache.core.swarm.events import (
    Event,
    FetchEnded,
    Members,
    Outcome,
    PeerHas,
    PeerJoined,
    Reachable,
    RequestEnded,
    Tick,
    TrackerUp,
)

T = TypeVar("T")
MB = 1_000_000
SETTINGS = SwarmSettings()


class Desk:
    """A scheduler with a clock; remembers the commands, checks after every event."""

    def __init__(
        self, runs: int = 64, have: int = 0, *, tracker: bool = True, node: int = 1,
        dialled: bool = True,
    ) -> None:  # fmt: skip
        self.now = 100.0
        self.full = bitset.full(runs)
        self.s = Scheduler(
            node=node,
            run_bytes=[MB] * runs,
            have=have,
            settings=SETTINGS,
            seed=7,
            tracker=tracker,
            now=self.now,
        )
        self.out: list[Command] = []
        if tracker and dialled:
            self.do(Reachable())

    def do(self, event: Event) -> list[Command]:
        out = self.s.handle(event, self.now)
        self.s.check()
        wake = self.s.next_wakeup()
        assert wake is None or wake > self.now, "a deadline that has passed is still set"
        self.out += out
        return out

    def sleep(self, seconds: float) -> list[Command]:
        """Let time pass, with a Tick at every deadline."""
        end = self.now + seconds
        out: list[Command] = []
        while (wake := self.s.next_wakeup()) is not None and wake <= end:
            self.now = wake
            out += self.do(Tick())
        self.now = end
        return out

    def meet(self, haves: Mapping[int, int]) -> list[Request]:
        """Connect neighbours with these runs, then let the scheduler act; returns its requests."""
        self.s._requester.requests.halted = (
            True  # or the first one would be asked before the others are there
        )
        for peer, have in haves.items():
            self.do(PeerJoined(peer, have))
        self.s._requester.requests.halted = False
        self.s._requester.deadline = 0
        return of(Request, self.do(Tick()))

    def up(self) -> list[Command]:
        return self.do(TrackerUp(5))


def of(kind: type[T], commands: list[Command]) -> list[T]:
    return [c for c in commands if isinstance(c, kind)]


def read_all(desk: Desk, fetches: list[Fetch]) -> set[int]:
    """Let these reads end well, and those that follow; returns the runs."""
    read = set()
    while fetches:
        one = fetches.pop(0)
        read.add(one.run)
        fetches += of(Fetch, desk.do(FetchEnded(one.fetch, Outcome.DONE)))
    return read


def bring(desk: Desk, node: int, runs: range, pace_s: float) -> None:
    """A neighbour comes to have these runs one after the other, so far apart, and sends those that it is asked for."""
    for run in runs:
        desk.sleep(pace_s)
        for request in of(Request, desk.do(PeerHas(node, 1 << run, 0))):
            desk.do(RequestEnded(request.request, Outcome.DONE))


def of_three(runs: int) -> Desk:
    """A node that is connected to two others; nothing was read yet."""
    desk = Desk(runs=runs)
    desk.do(Members((1, 2, 3)))
    desk.up()
    for node in (2, 3):
        desk.do(PeerJoined(node, 0))
    return desk
