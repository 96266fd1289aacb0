"""A tracker that hangs or is cut off behind an open connection; two agents with one node id."""

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from p2pcache.agent import tracker_link
from p2pcache.agent.app import AgentApp
from p2pcache.agent.tracker_link import SILENCE_S, TrackerLink
from p2pcache.core.protocol import messages as m
from p2pcache.errors import NotAllowed
from p2pcache.io.host.host_facts import address_for_peers
from p2pcache.io.security.cluster_key import NO_KEY
from p2pcache.io.tasks import Tasks
from tests.agent.kit import agent, client
from tests.tracker.kit import get, tracker

QUICK_S = 1.0


class Relay:
    """Between an agent and its tracker; `frozen`: connections stay open, and nothing passes any more."""

    def __init__(self, address: str) -> None:
        self.frozen = asyncio.Event()
        self.drips = False  # it lets bytes pass one by one
        self.url = ""
        self._to = address.rsplit(":", 1)
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.frozen.clear()
            server.close()
            self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._to[0], int(self._to[1]))
        self._writers += [writer, back]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            while self.frozen.is_set():
                await asyncio.sleep(0.02)
            if self.drips:
                for byte in data:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.05)
            else:
                writer.write(data)
        writer.close()


class Heard:
    """What the link tells an agent."""

    def __init__(self) -> None:
        self.ups = self.downs = 0

    def announcement(self) -> m.Announce:
        return m.Announce("127.0.0.1:1", "0.1")

    def heartbeat(self) -> m.Heartbeat:
        return m.Heartbeat()

    def tracker_up(self, settled: m.Settled) -> None:
        self.ups += 1

    def tracker_down(self) -> None:
        self.downs += 1

    def tracker_said(self, message: m.ToAgent) -> None: ...


@contextlib.asynccontextmanager
async def linked(url: str, silence_s: float = QUICK_S) -> AsyncIterator[tuple[TrackerLink, Heard]]:
    heard = Heard()
    async with Tasks() as tasks:
        link = TrackerLink(
            url=url, node=9, secret=NO_KEY, handler=heard, tasks=tasks, rng=random.Random(1),
            silence_s=silence_s,
        )  # fmt: skip
        tasks.spawn_contained(link.run(), name="link")
        yield link, heard
        await link.close()


async def until(true: Any, limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.02)


async def test_a_quiet_tracker_answers_pings() -> None:
    async with tracker() as hub, linked(f"http://{hub.address}") as (link, heard):
        await until(lambda: link.connected)
        await asyncio.sleep(2.5 * QUICK_S)  # nothing but pongs came: heartbeats aren't answered
        assert (link.connected, heard.ups, link.losses) == (True, 1, 0)


async def test_a_silent_tracker_is_lost_and_found_again() -> None:
    async with (
        tracker() as hub,
        Relay(hub.address).running() as relay,
        linked(relay.url) as (link, heard),
    ):
        await until(lambda: link.connected)
        since = link.changed_at
        relay.frozen.set()
        asking = asyncio.ensure_future(link.ask("resolve", "m:v1"))  # noqa: TID251
        began = time.monotonic()
        await until(lambda: not link.connected)
        assert 0.7 * QUICK_S < time.monotonic() - began < 4 * QUICK_S
        assert (heard.downs, link.losses) == (1, 1)
        assert link.changed_at > since
        assert "said nothing for 1 s" in link.last_error
        assert (await asyncio.gather(asking, return_exceptions=True))[
            0
        ].__class__.__name__ == "Unanswered"
        relay.frozen.clear()
        await until(lambda: link.connected)
        assert heard.ups == 2


async def test_a_long_message_on_a_slow_way_is_no_silence() -> None:
    async with (
        tracker() as hub,
        Relay(hub.address).running() as relay,
        linked(relay.url) as (link, _),
    ):
        await until(lambda: link.connected)
        relay.drips = True
        assert b"epoch" in (await link.ask("status")).data  # 400 bytes
        assert link.losses == 0


def test_on_uvloop_too() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_long_message_on_a_slow_way_is_no_silence())
        runner.run(test_a_silent_tracker_is_lost_and_found_again())


