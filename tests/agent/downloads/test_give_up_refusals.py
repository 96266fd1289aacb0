"""Errors of storage reach waiting clients: a refusal at once, a passing trouble while they wait."""

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.downloads.give_up import HOPELESS_S, REFUSED_S, hopeless
from p2pcache.agent.jobs import pulls
from p2pcache.agent.node import origin_opener
from p2pcache.errors import NotAllowed, OriginUnavailable, Unreachable
from tests.agent.kit import agent, client, events, make_model, pull, push
from tests.agent.s3_kit import Storage, s3
from tests.tracker.kit import get, tracker

AT_ONCE_S = 10.0  # of 90 s without any byte; storage was tried again for 30 s
FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    with s3(tmp_path / "origin", monkeypatch) as served:
        yield served


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (403, "AccessDenied"), (400, "InvalidToken")]
)
async def test_a_refusal_in_the_middle_ends_the_pull_at_once(
    tmp_path: Path, storage: Storage, status: int, code: str, *, tracked: bool
) -> None:
    reads: list[str] = []

    def fault(key: str) -> tuple[int, str] | None:
        reads.append(key)
        blobs = [read for read in reads if "/blobs/" in read]
        return (status, code) if "/blobs/" in key and len(blobs) > 2 else None

    storage.fault = fault
    async with tracker("s3://models") as one:
        where = {"tracker": f"http://{one.address}"} if tracked else {"origin": "s3://models"}
        async with agent(tmp_path, **where) as app:
            began = time.monotonic()
            failed = await pull(app, "team/m:v1")
            assert time.monotonic() - began < AT_ONCE_S
            assert failed["code"] == 4
            assert code in failed["message"]
            async with client(app) as session:
                async with session.get("/v1/history") as answer:
                    row = (await answer.json())["history"][0]
                async with session.get("/v1/status") as answer:
                    told = await answer.json()
            assert (row["code"], code in row["message"]) == (4, True)
            assert told["origin"]["refused"]
            assert code in told["origin"]["error"]
            assert any(code in warning for warning in told["warnings"])


async def test_storage_that_cannot_be_opened_is_a_refusal_too(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker tells what the name means: only the bytes have to come from our own storage."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hushhush\n")
    async with tracker(tmp_path / "origin") as one:
        where = {"tracker": f"http://{one.address}", "origin": "s3://models"}
        async with agent(tmp_path, **where) as app:
            began = time.monotonic()
            failed = await pull(app, "team/m:v1")
            assert time.monotonic() - began < AT_ONCE_S
    assert failed["code"] == 4
    assert "AWS_SESSION_TOKEN" in failed["message"]
    assert "hush" not in str(failed)


async def test_passing_trouble_is_shown_to_waiting_clients(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "QUIET_S", 0.2)
    busy = True
    storage.fault = lambda key: (503, "SlowDown") if busy and "/blobs/" in key else None
    async with agent(tmp_path, origin="s3://models") as app, client(app) as session:
        async with session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer:
            seen: list[dict[str, Any]] = []
            async for line in answer.content:
                seen.append(json.loads(line))
                if "trouble" in seen[-1]:
                    busy = False
    assert any("SlowDown" in event.get("trouble", "") for event in seen)
    assert seen[-1]["event"] == "done"


