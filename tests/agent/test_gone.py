"""A cache dir that is deleted, or replaced, under a running agent: said in one line, and the end of it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from p2pcache.agent import janitor
from p2pcache.errors import Unreachable
from tests.agent.kit import agent, client


@pytest.mark.parametrize("replaced", [False, True])
async def test_the_agent_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr(janitor, "LOOK_S", 0.5)
    with pytest.RaisesGroup(Unreachable, flatten_subgroups=True, allow_unwrapped=True):
        async with agent(tmp_path) as app:
            shutil.rmtree(app.settings.cache_dir)
            if replaced:
                Path(app.settings.cache_dir).mkdir()
            async with client(app) as session, session.get("/v1/status") as answer:
                told = await answer.json()
            assert told["code"] == 8
            assert "was deleted or replaced under this agent; restart it" in told["message"]
            await asyncio.sleep(60)  # it ends meanwhile
