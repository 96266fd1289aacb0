"""The one timer of a driver, on the loop that the daemons run on."""

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from p2pcache.agent.downloads.driver import SwarmDriver
from p2pcache.core.swarm import events as e


class Bare(SwarmDriver):
    """A swarm whose scheduler only has wishes when to wake up."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self._timer = None
        self._wakes_at = 0.0
        self.scheduler: Any = SimpleNamespace(next_wakeup=lambda: self.next_at)
        self.next_at: float | None = None

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
    swarm.wake_at(now + 40)  # later: an early tick does no harm
    await asyncio.sleep(0.1)
    assert len(swarm.ticks) == 2
    swarm.wake_at(now + 0.15)
    swarm.wake_at(None)
    await asyncio.sleep(0.1)
    assert len(swarm.ticks) == 2


def test_on_uvloop() -> None:
    uvloop.run(timer())


async def test_on_asyncio() -> None:
    await timer()
