"""An agent that its tracker refuses: the pull fails at once and says what to do."""

import random
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.core.format.layout import Layout
from tests.agent.kit import agent, client, make_model, pull, push
from tests.tracker.kit import tracker

AT_ONCE_S = 5.0  # of 90 s without any byte, after which a pull is given up


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """Two different keys."""
    made = []
    for name in ("right", "wrong"):
        path = tmp_path / f"{name}.key"
        path.write_text(secrets.token_hex(32))
        path.chmod(0o600)
        made.append(str(path))
    return made[0], made[1]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    files = {"weights.bin": random.Random(3).randbytes(100_000)}
    return push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")


async def test_another_cluster_key_fails_at_once(
    tmp_path: Path, keys: tuple[str, str], layout: Layout
) -> None:
    right, wrong = keys
    async with (
        tracker(tmp_path / "origin", cluster_key_file=right) as one,
        agent(tmp_path, tracker=f"http://{one.address}", cluster_key_file=wrong) as app,
    ):
        start = time.monotonic()
        for ref in ("team/m:v1", f"team/m@blake3:{layout.digest}"):
            refused = await pull(app, ref)
            assert refused["code"] == 4
            assert "another cluster key" in refused["message"]
            assert "--cluster-key-file" in refused["message"]
            assert "\n" not in refused["message"]
        assert time.monotonic() - start < AT_ONCE_S
        async with client(app) as session, session.get("/v1/nodes") as answer:
            refused = await answer.json()
        assert refused["code"] == 4
        assert "not reachable" not in refused["message"]
        async with client(app) as session, session.get("/v1/status") as answer:
            told: dict[str, Any] = (await answer.json())["tracker"]
        assert told["refused"]
        assert not told["connected"]


async def test_another_key_beside_a_storage_of_its_own(
    tmp_path: Path, keys: tuple[str, str], layout: Layout
) -> None:
    """It knows what to fetch, and has no leave to read it: a cluster's storage is read once."""
    right, wrong = keys
    origin = tmp_path / "origin"
    async with (
        tracker(origin, cluster_key_file=right) as one,
        agent(
            tmp_path, tracker=f"http://{one.address}", cluster_key_file=wrong,
            origin=origin.as_uri(),
        ) as app,
    ):  # fmt: skip
        start = time.monotonic()
        refused = await pull(app, "team/m:v1")
        assert refused["code"] == 4
        assert "--cluster-key-file" in refused["message"]
        assert time.monotonic() - start < AT_ONCE_S


async def test_a_complete_model_needs_no_tracker(
    tmp_path: Path, keys: tuple[str, str], layout: Layout
) -> None:
    right, wrong = keys
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, "team/m:v1"))["event"] == "done"
    async with (
        tracker(tmp_path / "origin", cluster_key_file=right) as one,
        agent(tmp_path, tracker=f"http://{one.address}", cluster_key_file=wrong) as app,
    ):
        done = await pull(app, "team/m:v1")
        assert done["event"] == "done"
