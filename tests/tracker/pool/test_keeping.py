"""A real tracker that keeps models: intents in the origin, orders to agents, over its own restart."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from p2pcache.core.format.keep_record import KeepRecord
from p2pcache.core.protocol import messages as m
from p2pcache.core.protocol.keep_orders import NO_SPACE, KeepOrders, Kept, KeptReport
from p2pcache.errors import NoSpace, NotFound, UsageError
from p2pcache.ids import format_node
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import REF, get, publish, tracker
from tests.tracker.pool.keep_kit import FILES, NAME, OTHER, Keeper, eventually, members, say, state


async def test_a_model_is_kept_over_the_trackers_restart(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path, files=FILES)
    a, b, c = (Keeper(n, f"r{n}") for n in (1, 2, 3))
    async with tracker(tmp_path) as one, members(one, a, b, c):
        with pytest.raises(NotFound):
            await say(a, "keep", ref="team/none:v1", copies=1)
        with pytest.raises(UsageError):
            await say(a, "keep", ref=NAME, copies=1, everywhere=True)
        row = await say(a, "keep", ref=NAME, copies=2)
        assert (row["state"], row["have"], row["target"]) == ("arriving", 0, 2)
        await eventually(lambda: sum(digest in each.orders for each in (a, b, c)) == 2)
        chosen = [each for each in (a, b, c) if digest in each.orders]
        assert len(chosen) == 2
        for each in chosen:
            await each.obey(digest)
        assert (await state(a, "kept"))["have"] == 2
        _, body = await get(one.address, "/v1/swarms")
        assert [row["keep"] for row in body["swarms"]] == [{"have": 2, "target": 2}]
        _, metrics = await get(one.address, "/metrics")
        assert "p2pcache_tracker_kept_models 1.0" in metrics
        assert "p2pcache_tracker_kept_below_target 0.0" in metrics
    for each in (a, b, c):
        each.mail.clear()
    async with tracker(tmp_path, keep_grace_s=1.0) as two, members(two, a, b, c):
        row = await state(a, "kept")
        assert (row["copies"], row["have"]) == (2, 2)
        await eventually(lambda: all(each.lists for each in (a, b, c)))
        assert [each for each in (a, b, c) if digest in each.orders] == chosen, "nothing moved"
        assert await say(b, "keep", ref=NAME, off=True) == {"ref": REF.short, "off": True}
        await eventually(lambda: not any(each.orders for each in (a, b, c)))
        assert (await say(a, "keeps"))["keeps"] == []
        with pytest.raises(NotFound):
            await say(b, "keep", ref=NAME, off=True)


async def test_silence_drain_and_refusal_move_copies(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path, files=FILES)
    a, b, c, old = Keeper(1), Keeper(2), Keeper(3), FakeAgent(4)
    async with tracker(tmp_path, quick=True, keep_grace_s=0.5) as one, members(one, old):
        async with contextlib.AsyncExitStack() as stack:
            for each in (a, b, c):
                await stack.enter_async_context(each.member(one.address))
            beating = asyncio.get_running_loop().create_task(beat(a, b, c, old))
            stack.callback(beating.cancel)
            await say(old, "keep", ref=NAME, whole=True, copies=1)
            await eventually(lambda: any(each.orders for each in (a, b, c)))
            first = next(each for each in (a, b, c) if each.orders)
            assert first.orders == {digest: True}
            said = Kept(digest, NO_SPACE, "the disk is full")
            await first.send(KeptReport((said,)))
            others = [each for each in (a, b, c) if each is not first]
            await eventually(lambda: any(each.orders for each in others))
            second = next(each for each in others if each.orders)
            row = (await say(old, "keeps"))["keeps"][0]
            assert row["refused"] == [
                {"node": format_node(first.node), "name": f"n{first.node}", "why": "no_space",
                 "detail": "the disk is full"}
            ]  # fmt: skip
            await second.obey(digest)
            await state(old, "kept")
            drained = await say(old, "drain", node=f"n{second.node}")
            assert drained["state"] == "draining"
            third = next(each for each in others if each is not second)
            await third.obey(digest)
            await eventually(lambda: not second.orders)
            _, nodes = await get(one.address, "/v1/nodes")
            states = {row["node"]: row["drain"] for row in nodes["nodes"]}
            assert states[format_node(second.node)] == "drained"
            undone = await say(old, "drain", node=format_node(second.node), undo=True)
            assert undone["state"] == ""
            with pytest.raises(NotFound):
                await say(old, "drain", node="nobody")
        assert not any(isinstance(x, KeepOrders) for x in old.mail)


async def test_a_tracker_that_has_just_started_knows_how_a_wish_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some seconds it was "unknown", and nothing lacked."""
    publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        made = await say(a, "keep", ref=NAME, copies=1)
        assert (made["state"], made["waits_s"]) == ("arriving", 0.0)
    monkeypatch.setattr("p2pcache.tracker.app.KEEP_LOOK_S", 60.0)
    async with tracker(tmp_path) as two, members(two, a):
        (row,) = (await say(a, "keeps"))["keeps"]
        assert (row["state"], row["have"], row["target"]) == ("waiting", 0, 1)
        assert row["missing_bytes"]
        assert 590.0 < row["waits_s"] <= 600.0
        assert 0.0 <= row["tracker_s"] < 10.0


