"""Loaders at an agent: their events while a model arrives, and their demands."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads.resolver import Resolved
from p2pcache.agent.jobs import loads
from p2pcache.agent.node import janitor
from p2pcache.core import bitset
from p2pcache.ids import Ref
from p2pcache.io import origins
from p2pcache.io.models.arriving_dir import Board
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.origins.retry import RetryPolicy
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

SIZE = 6_000_000
DATA = random.Random(3).randbytes(SIZE)
RATE = 4_000_000  # bytes/s of the origin: the model takes more than a second


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"weights.bin": DATA, "config.json": b"{}"}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return tmp_path / "origin"


@asynccontextmanager
async def load(
    session: aiohttp.ClientSession, **body: Any
) -> AsyncIterator[tuple[dict[str, Any], AsyncIterator[dict[str, Any]]]]:
    async with session.post("/v1/load", json={"ref": "team/m:v1", **body}) as answer:
        lines = (json.loads(line) async for line in answer.content)
        yield await anext(lines), lines


async def test_bytes_can_be_read_before_the_model_is_complete(tmp_path: Path, origin: Path) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app,
        client(app) as session,
        load(session) as (first, lines),
    ):
        assert first["event"] == "resolved"
        board = Board(Path(first["models_dir"]) / first["arriving"], first["digest"])
        early = 0
        async for event in lines:
            if event["event"] == "ready":
                assert board.ready_runs() >= event["runs_ready"]
                early += 0 < event["runs_ready"] < first["runs"]
        assert early > 3
        assert event["event"] == "done"
        assert event["bytes_origin"] == SIZE + 2
        tree = Path(event["models_dir"]) / event["path"]
        assert (tree / "weights.bin").read_bytes() == DATA
        async with load(session) as (again, rest):
            assert [again["event"]] + [e["event"] async for e in rest] == ["done"]
        board.close()


async def test_many_loaders_share_one_fetch(tmp_path: Path, origin: Path) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app,
        client(app) as session,
    ):

        async def one() -> str:
            async with load(session) as (_, lines):
                return str([event["event"] async for event in lines][-1])

        assert {*await asyncio.gather(*(one() for _ in range(8)))} == {"done"}
        assert app.metrics.totals()["origin"] == SIZE + 2


async def demand(session: aiohttp.ClientSession, **body: Any) -> tuple[int, dict[str, Any]]:
    async with session.post("/v1/demand", json=body) as answer:
        return answer.status, await answer.json()


async def ready(app: AgentApp, digest: str, runs: int) -> int:
    swarm = app.downloads.swarms[digest]
    async with asyncio.timeout(30):
        while runs & ~swarm.have_runs():
            await asyncio.sleep(0.02)
    return swarm.have_runs()


async def test_demanded_runs_come_first(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with (
        agent(tmp_path, origin=origin.as_uri()) as app,
        client(app) as session,
        load(session) as (first, _),
    ):
        last = first["runs"] - 1
        assert (await demand(session, load=first["load"], runs=[[last, last + 1]]))[0] == 200
        reads.let_go.set()
        await ready(app, first["digest"], bitset.full(first["runs"]))
    assert reads.begun.index(last) < first["runs"] - 4


async def test_only_needed_runs_are_fetched_until_a_client_wants_all(
    tmp_path: Path, origin: Path
) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        async with load(session, needed=True) as (first, _):
            await asyncio.sleep(0.3)
            assert app.metrics.totals()["origin"] == 0
            runs = [[2, 4], [7, 8]]
            said = await demand(session, load=first["load"], runs=runs, urgent=False)
            assert said == (200, {"missing": 3})
            wanted = bitset.of([2, 3, 7])
            assert await ready(app, first["digest"], wanted) == wanted
            await asyncio.sleep(0.2)
            assert app.downloads.swarms[first["digest"]].have_runs() == wanted
        async with asyncio.timeout(30):
            while app.downloads.running:  # it ends by itself, with no error
                await asyncio.sleep(0.02)
        done = await pull(app, "team/m:v1")
        assert done["event"] == "done"
        assert app.metrics.totals()["origin"] == SIZE + 2
        rows: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            while len(rows) < 2:  # written a moment after the client heard of it
                async with session.get("/v1/history") as answer:
                    rows = (await answer.json())["history"]
        assert [row["code"] for row in rows] == [0, 0]


async def test_a_pull_widens_what_a_loader_began(tmp_path: Path, origin: Path) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri()) as app,
        client(app) as session,
        load(session, needed=True) as (_, lines),
    ):
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        assert [event["event"] async for event in lines][-1] == "done"


async def test_bad_demands_are_refused(tmp_path: Path, origin: Path) -> None:
    path = str(tmp_path / "client.sock")
    async with (
        agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE, client_socket=path) as app,
        client(app, path=path) as session,
        load(session) as (first, _),
    ):
        mine, count = first["load"], first["runs"]
        assert (await demand(session, load="0" * 32, runs=[[0, 1]]))[0] == 404
        for runs in ([[0, count + 1]], [[-1, 1]], [[3, 3]], [[0]], [["a", 1]], [[0, 1]] * 70_000):
            status, said = await demand(session, load=mine, runs=runs)
            assert (status, said["code"]) == (400, 2), str(runs)[:20]
        assert (await demand(session, load=mine, runs=[]))[0] == 200


async def test_unknown_and_too_large_models_fail_at_once(tmp_path: Path, origin: Path) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri(), min_free_bytes=1 << 60) as app,
        client(app) as session,
    ):
        for ref, code in (("team/none", 3), ("team/m:v1", 5), ("no model", 2)):
            async with session.post("/v1/load", json={"ref": ref}) as answer:
                assert (await answer.json())["code"] == code
        # A part of it needs no room for all of it.
        async with session.post("/v1/load", json={"ref": "team/m:v1", "needed": True}) as answer:
            assert json.loads(await answer.content.readline())["event"] == "resolved"


async def test_a_model_gets_the_tag_that_a_client_asked_for(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine looks at its ref's configuration, then loads what that meant: by its digest."""
    monkeypatch.setattr(origins, "RetryPolicy", lambda _: RetryPolicy(1.0))  # 30 s are usual
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        async with load(session) as (first, _):
            pass
        async with load(session, ref=f"team/m:v1@blake3:{first['digest']}") as (_, lines):
            reads.let_go.set()
            assert [event["event"] async for event in lines][-1] == "done"
        async with session.get("/v1/models") as answer:
            (row,) = (await answer.json())["models"]
        assert row["refs"] == ["team/m:v1"]
        origin.rename(tmp_path / "gone")
        small = await pull(app, "team/m:v1", exclude=["weights.bin"])
        assert small["event"] == "done"  # the server's next start, while storage is away


