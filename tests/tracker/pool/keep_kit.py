"""Agents that keep what a real tracker orders, and what a client says of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.keep_orders import KeepOrders
from p2pcache.ids import Ref
from p2pcache.tracker.app import TrackerApp
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import REF

NAME = str(REF)
OTHER = Ref.parse("team/other:v1")
FILES = 64  # each of them one chunk; all of them one run


class Keeper(FakeAgent):
    """An agent that keeps what it is ordered to."""

    def __init__(self, node: int, rack: str = "") -> None:
        super().__init__(node)
        self.rack = rack
        self.told_lists = 0

    async def announce(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(
            m.Announce(self.address, "0.1", self.rack, "", states, f"n{self.node}", keeps=True,
                       role="cache", labels=("gpu=h100",), room_bytes=1 << 40)
        )  # fmt: skip

    @property
    def orders(self) -> dict[str, bool]:
        """Digests of the last list, with whether they are whole."""
        lists = [x for x in self.mail if isinstance(x, KeepOrders)]
        return {o.manifest_digest: o.whole for o in lists[-1].orders} if lists else {}

    async def obey(self, digest: str) -> None:
        await self.until(lambda: digest in self.orders)
        await self.enter(digest, 1, 1)

    @property
    def lists(self) -> int:
        return sum(isinstance(x, KeepOrders) for x in self.mail)


async def say(agent: FakeAgent, what: str, **wish: Any) -> dict[str, Any]:
    answer = await agent.ask(what, msgspec.json.encode(wish).decode() if wish else "")
    found: dict[str, Any] = msgspec.json.decode(answer.data)
    return found


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


async def state(agent: FakeAgent, wanted: str) -> dict[str, Any]:
    """The one row of what is kept, once it is in a state."""
    async with asyncio.timeout(20):
        while True:
            rows = (await say(agent, "keeps"))["keeps"]
            if rows and rows[0]["state"] == wanted:
                return dict(rows[0])
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def members(one: TrackerApp, *agents: FakeAgent) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in agents:
            await stack.enter_async_context(each.member(one.address))
        yield
