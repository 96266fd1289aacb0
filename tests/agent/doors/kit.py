"""Agents with a door, over a directory as origin."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from p2pcache.agent.app import AgentApp
from tests.agent.jobs.warm_kit import until
from tests.agent.kit import agent


def door_of(setting: str) -> Callable[..., AbstractAsyncContextManager[AgentApp]]:
    """What opens an agent whose door of this setting listens: `async with door(tmp, **settings) as app`."""

    @contextlib.asynccontextmanager
    async def door(tmp: Path, **settings: str) -> AsyncIterator[AgentApp]:
        origin = tmp / "origin"
        origin.mkdir(exist_ok=True)
        more = {"origin": origin.as_uri(), setting: "127.0.0.1:0", **settings}
        async with agent(tmp, **more) as app:
            yield app

    return door


async def until_listed(app: AgentApp, *tags: str) -> None:
    """Wait until these are all tags here. A client may have the last byte of a model just before it is published."""
    await until(lambda: [str(tag) for one in app.store.models() for tag in one.tags] == list(tags))
