"""A removal, and what begins beside it: whichever comes first, the model is served and can be pulled afterwards."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import room
from p2pcache.agent.uses import begun_pushes
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.io.models.model_chunks import ModelStore
from tests.agent.kit import agent, client, make_model, pull, push

SIZE = 1_000_000


@pytest.fixture
def layouts(tmp_path: Path) -> list[Layout]:
    return [stored(tmp_path, name, seed) for name, seed in (("m", 5), ("n", 6))]


def stored(tmp_path: Path, name: str, seed: int) -> Layout:
    weights = random.Random(seed).randbytes(SIZE)
    folder = make_model(tmp_path / f"of-{name}", {"weights.bin": weights})
    return push(tmp_path / "origin", folder, f"team/{name}:v1")


def agent_here(tmp_path: Path, **settings: Any) -> Any:
    return agent(tmp_path, origin=(tmp_path / "origin").as_uri(), **settings)


class HeldCall:
    """Calls of a method that begin on a thread, and wait until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.let_go, self._begun = threading.Event(), threading.Event()
        real = getattr(owner, name)

        def held(*args: Any, **more: Any) -> Any:
            self._begun.set()
            assert self.let_go.wait(30)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, held)

    async def until_begun(self) -> None:
        while not self._begun.is_set():
            await asyncio.sleep(0.01)


async def prune(app: AgentApp, *, everything: bool = True) -> dict[str, Any]:
    async with (
        client(app) as session,
        session.post("/v1/prune", json={"all": everything}) as answer,
    ):
        told: dict[str, Any] = await answer.json()
        return told


async def remove(app: AgentApp, ref: str) -> int:
    async with client(app) as session, session.delete(f"/v1/model?ref={ref}") as answer:
        return answer.status


async def offer(app: AgentApp, layout: Layout) -> list[dict[str, str]]:
    """Begin a push; the blobs that are missing."""
    async with (
        client(app) as session,
        session.post("/v1/manifests", data=encode(layout.manifest)) as answer,
    ):
        assert answer.status == 200, await answer.text()
        missing: list[dict[str, str]] = (await answer.json())["missing"]
        return missing


