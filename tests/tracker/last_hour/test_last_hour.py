"""`GET /v1/last-hour` and `GET /v1/node` of a real tracker, whose members tell what they like."""

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from p2pcache.core.protocol import messages as m
from p2pcache.tracker.app import TrackerApp
from p2pcache.tracker.last_hour.last_hour import EVENTS_EACH, NEW_ROWS, PULLS_EACH
from tests.tracker.crowd import GB, Held, Resident, digest_of
from tests.tracker.kit import get, tracker

ONE = digest_of(1)


async def hour(app: TrackerApp, events: int = 0, pulls: int = 0) -> dict[str, Any]:
    status, body = await get(
        app.address, f"/v1/last-hour?events_after={events}&pulls_after={pulls}"
    )
    assert status == 200
    found: dict[str, Any] = body
    return found


def resident(node: int = 1, share: float = 0.5) -> Resident:
    one = Resident(node, f"node-{node}", "r1")
    one.hold(ONE, Held("team/m:v1", GB, pulled=True), share)
    return one


async def settled(one: Resident) -> None:
    """All that it said is taken in."""
    await one.ask("status")


async def test_who_came_went_and_was_lost() -> None:
    async with tracker(quick=True) as app:
        async with resident(1).member(app.address):
            pass
        async with Resident(2, "polite").member(app.address) as polite:
            await polite.send(m.Leaving())
            async with asyncio.timeout(10):
                while len((await hour(app))["events"]) < 4:
                    await asyncio.sleep(0.05)
        rows = (await hour(app))["events"]
        assert {(row["name"], row["kind"]) for row in rows} == {
            ("node-1", "joined"), ("node-1", "lost"), ("polite", "joined"), ("polite", "left"),
        }  # fmt: skip
        assert [row["number"] for row in rows] == [4, 3, 2, 1]
        pulls = (await hour(app))["pulls"]
        assert [(row["node"], row["end"], row["share"]) for row in pulls] == [
            (f"{1:016x}", "lost", 0.5)
        ]


async def test_ended_pulls_as_members_tell_them() -> None:
    async with tracker() as app, resident().member(app.address) as one:
        one.advance(ONE, 16)
        one.end(ONE, 5)
        await one.beat()
        one.held[ONE].pulled = True
        one.advance(ONE, 64)
        await one.beat()
        await settled(one)
        done, failed = (await hour(app))["pulls"]
        assert (failed["end"], failed["code"], failed["share"]) == ("failed", 5, 0.75)
        assert (done["end"], done["code"], done["share"]) == ("complete", 0, 1.0)
        assert (done["label"], done["name"], done["digest"]) == ("team/m:v1", "node-1", ONE)
        assert done["bytes_peers"] == 9 * done["bytes_origin"] > 0
        assert set(done) == {
            "number", "at", "node", "name", "digest", "label", "end", "code", "share", "seconds",
            "bytes", "bytes_peers", "bytes_origin", "bytes_local",
        }, "figures and names, no text of an error"  # fmt: skip


