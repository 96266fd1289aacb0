"""`GET /v1/explain` and the report in `done`, of real agents during and after a pull."""

import asyncio
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from p2pcache.agent.downloads.resolver import Resolver
from p2pcache.cli.main import cli
from p2pcache.errors import NotFound, OriginUnavailable
from p2pcache.ids import Ref
from p2pcache.io.disk.store_info import ModelInfo, why_no_pull
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.kit import HeldReads, agent, client, explain, make_model, pull, push, said
from tests.tracker.kit import tracker

SIZE = 8_000_000


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"weights.bin": random.Random(5).randbytes(SIZE)}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return tmp_path / "origin"


async def test_explain_shows_where_the_time_of_a_finished_pull_went(
    tmp_path: Path, origin: Path
) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await explain(app))[0] == 404
        done = await pull(app, "team/m:v1")
        report = done["report"]
        names = [phase["phase"] for phase in report["phases"]]
        assert names == [
            "resolve", "manifest", "local", "first_byte", "swarm", "tail", "flush", "publish",
        ]  # fmt: skip
        assert report["bytes_origin"] == SIZE
        assert 0 < report["seconds"] <= done["seconds"] + 0.1
        assert "report" not in await pull(app, "team/m:v1")  # it was here: nothing to explain
        status, found = await explain(app)
        assert (status, found["state"], found["now"]) == (200, "idle", None)
        assert found["report"]["phases"] == report["phases"]
        assert found["last"]["code"] == 0
        text = await said(app)
        assert "time to ready: " in text
        assert "8.00 MB from storage" in text
    async with agent(tmp_path, origin=origin.as_uri()) as app:  # the next life remembers
        assert (await explain(app))[1]["report"] == found["report"]


async def test_explain_shows_why_a_pull_failed(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await pull(app, "team/none:v1"))["code"] == 3
        status, found = await explain(app, "team/none:v1")
        assert (status, found["last"]["code"], found["report"]) == (200, 3, None)


def enough(found: dict[str, Any]) -> bool:
    """Whether bytes have come, and were waited for long enough to be seen in the report."""
    come = found.get("state") == "running" and found["now"]["bytes_done"] > 0
    return come and found["report"]["waited"].get("peers", 0) > 0.6


async def test_explain_shows_what_a_running_pull_waits_for(tmp_path: Path, origin: Path) -> None:
    async with tracker(origin) as hub:
        url = f"http://{hub.address}"
        async with (
            agent(tmp_path, "a", tracker=url, governor="off") as a,
            agent(tmp_path, "b", tracker=url) as b,
        ):
            assert (await pull(a, "team/m:v1"))["event"] == "done"
            a.net.limit_uploads(250_000, 1)  # until everything below was seen
            pulling = asyncio.gather(pull(b, "team/m:v1"))
            status, found = await explain(b)
            async with asyncio.timeout(60):
                while not enough(found):
                    await asyncio.sleep(0.05)
                    status, found = await explain(b)
            assert (status, found["state"]) == (200, "running")
            now = found["now"]
            assert now["waits_for"] == "peers"
            assert [peer["node"] for peer in now["peers"]] == [f"{a.node:016x}"]
            assert now["peers"][0]["address"] == a.advertise
            assert now["requests"]
            assert now["requests"][0]["node"] == f"{a.node:016x}"
            assert 0 < now["bytes_done"] < now["bytes_total"] == SIZE
            assert now["eta_s"] > 0
            assert any("asked of" in line for one in now["stuck"] for line in one["story"])
            assert found["report"]["phases"][-1]["phase"] in ("first_byte", "swarm")
            text = await said(b)
            assert "waits for: bytes are on their way from peers" in text
            assert a.advertise in text
            a.net.limit_uploads(0, 4)
            (done,) = await pulling
            assert done["report"]["peers"] == [{"node": f"{a.node:016x}", "bytes": SIZE}]
            assert done["report"]["waited"]["peers"] > 0.5


