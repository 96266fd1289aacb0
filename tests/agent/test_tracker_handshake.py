"""A tracker and a peer of a release that speaks no wire version of ours."""

import random
from pathlib import Path

import pytest

from p2pcache.io.peers.serve import server_session
from p2pcache.tracker.members import connection
from tests.agent.kit import agent, make_model, pull, push
from tests.io.peers.kit import make_model as chunks
from tests.io.peers.kit import node
from tests.tracker.kit import tracker


async def test_a_tracker_that_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"weights.bin": random.Random(3).randbytes(100_000)}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    monkeypatch.setattr(connection, "VERSIONS", (7, 8))
    async with (
        tracker(tmp_path / "origin") as newer,
        agent(tmp_path, tracker=f"http://{newer.address}") as app,
    ):
        refused = await pull(app, "team/m:v1")
        assert refused["code"] == 8
        assert "wire versions [7, 8], this release [1]; upgrade the older one" in refused["message"]


async def test_a_peer_that_is_too_new(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_session, "VERSIONS", (7,))
    caplog.set_level("INFO")
    model = chunks([1000] * 4)
    async with node(1) as newer, node(2) as ours:
        newer.swarm(model, full=True)
        port = ours.swarm(model)
        ours.net.dial(model.layout.digest, 1, newer.address)
        await port.heard("failed", 1)
        assert "upgrade the older one" in caplog.text