async def test_who_waits_for_a_tracker_s_leases_is_told_of_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull whose tracker was never met showed 0 % for 20 s, and not why."""
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    monkeypatch.setattr(pulls, "QUIET_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    where = {"tracker": url, "origin": (tmp_path / "origin").as_uri()}
    trouble = ""
    async with (
        agent(tmp_path, **where) as app, client(app) as session, asyncio.timeout(15),
        session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer,
    ):  # fmt: skip
        async for line in answer.content:
            event = json.loads(line)
            if event["event"] == "progress" and "trouble" in event:
                trouble = event["trouble"]
                break
    assert trouble.startswith(f"tracker {url} is not reachable")


async def test_a_client_that_waits_for_a_name_sees_why(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.agent.jobs.events.WAITING_S", 0.2)
    asked = 0

    def fault(key: str) -> tuple[int, str] | None:
        nonlocal asked
        asked += "/tags/" in key
        return (503, "SlowDown") if "/tags/" in key and asked < 6 else None

    storage.fault = fault
    async with agent(tmp_path, origin="s3://models") as app, client(app) as session:
        async with session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer:
            told = await events(answer)
    waiting = [event for event in told if event["event"] == "waiting"]
    assert any("SlowDown" in event.get("trouble", "") for event in waiting)
    assert told[-1]["event"] == "done"


async def test_peers_bring_runs_that_storage_refuses_to_one_node(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (tmp_path / "origin").as_uri()
    storage.fault = lambda key: (403, "AccessDenied") if "/blobs/" in key else None
    async with tracker("s3://models") as one:
        where = {"tracker": f"http://{one.address}"}
        async with (
            agent(tmp_path, "a", origin=good, **where) as able,
            agent(tmp_path, "b", origin="s3://models", **where) as refused,
        ):
            first, second = await asyncio.gather(
                pull(able, "team/m:v1"), pull(refused, "team/m:v1")
            )
    assert first["event"] == "done"
    assert second["event"] == "done"


async def test_unprivileged_callers_get_no_words_of_storage(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin_opener, "PROVE_S", 0.01)
    storage.fault = lambda _: (403, "OddCode")
    async with tracker("s3://models") as one:
        await one.catalog.probe()
        paths = ("/readyz", "/v1/status", "/v1/locate?ref=team/m:v1", "/v1/nodes", "/metrics")
        said = [str(await get(one.address, path)) for path in paths]
        assert "refuses" in said[0]
        assert "refuses" in said[2]
        where = {"origin": "s3://models", "health_listen": "127.0.0.1:0"}
        sock = str(tmp_path / "client.sock")
        async with agent(tmp_path, client_socket=sock, **where) as app:
            async with asyncio.timeout(30):
                while not app.queries.warnings():
                    await asyncio.sleep(0.01)
            assert (await pull(app, "team/m:v1"))["code"] == 4
            health = app.listeners.health_address
            said += [str(await get(health, path)) for path in ("/readyz", "/metrics")]
            async with client(app, path=sock) as session:
                for path in ("/readyz", "/v1/status"):
                    async with session.get(path) as answer:
                        said.append(await answer.text())
            assert "refuses" in said[-1]
    for text in said:
        assert "OddCode" not in text
        assert "said of" not in text


async def test_the_end_of_a_refusal_is_noticed_without_a_pull(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin_opener, "ASK_AGAIN_S", 0.01)
    storage.fault = lambda key: (403, "AccessDenied") if "/blobs/" in key else None
    async with agent(tmp_path, origin="s3://models") as app:
        assert (await pull(app, "team/m:v1"))["code"] == 4
        await asyncio.sleep(0.2)  # other objects can be read, which says nothing about these
        assert (await app.queries.status())["origin"]["refused"]  # type: ignore[index]
        storage.fault = lambda _: None
        async with asyncio.timeout(30):
            while app.queries.warnings():
                await asyncio.sleep(0.01)


def test_when_a_pull_is_given_up() -> None:
    refusal, outage = NotAllowed("ExpiredToken"), OriginUnavailable("SlowDown")
    lone: dict[str, bool] = {"asking": False, "reading": True, "others": False}
    assert isinstance(hopeless(0.0, None, refusal, **lone), NotAllowed)
    among = {**lone, "others": True}
    assert hopeless(REFUSED_S - 1, None, refusal, **among) is None
    assert isinstance(hopeless(REFUSED_S, None, refusal, **among), NotAllowed)
    assert hopeless(HOPELESS_S - 1, None, refusal, **{**among, "asking": True}) is None
    assert hopeless(HOPELESS_S - 1, None, outage, **lone) is None
    given_up = hopeless(HOPELESS_S, None, outage, **lone)
    assert isinstance(given_up, OriginUnavailable)
    assert "SlowDown" in str(given_up)
    assert hopeless(HOPELESS_S, None, None, **lone) is None
    assert isinstance(hopeless(HOPELESS_S, None, None, **{**lone, "reading": False}), Unreachable)