async def test_explain_says_that_a_pull_waits_for_what_its_name_means(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knew nothing of a pull, and advised to begin it, while storage was silent."""
    back = threading.Event()
    read = OriginRepo.get_tag
    monkeypatch.setattr(OriginRepo, "get_tag", lambda *args: (back.wait(30), read(*args))[1])
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        pulling = asyncio.gather(pull(app, "team/m:v1"))
        try:
            async with asyncio.timeout(10):
                while not app.resolver.asks_for(Ref.parse("team/m:v1")):
                    await asyncio.sleep(0.01)
            status, told = await explain(app)
        finally:
            back.set()
        assert status == 404
        assert told["message"].startswith("team/m:v1 waits for storage file://")
        assert (await pulling)[0]["event"] == "done"
        assert (await explain(app))[0] == 200


async def test_who_asks_for_a_name_hides_no_history(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While anybody asked for the name, a `show` too, nothing was known of the last pull."""
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
        monkeypatch.setattr(Resolver, "asks_for", lambda *_: True)
        status, found = await explain(app)
        assert (status, found["state"], found["last"]["code"]) == (200, "idle", 0)


async def test_explain_tells_of_the_last_pull_of_a_tag_that_moved(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        first = asyncio.gather(pull(app, "team/m:v1"))
        async with asyncio.timeout(20):
            while not app.downloads.running:
                await asyncio.sleep(0.02)
        (old,) = app.downloads.running
        push(origin, make_model(tmp_path / "next", {"w.bin": b"next" * 50_000}), "team/m:v1")
        second = asyncio.gather(pull(app, "team/m:v1"))
        async with asyncio.timeout(20):
            while len(app.downloads.running) < 2:
                await asyncio.sleep(0.02)
        (new,) = app.downloads.running.keys() - {old}
        assert (await explain(app))[1]["digest"] == new
        assert (await explain(app, f"team/m:v1@blake3:{old}"))[1]["digest"] == old
        reads.let_go.set()
        await asyncio.gather(first, second)


async def test_explain_names_the_storage_that_fails(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        pulling = asyncio.gather(pull(app, "team/m:v1"))
        async with asyncio.timeout(20):
            await reads.until_begun()
        assert "trouble" not in (await explain(app))[1]["now"]
        monkeypatch.setattr(OriginRepo, "trouble", OriginUnavailable("it answers 503"))
        now = (await explain(app))[1]["now"]
        assert (now["waits_for"], now["trouble"]) == ("origin", "it answers 503")
        assert "storage: it answers 503; it is asked again" in await said(app)
        (swarm,) = app.downloads.swarms.values()
        swarm.reads_storage = False  # another site brings the model
        assert "trouble" not in (await explain(app))[1]["now"]
        swarm.reads_storage = True
        reads.let_go.set()
        (done,) = await pulling
        assert done["report"]["bytes_had"] == 0


def test_without_an_agent_the_cache_remembers(tmp_path: Path, origin: Path) -> None:
    own = ["--cache-dir", str(tmp_path / "own")]
    run = CliRunner().invoke(cli, ["pull", "team/m:v1", "--origin", origin.as_uri(), *own])
    assert run.exit_code == 0, run.output
    told = CliRunner().invoke(cli, ["explain", "team/m:v1", *own])
    assert told.exit_code == 0, told.output
    assert "the last pull that ended: done" in told.output
    assert "are here" not in told.output
    assert "time to ready: " in told.output
    none = CliRunner().invoke(cli, ["explain", "team/none:v1", *own])
    assert "nothing is known" in str(none.exception)


async def test_explain_shows_the_rest_of_a_model_beside_its_last_pull(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pull that was killed, the last one that ended was another; after `rm`, so it was, too."""
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
        kept = {"bytes_done": SIZE, "bytes_total": SIZE, "complete": True}
        assert (await explain(app))[1]["here"] == kept
        (weights,) = (Path(app.settings.cache_dir) / "blobs").iterdir()
        with weights.open("r+b") as file:
            file.write(b"rot")
        reads = HeldReads(monkeypatch)  # or what is lost is back at once
        await asyncio.to_thread(
            CliRunner().invoke,
            cli,
            ["verify", "team/m:v1", "--agent", f"unix://{app.settings.socket}"],
        )
        kept = (await explain(app))[1]["here"]
        assert (kept["bytes_done"] < SIZE, kept["complete"]) == (True, False)
        text = await said(app)
        assert "the last pull that ended: done" in text
        assert " of 8.00 MB are here, and nothing fetches the rest" in text
        assert "run: p2pcache pull team/m:v1" in text
        reads.lost = True
        reads.let_go.set()
        async with client(app) as session, session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 200
        assert (await explain(app))[1]["here"] is None
        assert "none of it is in this cache any more" in await said(app)


async def test_explain_of_a_model_without_a_recorded_pull(tmp_path: Path, origin: Path) -> None:
    """An agent that is killed writes no history: what is here says so, and `nothing is known` would mislead."""
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        cache = app.settings.cache_dir
    with sqlite3.connect(Path(cache) / "agent.db") as records:
        records.execute("DELETE FROM history")
    records.close()
    own = ["--cache-dir", str(cache)]
    told = await asyncio.to_thread(CliRunner().invoke, cli, ["explain", "team/m:v1", *own])
    assert "team/m:v1 is here, all of it" in str(told.exception)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        status, found = await explain(app)
        assert (status, "is here, all of it" in found["message"]) == (404, True)


def test_explain_of_a_pull_that_was_killed() -> None:
    ref, digest = Ref.parse("team/m:v1"), "ab" * 32
    part = ModelInfo(digest, 100, 1, 40, 100, False, [], [ref], 0.0)
    says = "40% of team/m:v1 are here, of a pull that was killed with its agent; to resume it, run: p2pcache pull"
    assert why_no_pull(ref, [part]).startswith(says)
    assert why_no_pull(Ref.parse(f"team/m:v1@blake3:{digest}"), [part]).startswith("40% of ")
    other = f"team/m:v1@blake3:{'cd' * 32}"
    for unknown in ("team/m:v2", other):
        assert why_no_pull(Ref.parse(unknown), [part]).startswith("nothing is known")


async def test_explain_finds_a_failed_pull_that_an_older_release_wrote(
    tmp_path: Path, origin: Path
) -> None:
    """It wrote the default tag beside a digest, too."""
    digest = "0" * 64
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        old = f"team/m:latest@blake3:{digest}"
        app.journal.record("pull", ref=old, digest="", seconds=1.0, error=NotFound("gone"))
        status, told = await explain(app, f"team/m@blake3:{digest}")
        assert status == 200
        assert told["last"]["ref"] == f"team/m@blake3:{digest}"