async def test_a_model_gets_the_tag_that_was_asked_for_before_a_restart(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loader attaches again by the digest that it was told."""
    where = {"origin": origin.as_uri()}
    with monkeypatch.context() as patch:
        reads = HeldReads(patch)
        reads.lost = True
        async with agent(tmp_path, **where) as app, client(app) as session:
            async with load(session) as (first, _):
                pass
            reads.let_go.set()
    async with agent(tmp_path, **where) as app, client(app) as session:
        async with load(session, ref=f"team/m:v1@blake3:{first['digest']}") as (_, lines):
            assert [event["event"] async for event in lines][-1] == "done"
        async with asyncio.timeout(10):
            while not app.store.tags_of(first["digest"]):
                await asyncio.sleep(0.02)


async def test_a_load_by_digest_sets_no_tag_that_was_removed_meanwhile(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri()) as app,
        client(app) as session,
        asyncio.timeout(30),
    ):
        digest = (await pull(app, "team/m:v1"))["digest"]
        tag = Ref.parse("team/m:v2")
        app.store.ask(tag, digest)
        resolve, resolved, go = app.resolver.resolve, asyncio.Event(), asyncio.Event()

        async def slow(ref: Ref, **more: Any) -> Resolved:
            if ref.digest is not None:
                return await resolve(ref, **more)
            resolved.set()
            await go.wait()
            return Resolved(digest, 1)

        monkeypatch.setattr(app.resolver, "resolve", slow)
        async with load(session, ref=f"team/m:v2@blake3:{digest}") as (first, _):
            assert first["event"] == "done"
        await resolved.wait()
        async with session.delete("/v1/model?ref=team/m:v2") as answer:
            assert answer.status == 200
        go.set()
        await asyncio.sleep(0.2)
        assert app.store.refs() == [Ref.parse("team/m:v1")]


@pytest.mark.parametrize("stored", ["nothing", "another"])
async def test_a_tag_that_means_the_model_no_more_is_read_once(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    if stored == "another":
        push(origin, make_model(tmp_path / "two", {"config.json": b"{}"}), "team/m:gone")
    asked: list[str] = []
    for name in ("get_tag", "refs"):
        real = getattr(OriginRepo, name)

        def noted(repo: OriginRepo, what: object, _real: Any = real) -> Any:
            asked.append(str(what))
            return _real(repo, what)

        monkeypatch.setattr(OriginRepo, name, noted)
    async with (
        agent(tmp_path, origin=origin.as_uri()) as app,
        client(app) as session,
        asyncio.timeout(30),
    ):
        digest = (await pull(app, "team/m:v1"))["digest"]
        for tag in ("gone", "other"):
            app.store.ask(Ref.parse(f"team/m:{tag}"), digest)
        asked.clear()
        for _ in range(3):
            async with load(session, ref=f"team/m:gone@blake3:{digest}") as (first, _):
                assert first["event"] == "done"
            await asyncio.sleep(0.2)
        assert asked == ["team/m:gone"]
        assert set(app.store.names_of(digest)) == {
            Ref.parse(f"team/m:{t}") for t in ("v1", "other")
        }


async def test_a_tag_that_moved_meanwhile_stays_where_it_is(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with (
        agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=RATE) as app,
        client(app) as session,
    ):
        async with load(session) as (first, _):
            pass
        async with load(session, ref=f"team/m:v1@blake3:{first['digest']}") as (_, lines):
            other = push(origin, make_model(tmp_path / "two", {"config.json": b"{}"}), "team/m:v1")
            reads.let_go.set()
            assert (await pull(app, "team/m:v1"))["event"] == "done"
            assert [event["event"] async for event in lines][-1] == "done"
        async with session.get("/v1/models") as answer:
            refs = {row["digest"]: row["refs"] for row in (await answer.json())["models"]}
        assert refs == {other.digest: ["team/m:v1"], first["digest"]: []}


async def test_a_late_loader_still_finds_its_arriving_directory(
    tmp_path: Path, origin: Path
) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        async with load(session) as (first, lines):
            assert [event["event"] async for event in lines][-1] == "done"
        board = Board(Path(first["models_dir"]) / first["arriving"], first["digest"])
        assert board.ready_runs() == first["runs"]
        os.close(board.open_blob(0))
        board.close()


async def test_an_answered_load_keeps_its_model_until_its_loader_may_have_opened_it(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rm` took it, and the loader found nothing under the path that it had just been told."""
    monkeypatch.setattr(loads, "OPENS_S", 0.5)
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        await pull(app, "team/m:v1")
        async with load(session) as (first, _):
            assert first["event"] == "done"
        async with session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 409
            assert "a load" in (await answer.json())["message"]
        async with session.post("/v1/prune", json={"all": True}) as answer:
            assert (await answer.json())["removed"] == []
        async with asyncio.timeout(10):
            while app.downloads.in_use:
                await asyncio.sleep(0.05)
        async with session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 200


async def test_an_unused_arriving_directory_is_removed_after_a_while(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "ARRIVING_LOOK_S", 0.05)
    monkeypatch.setattr(janitor, "ARRIVING_S", 0.1)
    shown = tmp_path / "a/models/.arriving"
    async with agent(tmp_path, origin=origin.as_uri(), abandon_after_s=0.1) as app:
        async with client(app) as session, load(session, needed=True) as (first, _):
            await asyncio.sleep(0.5)
            assert (shown / first["digest"] / "ready").exists()  # somebody holds it
        async with asyncio.timeout(30):
            while list(shown.iterdir()):
                await asyncio.sleep(0.02)
        assert app.downloads.swarms[first["digest"]].store.arriving is None
        async with client(app) as session, load(session) as (again, lines):  # and can be had again
            assert again["digest"] == first["digest"]
            assert [event["event"] async for event in lines][-1] == "done"
        async with asyncio.timeout(30):  # a whole model too
            while list(shown.iterdir()):
                await asyncio.sleep(0.02)
