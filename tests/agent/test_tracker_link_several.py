"""An agent's link among several trackers: which one it stays with, and what it takes from none."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.kit.cluster import free_ports
from p2pcache.agent import tracker_handshake
from p2pcache.agent.api.queries import Queries
from p2pcache.agent.tracker_link import TrackerLink
from p2pcache.core.protocol import messages as m
from p2pcache.errors import Unreachable
from p2pcache.io.http import server
from p2pcache.io.security.cluster_key import NO_KEY
from p2pcache.io.tasks import Tasks
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.settings import TrackerSettings
from p2pcache.tracker.tenure.standby import StandbyApp

NODE = 7


class Heard:
    """What the link tells an agent."""

    def __init__(self) -> None:
        self.said: list[m.ToAgent] = []

    def announcement(self) -> m.Announce:
        return m.Announce("127.0.0.1:1", "0.1")

    def heartbeat(self) -> m.Heartbeat:
        return m.Heartbeat()

    def tracker_up(self, settled: m.Settled) -> None: ...

    def tracker_down(self) -> None: ...

    def tracker_said(self, message: m.ToAgent) -> None:
        self.said.append(message)


class Tenure(SimpleNamespace):
    """A candidacy that is as it is told to be."""

    def __init__(self, generation: int, active_url: str = "") -> None:
        super().__init__(generation=generation, active_url=active_url, active=True, where="x")
        self.news = asyncio.Event()

    def may_act(self) -> bool:
        return True

    def reasons(self) -> list[str]:
        return []

    async def wait_for(self, true: Callable[[], bool]) -> None:
        while not true():
            await self.news.wait()
            self.news.clear()


@contextlib.asynccontextmanager
async def active(port: int, generation: int) -> AsyncIterator[TrackerApp]:
    tenure: Any = Tenure(generation)
    app = TrackerApp(TrackerSettings(listen=f"127.0.0.1:{port}"), tenure=tenure)
    async with app.running():
        yield app


@contextlib.asynccontextmanager
async def standby(port: int, active_url: str) -> AsyncIterator[Tenure]:
    tenure: Any = Tenure(0, active_url)
    settings = TrackerSettings(listen=f"127.0.0.1:{port}")
    async with StandbyApp(settings, tenure).running(server.listen_tcp(settings.listen)):
        yield tenure


@contextlib.asynccontextmanager
async def linked(*ports: int) -> AsyncIterator[tuple[TrackerLink, Heard]]:
    heard = Heard()
    async with Tasks() as tasks:
        link = TrackerLink(
            url=",".join(url(port) for port in ports), node=NODE, secret=NO_KEY, handler=heard,
            tasks=tasks, rng=random.Random(1), cache_dir="/c",
        )  # fmt: skip
        running = tasks.spawn(link.run(), name="link")
        yield link, heard
        await link.close()
        running.cancel()


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_link_passes_over_trackers_that_are_gone() -> None:
    gone, there = free_ports(2)
    async with active(there, 5), linked(gone, there) as (link, _):
        await until(lambda: link.connected)
        assert link.url == url(there)


async def test_a_standby_leads_the_link_to_the_active_tracker() -> None:
    one, other, third = free_ports(3)
    async with standby(one, url(third)), active(third, 5), linked(one, other, third) as (link, _):
        await until(lambda: link.connected)
        assert link.url == url(third)


async def test_a_standby_leads_to_no_stranger() -> None:
    one, stranger = free_ports(2)
    async with standby(one, url(stranger)) as tenure, active(stranger, 5) as app:
        async with linked(one) as (link, _):
            await asyncio.sleep(0.3)
            tenure.active_url = ""
            tenure.news.set()
            await asyncio.sleep(0.1)
            tenure.active_url = url(stranger)
            tenure.news.set()
            await asyncio.sleep(0.3)
            assert not link.connected
            assert len(app.members) == 0


async def test_a_link_that_waits_at_a_standby_hears_of_the_new_tracker() -> None:
    one, other = free_ports(2)
    async with standby(one, "") as tenure, linked(other, one) as (link, _):
        await until(lambda: link.url == url(one))
        await asyncio.sleep(0.2)
        assert not link.connected
        async with active(other, 6):
            tenure.active_url = url(other)
            tenure.news.set()
            await until(lambda: link.connected)
            assert (link.url, link.epoch) == (url(other), 6)


async def test_what_fails_is_told_of_the_tracker_that_failed() -> None:
    """The URL was that of the standby, the error that of the dead one."""
    gone, there = free_ports(2)
    async with standby(there, url(gone)), linked(gone, there) as (link, _):
        await until(lambda: link.url == url(there))
        assert link.trouble == f"tracker {url(gone)} is not reachable: can't connect: connection refused"  # fmt: skip
        assert link.may_move
    async with linked(gone, there) as (link, _):
        await until(lambda: url(there) in link.trouble)
        assert url(gone) in link.trouble
        assert not link.may_move, "nobody is there who could take over"


async def test_a_question_waits_for_the_tracker_that_takes_over() -> None:
    """`nodes` and `keep` ended with exit 8 while no tracker was active."""
    gone, there = free_ports(2)
    async with linked(gone, there) as (link, _):
        queries: Any = SimpleNamespace(_context=SimpleNamespace(link=link))
        await until(lambda: url(there) in link.trouble and not link.may_move)
        with pytest.raises(Unreachable):
            await Queries.ask_tracker(queries, "nodes")
        async with standby(there, "") as tenure, Tasks() as tasks:
            await until(lambda: link.may_move and link.url == url(there))
            asked = tasks.spawn(Queries.ask_tracker(queries, "nodes"), name="asked")
            await asyncio.sleep(0.5)
            assert not asked.done()
            async with active(gone, 6):
                tenure.active_url = url(gone)
                tenure.news.set()
                assert b'"nodes"' in await asked


async def test_a_standby_that_waits_longer_than_we_do_is_hope_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A takeover takes 10 s and a visit 8: commands ended with exit 8 a second before a tracker was active."""
    monkeypatch.setattr(tracker_handshake, "STANDBY_S", 0.2)
    gone, there = free_ports(2)
    async with linked(gone, there) as (link, _):
        async with standby(there, url(gone)):
            await until(lambda: "which doesn't take us" in link.last_error)
            for _ in range(100):
                assert link.may_move
                await asyncio.sleep(0.01)
        await until(lambda: not link.may_move)


async def test_a_tracker_of_an_older_generation_is_void() -> None:
    one, other = free_ports(2)
    async with linked(one, other) as (link, _):
        async with active(one, 7):
            await until(lambda: link.connected)
        async with active(other, 6) as old:
            await until(lambda: "generation 6 is over" in link.last_error)
            assert not link.connected
            assert len(old.members) == 0
        async with active(other, 8):
            await until(lambda: link.connected)
            assert link.epoch == 8


async def test_a_grant_of_another_epoch_is_void() -> None:
    (one,) = free_ports(1)
    async with active(one, 7) as app, linked(one) as (link, heard):
        await until(lambda: link.connected)
        for epoch in (6, 8, 7):
            app.members.send_to(NODE, m.Grant("ab" * 32, epoch, (1,)))
        await until(lambda: any(isinstance(said, m.Grant) for said in heard.said))
        grants = [said for said in heard.said if isinstance(said, m.Grant)]
        assert [grant.epoch for grant in grants] == [7]