async def test_a_wish_for_all_nodes_isn_t_kept_before_they_have_come(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path, files=FILES)
    a, b = Keeper(1), Keeper(2)
    async with tracker(tmp_path) as one, members(one, a):
        await say(a, "keep", ref=NAME, everywhere=True)
        await a.obey(digest)
        assert (await state(a, "kept"))["target"] == 1
    async with tracker(tmp_path) as two, members(two, a, b):
        assert (await say(a, "keeps"))["keeps"][0]["state"] == "waiting"


async def test_a_node_that_is_gone_is_drained_at_once(tmp_path: Path) -> None:
    """No node was found by its name, which `p2pcache nodes` listed, and its parts moved ten minutes later."""
    digest, _ = publish(tmp_path, files=FILES)
    a, b, c = Keeper(1), Keeper(2), Keeper(3)
    async with tracker(tmp_path, quick=True) as one, members(one, a, b):
        async with contextlib.AsyncExitStack() as stack:
            beating = asyncio.get_running_loop().create_task(beat(a, b))
            stack.callback(beating.cancel)
            async with c.member(one.address):
                await say(a, "keep", ref=NAME, whole=True, copies=1, nodes="node=n3")
                await c.obey(digest)
                await state(a, "kept")
                await say(a, "keep", ref=NAME, whole=True, copies=1)
            async with asyncio.timeout(20):
                while not (gone := (await get(one.address, "/v1/nodes"))[1]["gone"]):
                    await asyncio.sleep(0.05)
            assert [row["name"] for row in gone] == ["n3"]
            assert not a.orders
            assert not b.orders
            told = await say(a, "drain", node="n3")
            assert (told["name"], told["state"], told["here"]) == ("n3", "draining", False)
            await eventually(lambda: bool(a.orders or b.orders))
            await (a if a.orders else b).obey(digest)
            await state(a, "kept")
            (drain,) = (await say(a, "keeps"))["drains"]
            assert (drain["name"], drain["kept_bytes"], drain["here"]) == ("n3", 0, False)
            undone = await say(a, "drain", node=format_node(3), undo=True)
            assert (undone["state"], undone["here"]) == ("", False)
            with pytest.raises(NotFound, match="last hour"):
                await say(a, "drain", node="n4")


async def beat(*agents: FakeAgent) -> None:
    while True:
        for each in agents:
            await each.beat()
        await asyncio.sleep(0.1)


