"""A pushed model is in the cluster: no node reads the origin for it."""

import io
import random
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.cluster import free_ports
from p2pcache.agent.app import AgentApp
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins import Retrying
from tests.agent.kit import agent, client, events, make_model, pull
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


async def push_through(app: AgentApp, layout: Layout, **more: object) -> dict[str, Any]:
    async with client(app) as session:
        async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
            missing = (await answer.json())["missing"]
        for item in missing:
            url = f"/v1/blobs/{layout.digest}/{item['blob']}"
            async with session.put(url, data=io.BytesIO(FILES["weights.bin"])) as answer:
                assert answer.status == 200
        body = {"ref": "m", "digest": layout.digest, **more}
        async with session.post("/v1/push", json=body) as answer:
            return (await events(answer))[-1]


async def test_storage_without_conditional_put_is_written_by_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retrying, "conditional_put", False)
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with agent(tmp_path, "alone", origin=origin.as_uri()) as app:
        refused = await push_through(app, layout)
        assert (refused["event"], refused["code"]) == ("error", 2)
    async with (
        tracker(origin) as one,
        agent(tmp_path, "b", tracker=f"http://{one.address}", origin=origin.as_uri()) as app,
    ):
        done = await push_through(app, layout)
        assert (done["event"], done["generation"]) == ("done", 1)
        assert (await pull(app, "m"))["event"] == "done"


async def test_a_push_before_the_first_contact_names_the_tracker(
    tmp_path: Path,
) -> None:
    layout = push_layout(tmp_path)
    async with agent(tmp_path, "a", tracker=f"http://127.0.0.1:{free_ports(1)[0]}") as app:
        refused = await push_through(app, layout)
    assert refused["code"] == 8
    assert "connection refused" in refused["message"]


def push_layout(tmp_path: Path) -> Layout:
    return Layout(index_directory(make_model(tmp_path / "model", FILES))[0])


async def test_the_first_pull_after_a_push_reads_from_the_pusher(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with (
        tracker(origin) as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}") as pusher,
        agent(tmp_path, "b", tracker=f"http://{one.address}") as other,
    ):
        assert (await push_through(pusher, layout))["event"] == "done"
        done = await pull(other, "m")
        assert (done["event"], done["bytes_origin"]) == ("done", 0)


async def test_a_repair_uploads_what_the_origin_seems_to_have(tmp_path: Path) -> None:
    layout = push_layout(tmp_path)
    origin = tmp_path / "origin"
    origin.mkdir()
    async with agent(tmp_path, "a", origin=origin.as_uri()) as app:
        assert (await push_through(app, layout))["event"] == "done"
        (blob,) = (origin / "p2pcache/v1/blobs").iterdir()
        blob.write_bytes(bytes(blob.stat().st_size))
        assert (await push_through(app, layout))["bytes_uploaded"] == 0
        done = await push_through(app, layout, repair=True)
        assert done["bytes_uploaded"] == len(FILES["weights.bin"])
        assert blob.read_bytes() == FILES["weights.bin"]
