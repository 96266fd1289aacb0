"""`POST /v1/linger`: when the agent of a command may leave."""

import asyncio
import random
from pathlib import Path
from typing import Any

from p2pcache.agent.app import AgentApp
from tests.agent.kit import agent, client, make_model, pull, push
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(8_000_000)}
LIMIT_S = 20


async def linger(app: AgentApp, digest: str) -> dict[str, Any]:
    body = {"digest": digest, "seconds": LIMIT_S}
    async with client(app) as session, session.post("/v1/linger", json=body) as answer:
        told: dict[str, Any] = await answer.json()
        return told


async def test_nodes_that_end_together_leave_together(tmp_path: Path) -> None:
    """Nobody told a node that it has what came from that node, so each stayed for the whole limit."""
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    async with tracker(tmp_path / "origin") as hub:
        url = f"http://{hub.address}"
        async with agent(tmp_path, "a", tracker=url) as a, agent(tmp_path, "b", tracker=url) as b:
            ends = await asyncio.gather(*(pull(app, "team/m:v1") for app in (a, b)))
            (digest,) = {end["digest"] for end in ends}
            for told in await asyncio.gather(*(linger(app, digest) for app in (a, b))):
                assert told["replicated"]
                assert told["seconds"] < LIMIT_S / 2


async def test_it_stays_while_a_neighbour_lacks_something(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    async with tracker(tmp_path / "origin") as hub:
        url = f"http://{hub.address}"
        async with (
            agent(tmp_path, "a", tracker=url, governor="off") as a,
            agent(tmp_path, "b", tracker=url) as b,
            agent(tmp_path, "c", tracker=url) as c,
        ):
            ends = await asyncio.gather(*(pull(app, "team/m:v1") for app in (a, b)))
            a.net.limit_uploads(500_000, 1)
            b.net.limit_uploads(500_000, 1)
            late = asyncio.gather(pull(c, "team/m:v1"))
            digest = ends[0]["digest"]
            async with asyncio.timeout(20):
                while not a.net.has_needy_neighbour(digest):
                    await asyncio.sleep(0.01)
            staying = asyncio.gather(linger(a, digest))
            await asyncio.sleep(1)
            assert not staying.done()
            for app in (a, b):
                app.net.limit_uploads(0, 4)
            assert (await late)[0]["event"] == "done"
            assert (await staying)[0]["replicated"]