async def test_a_frozen_tracker_is_given_up_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel takes the connection, and nobody speaks."""
    monkeypatch.setattr(tracker_link, "HANDSHAKE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        async with linked(f"http://127.0.0.1:{frozen.getsockname()[1]}") as (link, _):
            await until(link.tried.is_set, 5)
            assert "didn't answer" in link.last_error


async def test_a_busy_loop_of_ours_is_no_silence_of_the_tracker() -> None:
    async with tracker() as hub, linked(f"http://{hub.address}", 0.5) as (link, _):
        await until(lambda: link.connected)
        for _ in range(3):
            time.sleep(1.2)
            await asyncio.sleep(0.2)
        assert (link.connected, link.losses) == (True, 0)


def test_the_time_of_the_protocol() -> None:
    assert SILENCE_S == 10.0  # docs/protocol.md


# -- one id twice ---------------------------------------------------------------------------------


async def status(app: AgentApp) -> Any:
    async with client(app) as session, session.get("/v1/status") as answer:
        return await answer.json()


@contextlib.asynccontextmanager
async def clones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Any, AgentApp, AgentApp]]:
    """A tracker, and two agents that the start can't tell apart: two machines from one image."""
    monkeypatch.setattr("p2pcache.io.disk.cache_dir.node_id", lambda *_: 77)
    async with tracker() as hub:
        url = f"http://{hub.address}"
        async with agent(tmp_path, "a", tracker=url) as a, agent(tmp_path, "b", tracker=url) as b:
            yield hub, a, b


async def test_the_second_agent_with_one_id_sees_why_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with clones(tmp_path, monkeypatch) as (hub, a, b):
            links = [app.link for app in (a, b) if app.link is not None]
            await until(lambda: any(link.refusal for link in links))
            await until(
                lambda: any(
                    "another live agent" in text for x in (a, b) for text in x.queries.warnings()
                )
            )
            losses = [link.losses for link in links]
            await asyncio.sleep(3)
            assert [link.losses for link in links] == losses  # who is in stays in
            assert sum(link.connected for link in links) == 1
            out, into = (a, b) if b.link is links[1] and links[1].connected else (b, a)
            told = await status(out)
            assert not told["ready"]
            for word in ("another live agent", into.advertise, f"{out.settings.cache_dir}/node-id"):
                assert word in told["reasons"][0]
            assert isinstance(out.link and out.link.refusal, NotAllowed)
            _, ready = await get(hub.address, "/readyz")
            assert "the same node id 000000000000004d" in ready["warnings"][0]
            assert out.advertise in ready["warnings"][0]
    assert "two live agents" in caplog.text


async def test_a_refused_twin_gets_in_when_the_other_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clones(tmp_path, monkeypatch) as (_, a, b):
        links = [app.link for app in (a, b) if app.link is not None]
        await until(lambda: any(link.refusal for link in links))
        (winner,) = (link for link in links if link.connected)
        (loser,) = (link for link in links if link is not winner)
        await winner.close()
        await until(lambda: loser.connected)
        assert loser.refusal is None


async def test_a_restarted_agent_takes_its_own_place(tmp_path: Path) -> None:
    async with tracker() as hub, Relay(hub.address).running() as relay:
        async with agent(tmp_path, "a", tracker=relay.url) as a:
            node = a.node
            await until(lambda: a.link is not None and a.link.connected)
            relay.frozen.set()  # its end isn't heard
        async with agent(tmp_path, "a", tracker=f"http://{hub.address}") as again:
            assert again.node == node
            await until(lambda: again.link is not None and again.link.connected, 3)
            assert again.link is not None
            assert again.link.refusal is None
        relay.frozen.clear()


# -- a new address --------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
async def test_an_agent_on_every_address_announces_its_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, free: bool
) -> None:
    """`free`: on any port. An agent of a command is such a one, and no pull with a tracker elsewhere could begin."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ours = ["192.0.2.7"]
    monkeypatch.setattr("p2pcache.io.host.host_facts.first_address", lambda: ours[0])
    asked: list[str] = []

    def look(url: str) -> str:
        asked.append(url)
        return address_for_peers(url)

    monkeypatch.setattr("p2pcache.agent.app.address_for_peers", look)
    async with tracker() as hub, Relay(hub.address).running() as relay:
        listen = "0.0.0.0:0" if free else f"0.0.0.0:{port}"
        async with agent(tmp_path, tracker=relay.url, listen=listen, insecure=True) as app:
            nodes = hub.tracking.registry.nodes
            port = app._port if free else port
            await until(lambda: app.node in nodes)
            assert nodes[app.node].member.address == f"192.0.2.7:{port}"
            assert len(asked) == 1, "meanwhile the loop stands still"
            ours[0] = "192.0.2.8"
            relay.cut()
            await until(lambda: nodes[app.node].member.address == f"192.0.2.8:{port}")
            assert (await status(app))["address"] == f"192.0.2.8:{port}"
            assert app.net._hub.advertise == f"192.0.2.8:{port}"
