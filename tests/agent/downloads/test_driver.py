"""The one timer of a driver, on the loop that the daemons run on."""

import asyncio
import time
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from p2pcache.agent.downloads import driver
from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.core.swarm import events as e
from p2pcache.errors import NotAllowed


class Bare(SwarmDriver):
    """A swarm whose scheduler only has wishes when to wake up."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self._timer = None
        self._wakes_at = 0.0
        self.scheduler: Any = SimpleNamespace(next_wakeup=lambda: self.next_at)
        self.next_at: float | None = None
        self._loop = asyncio.get_running_loop()
        net = SimpleNamespace(pulse_after=lambda when: when)
        self._context: Any = SimpleNamespace(now=time.monotonic, net=net)

    def post(self, event: e.Event) -> None:
        assert event == e.Tick()
        self.ticks.append(asyncio.get_running_loop().time())
        self.next_at = None

    def wake_at(self, at: float | None) -> None:
        self.next_at = at
        self._arm()


async def timer() -> None:
    swarm = Bare()
    now = asyncio.get_running_loop().time()
    swarm.wake_at(now - 1)  # due already: uvloop then gives a handle that can't tell when
    swarm.wake_at(now - 0.5)
    await asyncio.sleep(0.01)
    assert len(swarm.ticks) == 1
    swarm.wake_at(now + 30)
    swarm.wake_at(now + 0.05)  # sooner: set anew
    swarm.wake_at(now + 40)  # later: the timer stays, and nothing is due when it comes
    await asyncio.sleep(0.1)
    assert len(swarm.ticks) == 1
    swarm.wake_at(now + 0.15)
    await asyncio.sleep(0.1)
    assert len(swarm.ticks) == 2
    swarm.wake_at(now + 0.25)
    swarm.wake_at(None)
    await asyncio.sleep(0.1)
    assert len(swarm.ticks) == 2


def test_on_uvloop() -> None:
    uvloop.run(timer())


async def test_on_asyncio() -> None:
    await timer()


class Counting(SwarmDriver):
    """A swarm of runs of 1, 2, 4 .. bytes that asks for nothing."""

    def __init__(self) -> None:
        self.layout: Any = SimpleNamespace(run_bytes=[1 << run for run in range(80)], run_count=80)
        self._have = self._counted = self._bytes_done = 0


def test_bytes_are_those_of_the_runs_that_are_here() -> None:
    swarm, dice = Counting(), Random(1)
    for _ in range(200):  # runs come, and some are lost
        swarm._have ^= dice.getrandbits(80) if dice.random() < 0.2 else 1 << dice.randrange(80)
        assert swarm.bytes_done == swarm._have
    swarm._have = (1 << 80) - 1
    assert swarm.bytes_done == sum(swarm.layout.run_bytes)


def test_a_pull_that_reads_no_storage_has_hope_though_storage_refused() -> None:
    swarm: Any = object.__new__(SwarmDriver)
    refused = NotAllowed("a pull of yesterday was refused")
    swarm.scheduler, swarm.digest, swarm.last_progress = None, "", 0.0
    swarm.neighbours = SimpleNamespace(members={})
    swarm._work = SimpleNamespace(asking=False, reading=False)
    origin = SimpleNamespace(last_error=lambda _digest: refused)
    swarm._context = SimpleNamespace(link=None, origin=origin, node=1)
    swarm.reads_storage = True
    assert isinstance(swarm.why_give_up(1.0), NotAllowed)
    swarm.reads_storage = False
    assert swarm.why_give_up(1.0) is None


def test_a_member_that_dials_us_shows_that_others_reach_this_node() -> None:
    """Without a tracker a node that nobody dials leaves storage to the others."""
    swarm: Any = object.__new__(SwarmDriver)
    events: list[object] = []
    swarm.neighbours = SimpleNamespace(on_caller=lambda *_: None, joined={2})
    swarm.post, swarm.scheduler = events.append, None
    swarm.inbound(2, "node2:7000", wants=True)
    assert events == [e.Reachable()]


class Starting(SwarmDriver):
    """A swarm that only notes its events."""

    def __init__(self, neighbours: Any) -> None:
        self.posted: list[e.Event] = []
        self.scheduler = None
        self.store: Any = SimpleNamespace(have_runs=lambda: 0)
        self.layout: Any = None
        self.digest = ""
        self.neighbours = neighbours
        self._settings: Any = None
        net = SimpleNamespace(heard=lambda digest: {})
        self._context: Any = SimpleNamespace(now=time.monotonic, net=net, link=None, node=1)

    def post(self, event: e.Event) -> None:
        self.posted.append(event)

    def _redial_later(self) -> None: ...


@pytest.mark.parametrize("dialled", [False, True])
def test_a_swarm_that_starts_again_says_whether_it_was_dialled(
    dialled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses of callers are forgotten each half minute, when they have been written down."""
    monkeypatch.setattr(driver, "make_scheduler", lambda *_: object())
    neighbours = SimpleNamespace(joined=set(), members={}, callers={}, dialled=dialled)
    swarm = Starting(neighbours)
    swarm.reads_storage = True
    swarm.start()
    assert (e.Reachable() in swarm.posted) == dialled


async def test_a_late_chunk_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its request had told the bytes of the chunks before it, and all of the run was counted again."""
    swarm = Bare()
    swarm.layout = cast("Any", SimpleNamespace(run_bytes=[8_000_000]))
    swarm.traffic, swarm._have = dict.fromkeys(e.Source, 0), 0
    swarm.unflushed_bytes, swarm.on_bytes = 0, lambda *_: None
    posted: list[e.Event] = []
    monkeypatch.setattr(swarm, "post", posted.append)
    swarm._context.tally = SimpleNamespace(taken=Counter(), requests=Counter())
    swarm._work = cast("Any", SimpleNamespace(end_request=lambda _: (None, 5)))
    swarm.request_ended(1, e.Outcome.CANCELLED, 4_000_000)
    swarm.on_proved(1, e.Source.PEER, 4_000_000)
    assert swarm.traffic[e.Source.PEER] == 8_000_000
    assert posted == [e.RunsProved(1, e.Source.PEER)]
