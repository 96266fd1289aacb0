"""A warm on several nodes through a real tracker."""

from pathlib import Path

import pytest

from p2pcache.core.protocol import messages as m
from p2pcache.ids import Ref
from p2pcache.tracker import warming
from tests.agent.jobs.warm_kit import REF, cluster, get, model, refs, until, warm
from tests.agent.kit import agent, pull
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import tracker


async def test_the_asked_number_of_nodes_get_it_in_different_racks(tmp_path: Path) -> None:
    digest = model(tmp_path)
    async with cluster(tmp_path, "r1", "r1", "r2", "r2") as apps:
        assert (await pull(apps[0], REF))["event"] == "done"
        found = await warm(apps[3], replicas=3)
        assert (found["digest"], found["bytes"], found["have"]) == (digest, 3_000_000, 3)
        states = {row["name"]: (row["rack"], row["state"]) for row in found["nodes"]}
        assert states.pop("n0") == ("r1", "had")
        assert sorted(rack for rack, _ in states.values()) in (["r1", "r2"], ["r2", "r2"])
        assert next(iter(states.values()))[0] == "r2", "the rack without a copy is first"
        assert {state for _, state in states.values()} == {"started"}
        again = await warm(apps[3], replicas=3)
        assert again["have"] == 3
        assert {row["name"] for row in again["nodes"]} == {"n0", *states}
        for app in apps:
            await until(lambda app=app: not app.warms._running)
        located = await get(apps[0], f"/v1/locate?ref={REF}")
        assert [row["complete"] for row in located["nodes"]] == [True] * 3
        assert located["getting"] == 0
        some = next(app for app in apps if app.queries.name in states)
        assert REF in await refs(some)


async def test_other_nodes_replace_those_without_space(tmp_path: Path) -> None:
    model(tmp_path)
    async with cluster(tmp_path, "", "", "") as apps:
        full = apps[1:]
        for app in full:
            app.store.min_free_bytes = 1 << 60
        found = await warm(apps[0], replicas=2)
        assert found["have"] == 1
        refused = [row for row in found["nodes"] if row["state"] == "refused"]
        assert {row["name"] for row in refused} == {"n1", "n2"}
        assert {row["code"] for row in refused} == {5}
        assert all("are kept free" in row["message"] for row in refused)


async def test_nodes_of_an_older_release_and_mute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "TOLD_S", 0.3)
    model(tmp_path)
    async with (
        tracker(tmp_path / "origin") as one,
        agent(tmp_path, tracker=f"http://{one.address}") as app,
        FakeAgent(7).member(one.address),
        FakeAgent(8).member(one.address) as mute,
    ):
        await until(lambda: app.link is not None and app.link.connected)
        await mute.send(m.Announce("127.0.0.1:7008", "0.1", warms=True))
        await mute.ask("status")
        found = await warm(app, replicas=3)
        assert (found["have"], found["older"]) == (1, 1)
        (late,) = (row for row in found["nodes"] if row["state"] == "refused")
        assert (late["code"], late["node"]) == (8, f"{8:016x}")
        asked = await mute.wait_for(m.NodeQuestion)
        assert (asked.what, asked.text) == ("warm", str(Ref.parse(REF)))
        await mute.send(m.NodeAnswer(999, b"had"))  # to nothing: it is passed over
        for bad in (
            '{"ref": "m", "replicas": 0}',
            '{"ref": "../m", "replicas": 1}',
            "{",
            '{"ref": 1}',
        ):
            with pytest.raises(Exception, match=r"."):
                await mute.ask("warm", bad)
