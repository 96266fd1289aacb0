"""Old models make room: for a pull, above the high mark, when asked; never those in use, and none for nothing."""

import asyncio
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.jobs import room
from p2pcache.core.pool.settings import COST_PEER
from p2pcache.errors import UsageError
from p2pcache.io.models.store import Store
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

MB = 1 << 20


@pytest.fixture(autouse=True)
def not_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models used a moment ago may go, too."""
    monkeypatch.setattr(room, "FRESH_S", 0.0)


@pytest.fixture
def origin(tmp_path: Path) -> str:
    """Storage with models of 4 MiB."""
    for number in range(4):
        files = {"weights.bin": random.Random(number).randbytes(4 * MB)}
        push(tmp_path / "origin", make_model(tmp_path / f"m{number}", files), f"team/m{number}:v1")
    return (tmp_path / "origin").as_uri()


async def evict(app: AgentApp, **body: Any) -> tuple[int, dict[str, Any]]:
    async with client(app) as session, session.post("/v1/evict", json=body) as answer:
        return answer.status, await answer.json()


async def states(app: AgentApp) -> dict[str, str]:
    async with client(app) as session, session.get("/v1/models") as answer:
        rows = (await answer.json())["models"]
    return {
        row["name"]: "remote" if row["remote"] else "complete" if row["complete"] else "part"
        for row in rows
    }


async def test_a_pull_that_does_not_fit_takes_the_place_of_the_least_used(
    tmp_path: Path, origin: str
) -> None:
    async with agent(tmp_path, origin=origin, cache_quota="10MiB", cache_low=0.8) as app:
        for name in ("m0", "m1", "m0"):
            assert (await pull(app, f"team/{name}:v1"))["event"] == "done"
        began = time.monotonic()
        assert (await pull(app, "team/m2:v1"))["event"] == "done"
        assert time.monotonic() - began < 5
        assert await states(app) == {"m0": "complete", "m1": "remote", "m2": "complete"}
        assert not (tmp_path / "a/models/team/m1").exists()
        again = await pull(app, "team/m1:v1")
        assert again["event"] == "done"
        assert (tmp_path / "a/models" / again["path"] / "weights.bin").stat().st_size == 4 * MB
        assert list((await states(app)).values()).count("remote") == 1
        async with client(app) as session, session.get("/v1/history") as answer:
            rows = (await answer.json())["history"]
        assert [r["ref"] for r in rows if r["action"] == "evict"][-1] == "team/m1:v1"
        assert app.journal.ended["evict", 0] == 2


async def test_the_last_victim_keeps_what_may_stay_is_served_and_comes_back(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.core.pool.eviction.PART_BYTES", MB)
    monkeypatch.setattr(room, "PART_SLACK_BYTES", 0)
    async with agent(
        tmp_path, origin=origin, cache_quota="10MiB", cache_high=1.0, cache_low=1.0
    ) as app:
        for name in ("m0", "m1"):
            assert (await pull(app, f"team/{name}:v1"))["event"] == "done"
        rehearsed = (await evict(app, to_bytes=7 * MB, dry_run=True))[1]["evicted"]
        assert [(r["ref"], r["bytes"], r["bytes_left"]) for r in rehearsed] == [
            ("team/m0:v1", MB, 3 * MB)
        ]
        _, named = await evict(app, ref="team/m0:v1", dry_run=True)
        assert named["bytes_freed"] == 4 * MB, "who is named goes whole"
        assert (await pull(app, "team/m2:v1"))["event"] == "done"
        assert await states(app) == {"m0": "part", "m1": "complete", "m2": "complete"}
        async with client(app) as session, session.get("/v1/models") as answer:
            rows = {row["name"]: row for row in (await answer.json())["models"]}
        left = rows["m0"]
        assert left["partly_evicted"]
        assert MB <= left["bytes_done"] <= 2 * MB, "2 MiB had to go"
        assert not (tmp_path / "a/models/team/m0").exists(), "half a model isn't shown"
        assert app.store.usage().filled_bytes <= 10 * MB
        again = await pull(app, "team/m0:v1")
        assert again["event"] == "done"
        assert again["bytes_origin"] == 4 * MB - left["bytes_done"], (
            "what was left needn't come again"
        )


async def test_what_is_pinned_while_others_go_stays(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, origin=origin, cache_quota="64MiB") as app:
        for name in ("m0", "m1"):
            assert (await pull(app, f"team/{name}:v1"))["event"] == "done"
        evicting = app.room._evict

        async def slowly(victim: Any) -> int:
            freed = await evicting(victim)
            async with client(app) as session:
                wish = {"ref": "team/m1:v1", "name": "prod"}
                async with session.post("/v1/pins", json=wish) as answer:
                    assert answer.status == 200
            return freed

        monkeypatch.setattr(app.room, "_evict", slowly)
        assert (await evict(app, to_bytes=0))[0] == 200
        assert await states(app) == {"m0": "remote", "m1": "complete"}


async def test_without_a_quota_nothing_goes(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin) as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        app.store.min_free_bytes = 1 << 60
        failed = await pull(app, "team/m1:v1")
        assert failed["code"] == 5
        assert await states(app) == {"m0": "complete"}
        status, told = await evict(app)
        assert (status, told["code"]) == (400, 2)
        assert "cache_quota" in told["message"]


async def test_what_is_pulled_stays(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with agent(tmp_path, origin=origin, cache_quota="6MiB") as app, asyncio.timeout(30):
        pulling = asyncio.gather(pull(app, "team/m0:v1"))
        await reads.until_begun()
        failed = await pull(app, "team/m1:v1")
        assert failed["code"] == 5
        assert "cache_quota" in failed["message"]
        status, told = await evict(app, ref="team/m0:v1")
        assert (status, told["code"]) == (409, 10)
        assert "being pulled" in told["message"]
        reads.let_go.set()
        assert (await pulling)[0]["event"] == "done"


async def test_nothing_goes_for_a_model_that_will_never_fit(tmp_path: Path, origin: str) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "big", {"w": b"x" * 12 * MB}), "team/big:v1")
    async with agent(tmp_path, origin=origin, cache_quota="10MiB") as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        assert (await pull(app, "team/big:v1"))["code"] == 5
        assert await states(app) == {"m0": "complete"}


async def test_above_the_high_mark_models_go_until_the_low_one(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, origin=origin) as app:
        for number in (0, 1, 2):
            assert (await pull(app, f"team/m{number}:v1"))["event"] == "done"
    monkeypatch.setattr(room, "LOOK_S", 0.05)
    async with agent(tmp_path, origin=origin, cache_quota="14MiB") as app, asyncio.timeout(20):
        while "remote" not in (await states(app)).values():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert await states(app) == {"m0": "remote", "m1": "complete", "m2": "complete"}


async def test_a_model_used_just_now_stays(
    tmp_path: Path, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client was given a path, and may not have opened it yet."""
    monkeypatch.setattr(room, "FRESH_S", 600.0)
    async with agent(tmp_path, origin=origin, cache_quota="6MiB") as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        assert (await pull(app, "team/m1:v1"))["code"] == 5
        assert await states(app) == {"m0": "complete"}