async def test_repairs_are_told_with_what_nodes_fetched(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        await say(a, "keep", ref=NAME, copies=1)
        await a.obey(digest)
        async with asyncio.timeout(20):
            while not (repair := (await state(a, "kept"))["repairs"][0])["ended"]:
                await asyncio.sleep(0.02)
        assert repair["ended"] >= repair["began"] > 1e9
        for fetched in (64, 384):
            await a.send(KeptReport((Kept(digest, "", "", fetched),)))
        await eventually(lambda: one.keeping.keeper.settled(0.0))
        async with asyncio.timeout(20):
            while (await state(a, "kept"))["repairs"][0]["bytes"] != 320:
                await asyncio.sleep(0.02)


async def test_repairs_outlast_the_tracker_and_end_with_the_wish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.tracker.pool.repair_notes.NOTE_S", 0.0)
    record = tmp_path / "p2pcache/v1/intent/keep" / "/".join(REF.tag_key)

    def written() -> KeepRecord:
        return msgspec.json.decode(record.read_bytes(), type=KeepRecord)

    digest, _ = publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        made = (await say(a, "keep", ref=NAME, copies=1))["made"]
        await a.obey(digest)
        await state(a, "kept")
        await eventually(lambda: len(written().repairs) == 1)
        for fetched in (64, 384):
            await a.send(KeptReport((Kept(digest, "", "", fetched),)))
        await eventually(lambda: written().repairs[0].moved_bytes == 320)
        (repair,) = (await state(a, "kept"))["repairs"]
    async with tracker(tmp_path) as two, members(two, a):
        row = await state(a, "kept")
        assert (row["made"], row["repairs"]) == (made, [repair])
        await say(a, "keep", ref=NAME, whole=True, copies=1)
        assert len(written().repairs) == 1, "the wish changed, and its history goes on"
        await say(a, "keep", ref=NAME, off=True)
        assert written().repairs == ()


async def test_what_is_kept_of_a_namespace_stays_within_its_quota(tmp_path: Path) -> None:
    publish(tmp_path, files=FILES)  # of five bytes each, all the same: one chunk
    a = Keeper(1)
    async with tracker(tmp_path, namespace_quotas="team=12B") as one, members(one, a):
        with pytest.raises(NoSpace, match="quota of namespace team"):
            await say(a, "keep", ref=NAME, copies=3)
        assert (await say(a, "keep", ref=NAME, copies=2))["target"] == 2
        publish(tmp_path, files=FILES + 1, ref=OTHER)
        with pytest.raises(NoSpace):
            await say(a, "keep", ref=str(OTHER), everywhere=True)
        await say(a, "keep", ref=NAME, copies=1)
        await say(a, "keep", ref=str(OTHER), everywhere=True)


async def test_copies_that_clients_pulled_count_in_the_quota_of_a_keep(tmp_path: Path) -> None:
    """A namespace at its quota could keep as much again."""

    class Puller(Keeper):
        def state(self, digest: str) -> m.SwarmState:
            said = super().state(digest)
            return msgspec.structs.replace(said, label=NAME, total_bytes=5)

    digest, _ = publish(tmp_path, files=FILES)
    publish(tmp_path, files=FILES + 1, ref=OTHER)
    a, b = Puller(1), Puller(2)
    for each in (a, b):
        each.runs[digest] = each.have[digest] = 1
    async with tracker(tmp_path, namespace_quotas="team=12B") as one, members(one, a, b):
        with pytest.raises(NoSpace, match=r"its models take 10 B, and these copies would take 5 B"):
            await say(a, "keep", ref=str(OTHER), copies=1)
        assert (await say(a, "keep", ref=NAME, copies=2))["target"] == 2, "they are there already"


async def test_a_selector_that_chooses_nobody_is_told_as_such(tmp_path: Path) -> None:
    """It was said that there is no room."""
    publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        told = await say(a, "keep", ref=NAME, everywhere=True, nodes="gpu=none")
        assert (told["state"], told["target"]) == ("no nodes", 0)
        told = await say(a, "keep", ref=NAME, whole=True, copies=2, nodes="gpu=none")
        assert (told["state"], told["target"]) == ("no nodes", 2)
