"""A tracker of several that falls silent for a while: agents go on without it, and stay connected."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loadtest.kit.cluster import free_ports
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol import silence
from p2pcache.errors import Unreachable
from tests.agent.test_tracker_link_several import NODE, active
from tests.agent.test_tracker_link_silence import Heard, Relay, linked, until

DOUBT_S, LOST_S = 0.4, 20.0


class Swarming(Heard):
    """What the link tells an agent that pulls."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[m.ToAgent] = []
        self.leases: tuple[int, ...] = ()

    def announcement(self) -> m.Announce:
        swarm = m.SwarmState("ab" * 32, 8, bytes([0]), credit=1, leases=self.leases)
        return m.Announce("127.0.0.1:1", "0.1", swarms=(swarm,))

    def tracker_said(self, message: m.ToAgent) -> None:
        self.said.append(message)


@contextlib.asynccontextmanager
async def doubting(
    monkeypatch: pytest.MonkeyPatch, doubt_s: float = DOUBT_S
) -> AsyncIterator[tuple[Any, Relay, Any, Any]]:
    """An active tracker, what lies before it, and the link of an agent with what that heard."""
    monkeypatch.setattr(silence, "DOUBT_S", doubt_s)
    (port,) = free_ports(1)
    async with (
        active(port, 7) as hub,
        Relay(hub.address).running() as relay,
        linked(relay.url, LOST_S) as (link, _),
    ):
        link._handler = heard = Swarming()
        yield hub, relay, link, heard


async def test_a_quiet_tracker_is_not_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with doubting(monkeypatch) as (_, _, link, heard):
        await until(lambda: link.connected)
        await asyncio.sleep(4 * DOUBT_S)
        assert (heard.ups, heard.downs) == (1, 0)


async def test_a_silent_tracker_is_doubted_and_believed_on_the_same_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with doubting(monkeypatch) as (hub, relay, link, heard):
        await until(lambda: heard.said)  # a grant among it
        connection = hub.members._live[NODE + 2]
        relay.frozen.set()
        asking = asyncio.ensure_future(link.ask("resolve", "m:v1"))  # noqa: TID251
        await until(lambda: not link.connected, 10 * DOUBT_S)
        assert (heard.downs, link.losses) == (1, 1)
        with pytest.raises(Unreachable):
            await asking
        await asyncio.sleep(2 * DOUBT_S)
        assert heard.downs == 1
        heard.leases = (5,)  # read meanwhile, as its owner
        relay.frozen.clear()
        await until(lambda: link.connected)
        assert (heard.ups, link.epoch) == (2, 7)
        assert hub.members._live[NODE + 2] is connection
        (swarm,) = hub.tracking.swarms.values()
        assert list(swarm.book.leases) == [5], "an announcement tells all that the node reads"


async def test_one_that_is_asked_and_says_nothing_is_doubted_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with doubting(monkeypatch, 3.0) as (_, relay, link, heard):
        await until(lambda: heard.said)
        relay.frozen.set()
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await link.ask("resolve", "m:v1")
        assert time.monotonic() - began < 2.5
        assert (link.connected, heard.downs) == (False, 1)


async def test_a_grant_to_a_node_that_goes_by_itself_is_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with doubting(monkeypatch) as (hub, relay, link, heard):
        await until(lambda: heard.said)
        relay.frozen.set()
        await until(lambda: not link.connected, 3 * DOUBT_S)
        heard.said.clear()
        monkeypatch.setattr(hub.tracking, "handle", lambda *_: [])  # it doesn't hear us yet
        hub.members.send_to(NODE + 2, m.Grant("ab" * 32, 7, (3,)))
        relay.frozen.clear()
        await asyncio.sleep(DOUBT_S)
        assert heard.said == []
        assert not link.connected
