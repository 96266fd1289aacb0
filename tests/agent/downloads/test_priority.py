"""A pull in the background waits for the pull of a waiting client, then goes on."""

import asyncio
import json
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads.download import Download
from p2pcache.core.upload.priority import Priority
from p2pcache.ids import Ref
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

RATE = 12_000_000  # bytes per second of the origin
SIZES = {"warm": 24_000_000, "now": 2_000_000}  # far more than what is read at the same time


def models(tmp: Path) -> Path:
    for name, size in SIZES.items():
        data = {"w": random.Random(name).randbytes(size)}
        push(tmp / "origin", make_model(tmp / name, data), f"t/{name}:v1")
    return tmp / "origin"


async def running(app: AgentApp, count: int) -> list[Download]:
    async with asyncio.timeout(30):
        while len(app.downloads.running) < count or not all(
            one.swarm.scheduler for one in app.downloads.running.values()
        ):
            await asyncio.sleep(0.01)
    return list(app.downloads.running.values())


async def finished(app: AgentApp, name: str, ended: list[str], **body: Any) -> None:
    last = await pull(app, f"t/{name}:v1", **body)
    assert last["event"] == "done", json.dumps(last)
    ended.append(name)


async def test_the_background_waits_while_another_pull_progresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, ended, reads = models(tmp_path), list[str](), HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app:
        warm = asyncio.gather(finished(app, "warm", ended, background=True))
        (behind,) = await running(app, 1)
        assert app.net._priorities[behind.swarm.digest] is Priority.BACKGROUND
        now = asyncio.gather(finished(app, "now", ended))
        await running(app, 2)
        async with asyncio.timeout(30):
            while behind.swarm.scheduler is None or behind.swarm.scheduler.wanted:
                await asyncio.sleep(0.01)
        async with client(app) as session, session.get("/v1/explain?ref=t/warm:v1") as answer:
            now_told = (await answer.json())["now"]
            assert "wait for others that go first" in now_told["waits"]
            missing = now_told["runs"] - behind.swarm.scheduler.have.bit_count()
            assert now_told["runs_missing"] == missing > 0, "held back isn't done"
        reads.let_go.set()
        await now
        await warm
        assert ended == ["now", "warm"]
        assert behind.swarm.complete


async def test_a_foreground_client_ends_the_background_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, ended, reads = models(tmp_path), list[str](), HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app:
        warm = asyncio.gather(finished(app, "warm", ended, background=True))
        (download,) = await running(app, 1)
        now = asyncio.gather(finished(app, "warm", ended))
        async with asyncio.timeout(30):
            while download.swarm.digest in app.net._priorities:
                await asyncio.sleep(0.01)
        reads.let_go.set()
        await asyncio.gather(warm, now)
        async with client(app) as session, session.get("/v1/status") as answer:
            assert (await answer.json())["pulls"] == []


async def test_a_stuck_pull_holds_no_other_pull_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its origin reads hang: after a while the background goes on beside it."""
    origin, ended, reads = models(tmp_path), list[str](), HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app:
        warm = asyncio.gather(finished(app, "warm", ended, background=True))
        await running(app, 1)
        now = asyncio.gather(finished(app, "now", ended))
        both = await running(app, 2)
        stuck = both[1]
        order = app.api._pulls._order
        order._seen[stuck] = (stuck.swarm.bytes_done, app.context.now() - 60)
        assert not order._earlier_one_progresses(Priority.BACKGROUND)
        reads.let_go.set()
        await asyncio.gather(warm, now)


async def test_a_download_whose_model_stays_makes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client reads no answer, and protects the model until it does."""
    origin, reads = models(tmp_path), HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri()) as app, asyncio.timeout(30):
        pulls = app.warms._pulls
        for reading in (False, True):
            reads.begun.clear()
            events = pulls.events(
                Ref.parse("t/warm:v1"), force=False, include=[], exclude=[], background=True
            )
            async with aclosing(events):
                assert (await anext(events))["event"] == "resolved"
                await reads.until_begun()
                if reading:
                    await events.aclose()
                made = await pulls._order._make_room(Ref.parse("t/now:v1"), Priority.USUAL)
            assert made == reading
        reads.let_go.set()
