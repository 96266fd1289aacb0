"""How full nodes are, as each says it and as the tracker gathers it."""

import asyncio
import random
from pathlib import Path

from tests.agent.kit import agent, client, make_model, pull, push
from tests.tracker.kit import tracker

MB = 1 << 20


async def test_each_node_and_the_pool(tmp_path: Path) -> None:
    files = {"weights.bin": random.Random(1).randbytes(4 * MB)}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "team/m:v1")
    async with tracker(origin=(tmp_path / "origin").as_uri()) as app:
        where = {"tracker": f"http://{app.address}", "cache_quota": "64MiB"}
        async with (
            agent(tmp_path, "a", **where) as one,
            agent(tmp_path, "b", **where) as other,
            asyncio.timeout(30),
        ):
            while not (one.link and one.link.connected and other.link and other.link.connected):
                await asyncio.sleep(0.02)
            assert (await pull(one, "team/m:v1"))["event"] == "done"
            async with client(one) as session:
                wish = {"ref": "team/m:v1", "name": "prod"}
                async with session.get("/v1/room") as answer:
                    before = await answer.json()
                async with session.post("/v1/pins", json=wish) as answer:
                    assert answer.status == 200
                async with session.get("/v1/room") as answer:
                    after = await answer.json()
                async with session.get("/v1/cluster/room") as answer:
                    told = await answer.json()
                async with session.get("/v1/cluster/models") as answer:
                    models = (await answer.json())["swarms"]
    assert (before["used_bytes"], before["held_bytes"], before["evictable_bytes"]) == (
        4 * MB,
        0,
        4 * MB,
    )
    assert (after["held_bytes"], after["evictable_bytes"], after["models"]) == (4 * MB, 0, 1)
    assert sorted(row["used_bytes"] for row in told["room"]) == [0, 4 * MB]
    assert {row["limit_bytes"] for row in told["room"]} == {64 * MB}
    assert (told["silent"], told["older"]) == (0, 0)
    assert [(row["label"], row["complete"]) for row in models] == [("team/m:v1", 1)]