async def test_two_pulls_at_once_share_one_eviction(tmp_path: Path, origin: str) -> None:
    async with agent(
        tmp_path, origin=origin, cache_quota="13MiB", cache_low=0.6, cache_high=0.9
    ) as app:
        for number in (0, 1, 2):
            assert (await pull(app, f"team/m{number}:v1"))["event"] == "done"
        ends = await asyncio.gather(pull(app, "team/m3:v1"), pull(app, "team/m3:v1"))
        assert [end["event"] for end in ends] == ["done", "done"]
        assert (await states(app))["m3"] == "complete"


async def test_a_rehearsal_says_what_would_go_and_why(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin, cache_quota="12MiB", cache_low=0.5) as app:
        for number in (0, 1):
            assert (await pull(app, f"team/m{number}:v1"))["event"] == "done"
        status, told = await evict(app, dry_run=True)
        assert status == 200
        (row,) = told["evicted"]
        assert (row["ref"], row["bytes"], told["dry_run"]) == ("team/m0:v1", 4 * MB, True)
        assert "from storage" in row["why"]
        assert set((await states(app)).values()) == {"complete"}
        status, told = await evict(app, to_bytes=0)
        assert {row["ref"] for row in told["evicted"]} == {"team/m0:v1", "team/m1:v1"}
        assert told["bytes_freed"] >= 8 * MB
        assert set((await states(app)).values()) == {"remote"}
        status, told = await evict(app, ref="team/m0:v1")
        assert (status, told["code"]) == (404, 3)


async def test_an_agent_without_storage_gives_nothing_away(tmp_path: Path, origin: str) -> None:
    async with agent(tmp_path, origin=origin) as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
    async with agent(tmp_path) as app:
        status, told = await evict(app, ref="team/m0:v1")
        assert (status, told["code"]) == (409, 10)
        assert "neither storage nor" in told["message"]


async def test_an_evicted_model_can_be_shown_removed_and_pulled_by_its_name(
    tmp_path: Path, origin: str
) -> None:
    async with agent(tmp_path, origin=origin) as app:
        assert (await pull(app, "team/m0:v1"))["event"] == "done"
        assert (await evict(app, ref="team/m0:v1"))[0] == 200
        async with client(app) as session, session.get("/v1/model?ref=team/m0:v1") as answer:
            row = await answer.json()
        assert (row["remote"], row["complete"]) == (True, False)
        assert row["manifest"]["files"][0]["path"] == "weights.bin"
        async with client(app) as session, session.delete("/v1/model?ref=team/m0:v1") as answer:
            assert answer.status == 200
        assert await states(app) == {}


def test_models_that_are_not_opened_yet_count_as_last_copies() -> None:
    """After a start no node has said yet what it has of them, so nothing is known of other copies."""
    swarms = {name: SimpleNamespace(replicated=name == "shared") for name in ("shared", "last")}
    names = {"unopened": "team/m:v1", "broken": "team/n:v1"}
    downloads: Any = SimpleNamespace(swarms=swarms, unopened=names, unusable={"broken"})
    context: Any = SimpleNamespace(link=object(), settings=SimpleNamespace(origin_cost=5.0))
    journal: Any = None
    maker = room.RoomMaker(context, downloads, journal)
    assert maker._last_copies() == {"last", "unopened"}
    assert maker._costs() == {"shared": COST_PEER, "last": 5.0, "unopened": 5.0, "broken": 5.0}


@pytest.mark.parametrize("wrong", [
    {"cache_quota": "80"+"%%"}, {"cache_quota": "0"}, {"cache_quota": "120%"}, {"cache_low": 0.9},
    {"cache_high": 1.5}, {"cache_quota": "much"},
])  # fmt: skip
def test_marks_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    from p2pcache.agent.settings import AgentSettings

    store = Store.open(tmp_path / "cache")
    try:
        with pytest.raises(UsageError):
            room.limits_of(AgentSettings(**wrong), store)
        assert room.limits_of(AgentSettings(cache_quota="50%"), store).quota_bytes > 0
    finally:
        store.close()
