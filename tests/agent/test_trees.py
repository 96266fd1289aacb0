"""Real agents that hand each other what is new down trees: they see it, people see it, and it can be turned off."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from tests.agent.kit import agent, explain, make_model, pull, push, said
from tests.tracker.kit import get, tracker

NODES = 8
SIZE = 16_000_000
SLOW = 4_000_000  # bytes per second that storage gives each node, until everything was seen


@pytest.mark.parametrize("trees_from", [4, 0])
async def test_who_is_supplied_by_whom_is_told(tmp_path: Path, trees_from: int) -> None:
    model = make_model(tmp_path / "model", {"weights.bin": random.Random(5).randbytes(SIZE)})
    push(tmp_path / "origin", model, "team/m:v1")
    async with (
        tracker(tmp_path / "origin", trees_from=trees_from) as hub,
        contextlib.AsyncExitStack() as stack,
    ):
        apps = [
            await stack.enter_async_context(
                agent(tmp_path, f"n{number}", tracker=f"http://{hub.address}", origin_bytes_per_s=SLOW // 8)
            )
            for number in range(NODES)
        ]  # fmt: skip
        pulling = asyncio.gather(*(pull(app, "team/m:v1") for app in apps))
        known = {f"{app.node:016x}" for app in apps}
        seen: dict[str, Any] = {}
        most = 0
        while not pulling.done():
            await asyncio.sleep(0.1)
            _, found = await get(hub.address, "/v1/swarms")
            most = max([most, *(row["supplied"] for row in found["swarms"])])
            assert all(row["slow"] == [] for row in found["swarms"])
            now = (await explain(apps[0]))[1].get("now") or {}
            if now.get("counters", {}).get("supplied"):
                seen = seen or now | {"text": await said(apps[0])}
        assert [done["event"] for done in await pulling] == ["done"] * NODES
        read = sum(done["report"]["bytes_origin"] for done in await pulling)
        assert read == SIZE
        _, metrics = await get(hub.address, "/metrics")
        assert "p2pcache_tracker_swarm_supplied_members{" in metrics
        assert "p2pcache_tracker_swarm_slow_members{" in metrics
        if not trees_from:
            assert (most, seen) == (0, {})
            return
        assert most == NODES
        assert len(seen["suppliers"]) == 4
        named = {node for node in seen["suppliers"] if node}
        assert named < known - {f"{apps[0].node:016x}"}
        assert {peer["node"] for peer in seen["peers"] if peer["supplies"]} <= named
        assert "nodes hand us what is new" in seen["text"]
