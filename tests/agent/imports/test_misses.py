"""A model of a hub that nobody has: one node imports it, all others get it without asking the hub."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.errors import UsageError
from p2pcache.ids import Ref, parse_wanted
from p2pcache.io.imports import import_turn
from p2pcache.io.imports.import_turn import ImportTurn
from p2pcache.io.origins import open_origin
from p2pcache.io.sources.settings import SourceSettings
from tests.agent.jobs.warm_kit import cluster
from tests.agent.kit import agent, pull
from tests.io.sources.kit import Hub, anonymous_hub

FILES = {"config.json": b"{}", "model.bin": bytes(range(256)) * 4000}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with anonymous_hub(monkeypatch, tmp_path / "hf", FILES, {"model.bin"}) as one:
        yield one


@contextlib.asynccontextmanager
async def node(tmp: Path, name: str, hub: Hub, **settings: Any) -> AsyncIterator[AgentApp]:
    (tmp / "origin").mkdir(exist_ok=True)
    on_miss = settings.pop("on_miss", True)
    source = SourceSettings(
        url="hf://",
        endpoint=hub.url,
        private=True,
        on_miss=on_miss,
        namespaces=settings.pop("namespaces", "*"),
    )
    more = {"origin": (tmp / "origin").as_uri(), "sources": {"hub": source}, **settings}
    async with agent(tmp, name, **more) as app:
        yield app


def sent(hub: Hub) -> list[str]:
    """What bytes of files were asked for, of the hub and of its store: path and range."""
    seen = [*hub.seen, *hub.cdn.seen]
    return [
        f"{path.partition('?')[0].rpartition('/')[2]} {headers.get('range')}"
        for method, path, headers in seen
        if method == "GET" and "range" in headers and path.rpartition("/")[2] != "model.bin"
    ]


async def test_a_cluster_pulls_at_once_and_the_hub_sends_it_once(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "origin").mkdir()
    source = SourceSettings(url="hf://", endpoint=hub.url, private=True, on_miss=True)
    async with cluster(tmp_path, "", "", "", sources={"hub": source}) as nodes:
        done = await asyncio.gather(
            *(pull(one, "hf://org/model") for one in nodes), pull(nodes[0], "hf://org/model@main")
        )
    assert [one.get("event") for one in done] == ["done"] * 4, done
    assert {one["ref"] for one in done} == {"org/model:main"}
    assert sum("/revision/" in path for path in hub.bodies()) == 1
    large, last = hub.entry("model.bin")["oid"], len(FILES["model.bin"]) - 1
    assert sorted(sent(hub)) == sorted(
        # The one byte shows that parts of files can be read.
        [f"{large} bytes={last}-{last}", f"{large} bytes=0-{last}", "config.json bytes=0-1"]
    )
    assert sum(one["bytes_origin"] for one in done) == 0


async def test_without_permission_nothing_is_asked(tmp_path: Path, hub: Hub) -> None:
    async with node(tmp_path, "a", hub, on_miss=False) as app:
        missing = await pull(app, "hf://org/model")
        assert missing["code"] == 3
        assert "on_miss" in missing["message"]
        assert "`p2pcache import hf://org/model@main org/model:main`" in missing["message"]
        assert "from the hub" not in (await pull(app, "org/model:main"))["message"]
    async with node(tmp_path, "b", hub, namespaces="team") as app:
        assert (await pull(app, "hf://org/model"))["code"] == 3
    async with node(tmp_path, "c", hub) as app:
        missing = await pull(app, "org/model:main")
        assert missing["code"] == 3
        assert "`p2pcache pull hf://ORG/REPO`" in missing["message"]
        assert (await pull(app, "hf://org/model@refs/pr/1"))["code"] == 2
        assert not hub.seen
        # What the hub refuses isn't asked again at once.
        for _ in range(3):
            missing = await pull(app, "hf://org/other")
            assert missing["code"] == 3
            assert "has no org/other@main" in missing["message"]
        assert len(hub.seen) == 1


async def test_the_hub_door_brings_in_what_is_missing(tmp_path: Path, hub: Hub) -> None:
    async with (
        node(tmp_path, "a", hub, hf_listen="127.0.0.1:0") as app,
        aiohttp.ClientSession() as session,
    ):
        door = f"http://{app.listeners.door_addresses['hf_listen']}"
        async with session.get(f"{door}/api/models/org/model/revision/main") as answer:
            assert answer.status == 200
            assert {one["rfilename"] for one in (await answer.json())["siblings"]} == set(FILES)
        async with session.get(f"{door}/org/model/resolve/main/model.bin") as answer:
            assert await answer.read() == FILES["model.bin"]
        async with session.get(f"{door}/api/models/org/none/revision/main") as answer:
            assert (answer.status, answer.headers["X-Error-Code"]) == (404, "RepoNotFound")


def test_what_a_hubs_url_stands_for() -> None:
    assert parse_wanted("team/m:v1") == (Ref("team", "m", "v1", None), "")
    assert parse_wanted("hf://Org/M") == (Ref("org", "m", "main", None), "hf://Org/M@main")
    assert parse_wanted("hf://o/m@v1.0").url == "hf://o/m@v1.0"
    for text in (
        "hf://m",
        "hf://o/m/x",
        "hf://o/m@a/b",
        "s3://o/m",
        "hf:///m",
        "hf://o/m@",
        "hf://../m",
    ):
        if text != "hf://o/m@":
            with pytest.raises(UsageError):
                parse_wanted(text)


def test_the_turn_of_a_dead_node_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = open_origin(tmp_path.as_uri())
    ref = Ref.parse("team/m:v1")
    first, second, third = (ImportTurn(origin, ref, number) for number in (1, 2, 3))
    assert first.attempt(0.0)
    assert not second.attempt(0.0)
    assert not second.attempt(import_turn.DEAD_S - 1)
    assert first.renew()
    assert not second.attempt(import_turn.DEAD_S + 1)  # it has changed
    assert not third.attempt(50.0)
    assert second.attempt(2 * import_turn.DEAD_S + 2)
    assert not third.attempt(50.0 + import_turn.DEAD_S - 1)
    assert not first.renew()
    second.give_back()
    assert third.attempt(time.monotonic())
