"""`GET /v1/locate`: the nodes that have a model, asked at the tracker and through an agent."""

import asyncio
import contextlib
import errno
import functools
import os
import random
import threading
from pathlib import Path

import aiohttp
import pytest

from p2pcache.core.host.kubernetes_labels import label_key
from p2pcache.errors import Unreachable
from p2pcache.ids import Ref
from p2pcache.io.blobs import reservation
from p2pcache.io.disk.disk import Disk
from tests.agent.kit import agent, client, make_model, pull, push
from tests.io.models.store_kit import small_file_system
from tests.tracker.kit import get, tracker

FILES = {"weights.bin": random.Random(8).randbytes(3_000_000)}


async def test_locate_names_the_nodes_that_have_the_model(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    layout = push(origin, make_model(tmp_path / "model", FILES), "team/m:v1")
    async with (
        tracker(origin) as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}", node_name="node-a") as app,
        agent(tmp_path, "b", tracker=f"http://{one.address}", node_name="node-b") as other,
    ):
        assert (await pull(app, "team/m:v1"))["event"] == "done"
        status, found = await get(one.address, "/v1/locate?ref=team/m:v1")
        assert (status, found["digest"]) == (200, layout.digest)
        assert found["label"] == {label_key(Ref.parse("team/m:v1")): layout.digest[:16]}
        (holder,) = found["nodes"]
        assert (holder["name"], holder["complete"], holder["share"]) == ("node-a", True, 1.0)
        assert holder["address"] == app.advertise
        async with client(other) as session, session.get("/v1/locate?ref=team/m:v1") as answer:
            told = await answer.json()
        assert holder.items() < told["nodes"][0].items(), "the node says more itself"
        assert (told["nodes"][0]["kept"], told["nodes"][0]["pinned"]) == ("", False)
        async with client(other) as session, session.get("/v1/nodes") as answer:
            assert {n["name"] for n in (await answer.json())["nodes"]} == {"node-a", "node-b"}


