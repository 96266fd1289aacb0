"""An agent yields to its engine: the hook, the limits, the status."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.host.settings import FLOOR_BYTES_PER_S
from p2pcache.errors import UsageError
from tests.agent.kit import agent, client


async def say(app: AgentApp, level: object) -> int:
    async with client(app) as session, session.post("/v1/pressure", json={"level": level}) as said:
        return said.status


async def shown(app: AgentApp) -> dict[str, object]:
    async with client(app) as session, session.get("/v1/status") as answer:
        state = (await answer.json())["governor"]
        assert isinstance(state, dict)
        return state


async def test_an_engines_level_slows_the_agent_and_expires(tmp_path: Path) -> None:
    async with agent(tmp_path, governor_floor=0.2) as app:
        await app.governor.sample_and_apply()
        assert (await shown(app))["share"] == 1
        assert await say(app, 2.0) == 200
        for _ in range(5):
            await app.governor.sample_and_apply()
        state = await shown(app)
        assert (state["share"], state["cause"]) == (0.2, "engine")
        assert state["upload_bytes_per_s"] == FLOOR_BYTES_PER_S
        assert app.net._up.bytes_per_s == app.context.disk.bytes_per_s == FLOOR_BYTES_PER_S
        async with client(app) as session, session.get("/metrics") as answer:
            assert "p2pcache_agent_governor_share 0.2\n" in await answer.text()
        app.governor._said = (2.0, app.context.now() - 60)  # nobody said it again
        await asyncio.sleep(0.01)
        await app.governor.sample_and_apply()
        assert app.governor.limits.share > 0.2
        assert app.governor.limits.cause == ""


@pytest.mark.parametrize("level", [-1, "high", None, float("nan")])
async def test_a_level_must_be_one(tmp_path: Path, level: object) -> None:
    async with agent(tmp_path) as app:
        assert await say(app, level) == 400
        assert app.governor._said is None


async def test_with_the_governor_off_a_level_is_refused(tmp_path: Path) -> None:
    async with agent(tmp_path, governor="off") as app:
        assert await say(app, 1) == 400
        assert (await shown(app))["mode"] == "off"


async def test_by_itself_auto_reads_no_counters(tmp_path: Path) -> None:
    async with agent(tmp_path) as app:
        await app.governor.sample_and_apply()
        assert app.governor._pressure._at == 0


@pytest.mark.parametrize(
    "wrong", [{"governor_floor": 0.0}, {"governor_cgroup": "none"}, {"engine_metrics": "x"}]
)
async def test_settings_that_cannot_work_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    places = {"cache_dir": str(tmp_path / "c"), "socket": str(tmp_path / "s")}
    with pytest.raises(UsageError):
        AgentApp(AgentSettings(**{"listen": "127.0.0.1:0", **places, **wrong}))
