"""The models of the cache are opened when the agent starts: as quickly as can be, but not against those that wait."""

import asyncio
import random
from pathlib import Path

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.node import model_opener
from p2pcache.agent.node.model_opener import ModelOpener
from p2pcache.errors import IntegrityError
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

COUNT = 4


@pytest.fixture
def origin(tmp_path: Path) -> str:
    for number in range(COUNT + 1):
        files = {"w": random.Random(number).randbytes(1000)}
        push(tmp_path / "origin", make_model(tmp_path / f"m{number}", files), f"team/m{number}:v1")
    return (tmp_path / "origin").as_uri()


async def _closed(app: AgentApp) -> None:
    """Leave all swarms, as at a start."""
    for number in range(COUNT):
        await pull(app, f"team/m{number}:v1")
    for digest in list(app.downloads.swarms):
        app.downloads._forget_swarm(app.downloads.swarms[digest])


async def test_all_models_are_opened_when_nobody_waits(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin) as app:
        await _closed(app)
        opener = ModelOpener(app.context, app.downloads, lambda: False)
        await opener.open_first()
        await opener.open_rest()
        assert len(app.downloads.swarms) == COUNT
        assert not app.downloads.unopened


async def test_a_model_that_cannot_be_opened_is_known_as_unusable(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(digest: str) -> None:
        raise IntegrityError("its manifest is gone")

    async with agent(tmp_path, origin=origin) as app:
        await _closed(app)
        monkeypatch.setattr(app.context.store, "get", get)
        await ModelOpener(app.context, app.downloads, lambda: False).open_first()
        assert app.downloads.unusable == app.downloads.unopened.keys()
        assert len(app.downloads.unusable) == COUNT


async def test_opening_rests_while_somebody_waits_and_ends_all_the_same(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_opener, "OPEN_FIRST", 1)
    monkeypatch.setattr(model_opener, "REST_TIMES", 1e9)
    monkeypatch.setattr(model_opener, "MOST_REST_S", 3600.0)
    waits = True
    async with agent(tmp_path, origin=origin) as app:
        await _closed(app)
        opener = ModelOpener(app.context, app.downloads, lambda: waits)
        work = asyncio.gather(opener.open_first())
        while not app.downloads.swarms:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not work.done()
        waits = False
        await work
        assert len(app.downloads.swarms) == 1
        waits = True
        work = asyncio.gather(opener.open_rest())
        while len(app.downloads.swarms) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len(app.downloads.swarms) == 2, "it went on while somebody waited"
        monkeypatch.setattr(model_opener, "MOST_REST_S", 0.05)
        waits = False
        await asyncio.sleep(0.1)
        waits = True  # somebody is always there: it goes on slowly
        await work
        assert len(app.downloads.swarms) == COUNT


async def test_a_running_pull_is_somebody_who_waits(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin) as app:
        async with client(app) as session, session.get("/v1/status") as answer:
            assert answer.status == 200
        assert app.listeners.gate.calls == 0
        work = asyncio.gather(pull(app, f"team/m{COUNT}:v1"))
        await reads.until_begun()
        assert app.listeners.gate.calls == 1
        reads.let_go.set()
        assert (await work)[0]["event"] == "done"
        assert app.listeners.gate.calls == 0
