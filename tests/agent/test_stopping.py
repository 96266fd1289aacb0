"""An agent in its orderly stop: who comes now is told what those hear whose pulls it ends."""

import asyncio
from pathlib import Path

import pytest

from p2pcache.errors import Unreachable
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import agent


async def test_a_stopping_agent_is_one_that_cannot_be_reached(tmp_path: Path) -> None:
    """Exit 8: the kubelet tries again, and a loader that had lost it goes on trying."""
    async with agent(tmp_path) as app:
        caller = AgentClient(f"unix://{app.settings.socket}")
        app.listeners.gate.stopping.set()
        with pytest.raises(Unreachable, match="stopping") as caught:
            await asyncio.to_thread(list, caller.pull("team/m:v1"))
        assert caught.value.retryable
        assert await asyncio.to_thread(caller.models) == []