async def test_an_eviction_whose_caller_has_left_ends_before_the_next_pull(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = layouts[0].digest
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")
        held = HeldCall(monkeypatch, app.store, "evict_model")
        evicting = asyncio.gather(app.downloads.evict(digest, 0.0))
        await held.until_begun()
        evicting.cancel()
        await asyncio.wait([evicting])
        pulling = asyncio.gather(pull(app, "team/m:v1"))
        await asyncio.sleep(0.1)
        assert digest not in app.downloads.swarms, "its thread removes it still"
        held.let_go.set()
        assert (await pulling)[0]["event"] == "done"
        assert not app.downloads.swarms[digest].store.closed


async def test_a_client_that_leaves_while_its_pull_makes_room(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "FRESH_S", -100.0)
    monkeypatch.setattr("p2pcache.agent.jobs.events.WAITING_S", 0.1)
    async with agent_here(tmp_path, cache_quota="1500000") as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")
        with monkeypatch.context() as patch:
            held = HeldCall(patch, app.store, "evict_model")
            pulling = asyncio.gather(pull(app, "team/n:v1"))
            await held.until_begun()
            pulling.cancel()
            await asyncio.wait([pulling])
            await asyncio.sleep(0.5)
            held.let_go.set()
            await asyncio.sleep(0.3)
        assert (await pull(app, "team/m:v1"))["event"] == "done"


async def test_a_removal_that_fails_says_so_and_ends_nothing_else(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")

        def broken(_digest: str) -> int:
            raise ValueError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(app.store, "remove_model", broken)
            assert await remove(app, "team/m:v1") == 500
        assert layouts[0].digest in app.downloads.swarms
        assert await remove(app, "team/m:v1") == 200


async def test_a_swarm_of_a_closed_model_is_joined_anew(
    tmp_path: Path, layouts: list[Layout]
) -> None:
    """No matter who removed the model."""
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")
        swarm = app.downloads.swarms[layouts[0].digest]
        app.store.remove_model(layouts[0].digest)
        assert swarm.store.closed
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        assert app.downloads.swarms[layouts[0].digest] is not swarm


async def test_a_push_beside_a_removal_waits(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = layouts[0].digest
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")
        with monkeypatch.context() as patch:
            held = HeldCall(patch, app.store, "remove_model")
            removing = asyncio.gather(remove(app, "team/m:v1"))
            await held.until_begun()
            offering = asyncio.gather(offer(app, layouts[0]))
            await asyncio.sleep(0.2)
            assert not offering.done()
            held.let_go.set()
            assert (await removing)[0] == 200
            assert len((await offering)[0]) == 1, "all of it has gone"
        assert not app.downloads.swarms[digest].store.closed
        assert (await pull(app, "team/m:v1"))["event"] == "done"


async def test_a_prune_leaves_what_is_held_since_it_began(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        await pull(app, "team/m:v1")
        await pull(app, "team/n:v1")
        with monkeypatch.context() as patch:
            held = HeldCall(patch, app.store, "remove_model")
            pruning = asyncio.gather(prune(app))
            await held.until_begun()
            (later,) = app.downloads.swarms.values()
            ref = str(app.store.names_of(later.digest)[0])
            assert (await pull(app, ref, hold="job-1", hold_s=3600))["event"] == "done"
            held.let_go.set()
            (told,) = await pruning
        assert len(told["removed"]) == 1
        (kept,) = told["kept"]
        assert kept.startswith(f"{ref}: ")
        assert app.store.names_of(later.digest)


async def test_a_slow_blob_keeps_its_push(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chunk may take longer than a client may be silent between two requests."""
    monkeypatch.setattr(begun_pushes, "SENDING_S", 0.1)
    monkeypatch.setattr(begun_pushes, "BEGUN_S", 0.1)
    weights = random.Random(5).randbytes(SIZE)
    go = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield weights[:1000]
        await go.wait()
        yield weights[1000:]

    async with agent_here(tmp_path) as app, client(app) as session, asyncio.timeout(40):
        (missing,) = await offer(app, layouts[0])
        url = f"/v1/blobs/{layouts[0].digest}/{missing['blob']}"
        sending = asyncio.gather(session.put(url, data=body()))
        await asyncio.sleep(0.4)
        assert (await prune(app))["removed"] == []
        assert not await app.downloads.remove_begun_push()
        go.set()
        assert (await sending)[0].status == 200
        await asyncio.sleep(0.2)
        assert len((await prune(app))["removed"]) == 1, "its client is silent"
        assert layouts[0].digest not in app.downloads.in_use


async def test_local_copies_keep_their_push(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun_pushes, "SENDING_S", 0.0)
    async with agent_here(tmp_path) as app, asyncio.timeout(40):
        held = HeldCall(monkeypatch, ModelStore, "copy_local")
        offering = asyncio.gather(offer(app, layouts[0]))
        await held.until_begun()
        assert (await prune(app, everything=False))["removed"] == []
        held.let_go.set()
        await offering
        assert len((await prune(app, everything=False))["removed"]) == 1


async def test_a_push_keeps_its_model_while_storage_is_opened(
    tmp_path: Path, layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its last blob and its upload."""
    monkeypatch.setattr(begun_pushes, "SENDING_S", 0.0)
    async with agent_here(tmp_path) as app, client(app) as session, asyncio.timeout(40):
        await pull(app, f"team/m@blake3:{layouts[0].digest}")
        assert layouts[0].digest not in app.downloads.in_use
        go = asyncio.Event()
        monkeypatch.setattr(app.resolver, "first_contact", go.wait)
        body = {"ref": "team/m:v2", "digest": layouts[0].digest, "repair": True}
        pushing = asyncio.gather(session.post("/v1/push", json=body))
        await asyncio.sleep(0.2)
        assert (await prune(app))["removed"] == []
        go.set()
        (answer,) = await pushing
        assert '"event":"done"' in await answer.text()
        while app.downloads.in_use:
            await asyncio.sleep(0.01)
        assert len((await prune(app))["removed"]) == 1