async def test_a_pull_that_runs_has_a_rate_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tracker() as app, resident().member(app.address) as one:
        await one.beat()
        await asyncio.sleep(1.2)
        one.advance(ONE, 16)
        await one.beat()
        await settled(one)
        row = (await get(app.address, "/v1/swarms"))[1]["swarms"][0]
        assert (row["pulling"], row["missing_bytes"]) == (1, GB // 4)
        assert 0 < row["rate"] <= GB / 4
        assert row["moved_peers"] + row["moved_origin"] == GB // 4
        member = (await get(app.address, f"/v1/swarm?digest={ONE}"))[1]["members"][0]
        assert member["pulling_s"] >= 1.2
        one.end(ONE, 130)
        await one.beat()
        await settled(one)
        await asyncio.sleep(1.1)
        row = (await get(app.address, "/v1/swarms"))[1]["swarms"][0]
        assert (row["pulling"], row["missing_bytes"], row["rate"]) == (0, 0, 0)


async def test_one_member_takes_its_share_and_no_more() -> None:
    async with tracker() as app, Resident(7, "quiet").member(app.address) as quiet:
        quiet.hold(ONE, Held("team/m:v1", GB))
        quiet.end(ONE, 0)
        await quiet.beat()
        await settled(quiet)
        for _ in range(EVENTS_EACH + 10):
            async with Resident(8, "loud").member(app.address) as loud:
                loud.hold(ONE, Held("team/m:v1", GB))
                for _ in range(m.MAX_ENDED + 8):  # more than a heartbeat may tell
                    loud.end(ONE, 5)
                await loud.beat()
                await loud.send(m.Leaving())
                await loud.beat()
                await loud.wait_closed()  # it isn't a member any more
        found = await hour(app)
        of_loud = [row for row in found["pulls"] if row["name"] == "loud"]
        assert len(of_loud) == PULLS_EACH
        assert len([row for row in found["events"] if row["name"] == "loud"]) == EVENTS_EACH
        assert [row["name"] for row in found["pulls"] if row["name"] != "loud"] == ["quiet"]


@pytest.mark.parametrize(
    "bad",
    [
        m.EndedPull("x" * 64, "m:v1", 0, 1.0, 1, (0, 0, 0)),
        m.EndedPull(ONE, "m" * 300, 0, 1.0, 1, (0, 0, 0)),
        m.EndedPull(ONE, "m\n:v1", 0, 1.0, 1, (0, 0, 0)),
        m.EndedPull(ONE, "m:v1", 256, 1.0, 1, (0, 0, 0)),
        m.EndedPull(ONE, "m:v1", 0, float("nan"), 1, (0, 0, 0)),
        m.EndedPull(ONE, "m:v1", 0, -1.0, 1, (0, 0, 0)),
        m.EndedPull(ONE, "m:v1", 0, 1.0, -1, (0, 0, 0)),
        m.EndedPull(ONE, "m:v1", 0, 1.0, 1, (0, 0)),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_who_tells_nonsense_is_dropped(bad: m.EndedPull) -> None:
    async with tracker() as app, Resident(1, "liar").member(app.address) as liar:
        await liar.send(m.Heartbeat(ended=(bad,)))
        assert await liar.wait_closed() == 1008
        assert (await hour(app))["pulls"] == []


async def test_only_what_is_new_is_sent_again() -> None:
    async with tracker() as app, Resident(1, "one").member(app.address) as one:
        one.hold(ONE, Held("team/m:v1", GB))
        for _ in range(3):
            one.end(ONE, 0)
        await one.beat()
        await settled(one)
        first = await hour(app)
        assert (first["last_event"], first["last_pull"]) == (1, 3)
        again = await hour(app, first["last_event"], 1)
        assert (again["events"], [row["number"] for row in again["pulls"]]) == ([], [3, 2])
        for _ in range(NEW_ROWS // m.MAX_ENDED + 1):
            for _ in range(m.MAX_ENDED):
                one.end(ONE, 0)
            await one.beat()
        await settled(one)
        assert len((await hour(app, 1, 2))["pulls"]) == PULLS_EACH, "who is far behind gets all"
        assert len((await hour(app, 1, 10**9))["pulls"]) == PULLS_EACH, "another tracker's number"
        for wrong in ("x", "-1", "1" * 20, "%C2%B2"):
            assert (await get(app.address, f"/v1/last-hour?events_after={wrong}"))[0] == 400


async def test_one_node_with_its_models() -> None:
    async with tracker() as app, resident().member(app.address) as one:
        one.hold(digest_of(2), Held("team/done:v1", GB))
        await one.send(m.Enter(one.state(digest_of(2))))
        await settled(one)
        status, body = await get(app.address, f"/v1/node?id={1:016x}")
        assert status == 200
        assert (body["name"], body["rack"], body["models"], body["left_out"]) == (
            "node-1",
            "r1",
            2,
            0,
        )
        assert [(row["label"], row["share"], row["pulling_s"] is None) for row in body["held"]] == [
            ("team/m:v1", 0.5, False), ("team/done:v1", 1.0, True),
        ]  # fmt: skip
        assert (await get(app.address, f"/v1/node?id={2:016x}"))[0] == 404
        assert (await get(app.address, "/v1/node?id=x"))[0] == 400


async def test_large_answers_are_packed_for_who_takes_that() -> None:
    async with tracker() as app, aiohttp.ClientSession(auto_decompress=False) as http:
        async with Resident(1, "one").member(app.address) as one:
            for number in range(2, 30):
                one.hold(digest_of(number), Held(f"team/m-{number}:v1", GB))
                await one.send(m.Enter(one.state(digest_of(number))))
            await settled(one)
            url = f"http://{app.address}/v1/swarms"
            async with http.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
                packed = await answer.read()
                assert answer.headers["Content-Encoding"] == "gzip"
            async with http.get(url, headers={"Accept-Encoding": "identity"}) as answer:
                plain = await answer.read()
                assert "Content-Encoding" not in answer.headers
                assert answer.headers["Vary"] == "Accept-Encoding"
            assert json.loads(gzip.decompress(packed)) == json.loads(plain)
            assert len(packed) < len(plain) / 5