async def test_locate_of_an_unknown_model_and_of_one_without_holders(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    layout = push(origin, make_model(tmp_path / "model", FILES), "m:v1")
    async with tracker(origin) as one:
        assert (await get(one.address, "/v1/locate?ref=m:v1"))[1]["nodes"] == []
        digest = await get(one.address, f"/v1/locate?ref=m@blake3:{layout.digest}")
        assert (digest[0], digest[1]["label"]) == (200, {})
        assert (await get(one.address, "/v1/locate?ref=m:v2"))[0] == 404
        assert (await get(one.address, "/v1/locate?ref=../m"))[0] == 400
        assert (await get(one.address, "/v1/locate"))[0] == 400


async def test_health_on_tcp_is_for_probes_only(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m:v1")
    async with agent(tmp_path, origin=origin.as_uri(), health_listen="127.0.0.1:0") as app:
        await pull(app, "m:v1")
        where = app.listeners.health_address
        assert (await get(where, "/healthz"))[0] == 200
        assert (await get(where, "/readyz"))[0] == 200
        assert (await get(where, "/readyz?model=m:v1"))[0] == 200
        assert (await get(where, "/readyz?model=m:v2"))[0] == 503
        assert "p2pcache_" in (await get(where, "/metrics"))[1]
        async with aiohttp.ClientSession(f"http://{where}") as session:
            for method, path in (
                ("GET", "/v1/models"),
                ("POST", "/v1/pull"),
                ("GET", "/v1/status"),
            ):
                async with session.request(method, path) as answer:
                    assert answer.status == 404


async def test_a_models_readiness_does_not_hang_on_the_tracker(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m:v1")
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "m:v1")
    async with (
        agent(tmp_path, origin=origin.as_uri(), tracker="http://127.0.0.1:9") as app,
        client(app) as session,
    ):
        async with session.get("/readyz") as answer:
            assert answer.status == 503
        async with session.get("/readyz?model=m:v1") as answer:
            assert answer.status == 200


async def test_the_status_of_an_agent_whose_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said nothing for as long as the disk did, and is what people ask then."""
    back = threading.Event()
    async with agent(tmp_path) as app, client(app) as session:
        monkeypatch.setattr(app.store, "usage", lambda: back.wait(30))
        try:
            async with asyncio.timeout(10), session.get("/v1/status") as answer:
                told = await answer.json()
        finally:
            back.set()
    assert told["cache"]["free_bytes"] > 0
    assert [text for text in told["warnings"] if "disk doesn't answer" in text]


async def test_a_disk_without_inodes_is_a_warning_of_status_and_of_probes(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "team/m:v1")
    with small_file_system(tmp_path / "small", 64 << 20, inodes=200) as place:
        async with agent(place, origin=origin.as_uri()) as app, client(app) as session:
            async with session.get("/readyz") as answer:
                assert (await answer.json())["warnings"] == []
            with contextlib.suppress(OSError):
                for n in range(200):
                    (place / f"of-others-{n}").touch()
            async with session.get("/v1/status") as answer:
                told = await answer.json()
            async with session.get("/readyz") as answer:
                probed = await answer.json()
            refused = await pull(app, "team/m:v1")
    assert told["cache"]["free_bytes"] > 0
    for warnings in (told["warnings"], probed["warnings"]):
        (warning,) = warnings
        assert "hardly any new model fits: 0 inodes left" in warning
        assert "df -i" in warning
    assert refused["code"] == 5, refused
    assert "inodes" in refused["message"]


async def test_a_read_only_disk_is_a_warning_of_status_and_of_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel makes a faulty disk so; the agent called itself ready and said nothing."""
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "team/m:v1")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        monkeypatch.setattr(reservation, "is_read_only", lambda _, tries: tries)
        async with session.get("/readyz") as answer:
            assert (await answer.json())["warnings"] == [], "a disk at rest isn't tried"
        with monkeypatch.context() as patch:
            for step in ("open_write", "allocate"):
                patch.setattr(Disk, step, refuse)
            assert (await pull(app, "team/m:v1"))["code"] == 4
        async with session.get("/v1/status") as answer:
            told = await answer.json()
        async with session.get("/readyz") as answer:
            probed = await answer.json()
            assert answer.status == 200, "it serves what it has"
        monkeypatch.setattr(reservation, "is_read_only", lambda _, tries: False)
        async with session.get("/v1/status") as answer:
            assert (await answer.json())["warnings"] == []
    for warnings in (told["warnings"], probed["warnings"]):
        (warning,) = warnings
        assert "is read-only; mount it writable" in warning


async def test_a_full_disk_is_a_warning_of_status_and_of_probes(tmp_path: Path) -> None:
    """The agent called itself ready, and nothing said that no pull can begin."""
    async with agent(tmp_path, min_free_bytes=1 << 60) as app, client(app) as session:
        async with session.get("/v1/status") as answer:
            told = await answer.json()
        async with session.get("/readyz") as answer:
            probed = await answer.json()
            assert answer.status == 200, "it serves what it has"
        app.store.min_free_bytes = 0
        async with session.get("/readyz") as answer:
            assert (await answer.json())["warnings"] == []
    for warnings in (told["warnings"], probed["warnings"]):
        (warning,) = warnings
        assert "disk is full" in warning
        assert "min_free_bytes" in warning


async def test_only_a_tracker_that_does_not_answer_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal by a tracker that answers sent people to look for faults of the network."""
    async with (
        tracker(None) as one,
        agent(tmp_path, tracker=f"http://{one.address}") as app,
    ):
        link = app.link
        assert link is not None
        while not link.connected:
            await asyncio.sleep(0.01)
        with pytest.raises(Unreachable) as refused:
            await app.queries.ask_tracker("resolve", "team/m:v1")
        assert "this tracker has no origin; start it with --origin URL" in str(refused.value)
        assert "doctor" not in str(refused.value)
        monkeypatch.setattr(link, "ask", functools.partial(link.ask, timeout_s=0.0))
        with pytest.raises(Unreachable, match=r"didn't answer .*; pulls go on without it"):
            await app.queries.ask_tracker("nodes")
    async with agent(tmp_path, "b", tracker="http://127.0.0.1:9") as app, client(app) as session:
        async with session.get("/v1/nodes") as answer:
            told = await answer.json()
    assert told["code"] == 8
    assert "pulls go on without it; `p2pcache doctor`" in told["message"]
