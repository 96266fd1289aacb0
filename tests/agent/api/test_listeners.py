"""Each listener of an agent against bytes of strangers, and in an orderly stop."""

import asyncio
from pathlib import Path

import pytest

from p2pcache.errors import Unreachable
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import agent
from tests.io import strangers_kit


@pytest.mark.parametrize("door", ["operator", "client", "api", "health"])
async def test_each_listener_refuses_what_strangers_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, door: str
) -> None:
    async with agent(
        tmp_path, client_socket=str(tmp_path / "c.sock"), health_listen="127.0.0.1:0",
        api_listen="127.0.0.1:0", insecure=True,
    ) as app:  # fmt: skip
        tcp = {"api": app.listeners.api_address, "health": app.listeners.health_address}
        paths = {"operator": app.settings.socket, "client": app.settings.client_socket}

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            if door in tcp:
                host, port = tcp[door].split(":")
                return await asyncio.open_connection(host, int(port))
            return await asyncio.open_unix_connection(paths[door])

        await strangers_kit.check(dial, lambda: caplog.records)


async def test_a_stopping_agent_is_one_that_cannot_be_reached(tmp_path: Path) -> None:
    """Exit 8: the kubelet tries again, and a loader that had lost it goes on trying."""
    async with agent(tmp_path) as app:
        caller = AgentClient(f"unix://{app.settings.socket}")
        app.listeners.gate.stopping.set()
        with pytest.raises(Unreachable, match="stopping") as caught:
            await asyncio.to_thread(list, caller.pull("team/m:v1"))
        assert caught.value.retryable
        assert await asyncio.to_thread(caller.models) == []
