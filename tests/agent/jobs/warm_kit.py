"""What the tests of warming share: a model, a cluster of agents, and questions to them."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads.download import Download
from tests.agent.kit import agent, client, make_model, push
from tests.tracker.kit import tracker

REF = "team/m:v1"


def model(tmp: Path, name: str = "m", size: int = 3_000_000) -> str:
    data = {"weights.bin": random.Random(name).randbytes(size)}
    return push(tmp / "origin", make_model(tmp / name, data), f"team/{name}:v1").digest


async def warm(app: AgentApp, ref: str = REF, **body: Any) -> dict[str, Any]:
    async with (
        client(app) as session,
        session.post("/v1/warm", json={"ref": ref, **body}) as answer,
    ):
        found: dict[str, Any] = await answer.json()
        return found


async def get(app: AgentApp, path: str) -> Any:
    async with client(app) as session, session.get(path) as answer:
        return await answer.json()


async def until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


async def refs(app: AgentApp) -> list[str]:
    return [model["ref"] for model in (await get(app, "/v1/models"))["models"] if model["complete"]]


def running(app: AgentApp, name: str) -> Download:
    return next(d for d in app.downloads.running.values() if d.ref.name == name)


@contextlib.asynccontextmanager
async def cluster(tmp: Path, *racks: str, **settings: Any) -> AsyncIterator[list[AgentApp]]:
    """A tracker and an agent for each rack named; all of them are members."""
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(tracker(tmp / "origin"))
        apps = [
            await stack.enter_async_context(
                agent(tmp, f"n{n}", tracker=f"http://{one.address}", rack=rack, node_name=f"n{n}", **settings)
            )
            for n, rack in enumerate(racks)
        ]  # fmt: skip
        await until(lambda: all(app.link and app.link.connected for app in apps))
        await until(lambda: all(r.beat.free_bytes for r in one.tracking.registry.nodes.values()))
        yield apps
