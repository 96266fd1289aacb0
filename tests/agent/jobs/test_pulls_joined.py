"""A client that joins a download late: its bytes and its rate are its own."""

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.ids import Ref
from tests.agent.kit import HeldReads, agent, client, events, make_model, pull, push

REF = "team/m:v1"
SIZE = 4_000_000


def slow(tmp: Path) -> dict[str, Any]:
    files = {"weights.bin": random.Random(9).randbytes(SIZE)}
    push(tmp / "origin", make_model(tmp / "model", files), REF)
    return {"origin": (tmp / "origin").as_uri(), "origin_bytes_per_s": 2_000_000}


async def half_here(app: AgentApp) -> None:
    while not app.downloads.running:
        await asyncio.sleep(0.01)
    (download,) = app.downloads.running.values()
    while download.swarm.bytes_done < SIZE // 2:
        await asyncio.sleep(0.01)


async def test_a_late_joiner_counts_from_its_own_beginning(tmp_path: Path) -> None:
    async with agent(tmp_path, **slow(tmp_path)) as app, asyncio.timeout(60):
        first = asyncio.gather(pull(app, REF))
        await half_here(app)
        async with client(app) as session, session.post("/v1/pull", json={"ref": REF}) as answer:
            told = await events(answer)
        (whole,) = await first
        assert whole["bytes_origin"] == SIZE
        late = told[-1]
        assert 0 < late["bytes_origin"] <= SIZE // 2
        assert late["bytes_origin"] + late["bytes_local"] == late["bytes"] == SIZE
        # No faster than storage gives, but for what lay in its first moment's burst.
        assert late["bytes_origin"] / late["seconds"] < 2 * 2_000_000
        came = [event["bytes_origin"] for event in told if event["event"] == "progress"]
        assert came == sorted(came)
        assert came[-1] <= late["bytes_origin"]


async def test_the_rate_that_a_late_joiner_sees_is_that_of_now(tmp_path: Path) -> None:
    """Nobody looked at a warm for a while: the mean since the last look is old news."""
    async with agent(tmp_path, **slow(tmp_path)) as app, asyncio.timeout(60):
        async with client(app) as session:
            async with session.post("/v1/warm", json={"ref": REF}) as answer:
                assert answer.status == 200
            await half_here(app)
            (download,) = app.downloads.running.values()
            # As if the warm had stood still for an hour before these bytes.
            download._samples[:0] = [(time.monotonic() - 3600, 0), (time.monotonic() - 3599, 0)]
            async with session.post("/v1/pull", json={"ref": REF}) as answer:
                event = {"event": ""}
                while event["event"] != "progress":
                    event = json.loads(await answer.content.readline())
        assert int(event["rate"]) > 500_000


async def test_a_tag_that_moved_meanwhile_stays_where_it_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull that began before ended last, and took the tag back to the older model."""
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "new", {"w.bin": b"new"}), "team/m:other")
    push(origin, make_model(tmp_path / "old", {"w.bin": b"old"}), REF)
    async with agent(tmp_path, origin=origin.as_uri()) as app, asyncio.timeout(60):
        new = await pull(app, "team/m:other")
        held = HeldReads(monkeypatch)
        first = asyncio.gather(pull(app, REF))
        await held.until_begun()
        push(origin, tmp_path / "new", REF)
        assert (await pull(app, REF))["digest"] == new["digest"]
        held.let_go.set()
        (old,) = await first
        models = tmp_path / "a/models"
        assert (models / old["path"] / "w.bin").read_bytes() == b"old"
        assert (models / "team/m/v1/w.bin").read_bytes() == b"new"
        assert app.context.store.generation_seen(Ref.parse(REF)) == 2
        assert (await pull(app, REF))["digest"] == new["digest"]


async def test_a_name_that_others_asked_for_stays_where_a_newer_pull_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at first and set then: what a newer pull set in between was taken back."""
    origin, ref = tmp_path / "origin", Ref.parse(REF)
    push(origin, make_model(tmp_path / "old", {"w.bin": b"old"}), REF)
    async with agent(tmp_path, origin=origin.as_uri()) as app, asyncio.timeout(60):
        old = await pull(app, REF)
        push(origin, make_model(tmp_path / "new", {"w.bin": b"new"}), REF)
        new = await pull(app, REF)
        store = app.context.store
        monkeypatch.setattr(store, "generation_seen", lambda _: 1)  # read before the newer pull
        app.downloads._publish_names(app.downloads.swarms[old["digest"]], {ref: 1})
        assert store.tag_of(ref) == (new["digest"], 2)
        assert (tmp_path / "a/models/team/m/v1/w.bin").read_bytes() == b"new"
