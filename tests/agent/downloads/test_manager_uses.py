"""A client that joined a download protects its model until it has its answer, and no longer, however it leaves."""

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors.open_model import ModelDoor, Part
from p2pcache.agent.jobs import housekeeping
from p2pcache.core.format.layout import Layout
from p2pcache.errors import Conflict, P2PCacheError
from p2pcache.ids import Ref
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

REF, OTHER = Ref.parse("team/m:v1"), Ref.parse("team/m:v2")
WEIGHTS = random.Random(5).randbytes(1_000_000)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Of a model with two tags in storage."""
    folder = make_model(tmp_path / "model", {"weights.bin": WEIGHTS})
    push(tmp_path / "origin", folder, str(OTHER))
    return push(tmp_path / "origin", folder, str(REF))


def agent_here(tmp_path: Path, **settings: Any) -> Any:
    return agent(tmp_path, origin=(tmp_path / "origin").as_uri(), **settings)


async def remove(app: AgentApp, ref: Ref = REF) -> int:
    async with client(app) as session, session.delete(f"/v1/model?ref={ref}") as answer:
        return answer.status


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_protects_nothing(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent_here(tmp_path) as app, asyncio.timeout(50):
        events = app.warms._pulls.events(REF, force=False, include=[], exclude=[], background=False)
        async with aclosing(events):
            assert (await anext(events))["event"] == "resolved"
            assert app.store.get(layout.digest).pins == 2
        assert app.store.get(layout.digest).pins == 1, "that of the download, which goes on"
        reads.let_go.set()
        await until(lambda: not app.downloads.in_use)
        assert app.downloads.swarms[layout.digest].complete


async def test_one_that_leaves_before_it_has_joined(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.agent.jobs.events.WAITING_S", 0.02)
    async with agent_here(tmp_path) as app, asyncio.timeout(50):
        assert (await pull(app, str(REF)))["event"] == "done"
        for number in range(20):  # it leaves earlier or later
            events = app.warms._pulls.events(
                REF, force=False, include=[], exclude=[], background=False
            )
            async with app.downloads.opening.of(layout.digest):
                assert (await anext(events))["event"] == "waiting"
            await asyncio.sleep(0.0005 * number)
            await events.aclose()
            await asyncio.sleep(0.05)
            assert not app.downloads.in_use
        assert await remove(app) == 200


async def test_a_failed_pull_protects_nothing(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(50):

        def refused(*_: object, **__: object) -> str:
            raise P2PCacheError("the disk is bad")

        with monkeypatch.context() as patch:
            patch.setattr("p2pcache.io.models.model_chunks.ModelStore.publish", refused)
            assert (await pull(app, str(REF)))["event"] == "error"
        await until(lambda: not app.downloads.in_use)
        assert (await pull(app, str(REF)))["event"] == "done"


async def test_a_removal_refuses_at_once_and_waits_for_a_turn(
    tmp_path: Path, layout: Layout
) -> None:
    """A client that has the turn may join; then the removal is refused."""
    async with agent_here(tmp_path) as app, asyncio.timeout(30):
        await pull(app, str(REF))
        downloads = app.downloads
        with ExitStack() as use:
            async with downloads.opening.of(layout.digest):
                removing = asyncio.gather(downloads.evict(layout.digest, 0.0))
                await asyncio.sleep(0.05)
                assert not removing.done()
                downloads.protect(downloads.swarms[layout.digest], use)
            with pytest.raises(Conflict, match="uses it"):
                await removing
            async with downloads.opening.of(layout.digest):
                with pytest.raises(Conflict, match="uses it"):
                    await downloads.evict(layout.digest, 0.0)
        assert await downloads.evict(layout.digest, 0.0) > 0


async def test_a_tag_that_comes_while_processes_are_looked_at_keeps_the_model(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(30):
        await pull(app, str(REF))
        loop, look = asyncio.get_running_loop(), housekeeping.refuse_used

        def slow(*args: Any) -> str:
            pulled = asyncio.run_coroutine_threadsafe(pull(app, str(OTHER)), loop)
            assert pulled.result(20)["event"] == "done"
            return look(*args)

        with monkeypatch.context() as patch:
            patch.setattr(housekeeping, "refuse_used", slow)
            assert await remove(app) == 200
        assert app.store.refs() == [OTHER]
        assert app.downloads.swarms[layout.digest].complete


async def test_a_name_that_comes_meanwhile_keeps_a_nameless_model(
    tmp_path: Path, layout: Layout
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(30):
        await pull(app, f"team/m@blake3:{layout.digest}")
        downloads = app.downloads
        async with downloads.opening.of(layout.digest):
            removing = asyncio.gather(downloads.remove_nameless(layout.digest))
            await asyncio.sleep(0.05)
            app.store.publish(downloads.swarms[layout.digest].store, REF, 1, back=False)
        assert not (await removing)[0]
        assert app.downloads.swarms[layout.digest].complete


async def test_a_door_reads_what_was_removed_since_it_was_opened(
    tmp_path: Path, layout: Layout
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(30):
        await pull(app, str(REF))
        door = ModelDoor(app.store, app.resolver, app.warms._pulls, app.downloads)
        model = await door.open(REF)
        assert await remove(app) == 200
        parts = [Part(model.file("weights.bin"))]
        async with aclosing(door.stream(model, parts, 0, len(WEIGHTS))) as pieces:
            read = b""
            async for piece in pieces:
                read += piece
                assert await remove(app) == 409
        assert read == WEIGHTS
        assert app.store.refs() == [REF]
        await until(lambda: not app.downloads.in_use)
