"""A pull that people end: by `cancel`, or by leaving it. It is no failed pull."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Source
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push
from tests.tracker.kit import tracker

REF = "team/m:v1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    files = {"weights.bin": random.Random(7).randbytes(1_000_000)}
    return push(tmp_path / "origin", make_model(tmp_path / "model", files), REF)


async def cancel(app: AgentApp, ref: str) -> tuple[int, dict[str, Any]]:
    async with client(app) as session, session.post("/v1/cancel", json={"ref": ref}) as answer:
        return answer.status, await answer.json()


async def history(app: AgentApp) -> list[dict[str, Any]]:
    async with client(app) as session, session.get("/v1/history") as answer:
        rows: list[dict[str, Any]] = (await answer.json())["history"]
        return rows


async def begin_warm(app: AgentApp, reads: HeldReads) -> None:
    """Returns when a read of it is held."""
    async with client(app) as session, session.post("/v1/warm", json={"ref": REF}) as answer:
        assert answer.status == 200
    await reads.until_begun()


@pytest.mark.parametrize("named", ["tag", "digest"])
async def test_a_cancelled_pull_ends_for_all_its_clients(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    reads = HeldReads(monkeypatch)
    ref = REF if named == "tag" else f"{REF}@blake3:{layout.digest}"
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app, asyncio.timeout(30):
        pulling = asyncio.gather(pull(app, REF), pull(app, REF))
        await reads.until_begun()
        while app.downloads.running[layout.digest].clients < 2:
            await asyncio.sleep(0.01)
        status, told = await cancel(app, ref)
        assert status == 200
        assert (told["ref"], told["digest"], told["clients"]) == (ref, layout.digest, 2)
        assert told["bytes_total"] == 1_000_000
        for last in await pulling:
            assert (last["event"], last["code"]) == ("error", 130)
            assert "cancelled" in last["message"]
        assert app.downloads.running == {}
        (row,) = await history(app)
        assert (row["action"], row["code"]) == ("pull", 130)
        # It resumes.
        reads.let_go.set()
        assert (await pull(app, REF))["event"] == "done"


async def test_what_does_not_run_cannot_be_cancelled(tmp_path: Path, layout: Layout) -> None:
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
        status, told = await cancel(app, REF)
        assert (status, told["code"]) == (404, 3)
        assert "p2pcache ps" in told["message"]


async def test_a_cancelled_warm_does_not_come_back(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app, asyncio.timeout(30):
        await begin_warm(app, reads)
        assert (await cancel(app, REF))[0] == 200
        (row,) = await history(app)
        assert (row["action"], row["code"]) == ("warm", 130)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        await asyncio.sleep(0.1)
        assert app.downloads.running == {}


async def test_a_pull_that_everybody_left_is_cancelled_not_failed(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    origin = (tmp_path / "origin").as_uri()
    async with agent(tmp_path, origin=origin, abandon_after_s=0.2) as app, asyncio.timeout(30):
        async with client(app) as session, session.post("/v1/pull", json={"ref": REF}) as answer:
            told = await answer.content.readline()
            assert b'"abandon_after_s":0.2' in told
            await reads.until_begun()
        while app.downloads.running:
            await asyncio.sleep(0.02)
        (row,) = await history(app)
        assert row["code"] == 130
        assert "nobody waits" in row["message"]
        async with client(app) as session, session.get("/metrics") as answer:
            assert 'pulls_total{exit_code="130"} 1.0' in await answer.text()


async def test_removing_a_model_that_is_warmed_is_no_failure(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app, asyncio.timeout(30):
        await begin_warm(app, reads)
        async with client(app) as session, session.delete(f"/v1/model?ref={REF}") as answer:
            assert answer.status == 200
        assert {(row["action"], row["code"]) for row in await history(app)} == {
            ("warm", 130), ("rm", 0),
        }  # fmt: skip


async def test_a_pull_right_after_a_cancelled_one_waits_for_none_of_its_leases(
    tmp_path: Path,
) -> None:
    """It stood still until they expired, 13 s later, and knew nothing of the runs that their reads had brought."""
    files = {"weights.bin": random.Random(8).randbytes(6_000_000)}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), REF)
    async with (
        tracker(tmp_path / "origin") as hub,
        agent(tmp_path, tracker=f"http://{hub.address}", origin_bytes_per_s=3_000_000) as app,
    ):
        pulling = asyncio.gather(pull(app, REF))
        async with asyncio.timeout(20):
            while not any(swarm.bytes_done for swarm in app.downloads.swarms.values()):
                await asyncio.sleep(0.02)
        assert (await cancel(app, REF))[0] == 200
        (last,) = await pulling
        assert last["code"] == 130
        (swarm,) = app.downloads.swarms.values()
        async with asyncio.timeout(8):  # at the cap all of it takes 2 s
            assert (await pull(app, REF))["event"] == "done"
        assert swarm.traffic[Source.ORIGIN] < 1.5 * 6_000_000
