"""Parts of models that a tracker orders a node to keep: real agents, orders by hand."""

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.keep import keeps
from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol.keep_orders import KeepOrder, KeepOrders, KeptReport
from p2pcache.ids import RunSet
from tests.agent.jobs.warm_kit import cluster, get, until
from tests.agent.kit import agent, client, make_model, pull, push
from tests.io.host.test_file_users import holding

MB = 1 << 20


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker orders nothing by itself."""
    said = AgentApp.announcement
    monkeypatch.setattr(
        AgentApp, "announcement", lambda app: msgspec.structs.replace(said(app), keeps=False)
    )


REF = "team/m:v1"


def model(tmp: Path, size: int = 8 * MB) -> Layout:
    data = {"weights.bin": random.Random(1).randbytes(size), "config.json": b"{}"}
    return push(tmp / "origin", make_model(tmp / "m", data), REF)


def order(layout: Layout, *ranges: tuple[int, int], whole: bool = False) -> KeepOrder:
    return KeepOrder("team", "m", "v1", layout.digest, ranges, whole)


async def tell(app: AgentApp, *orders: KeepOrder) -> None:
    await app.keeps.on_orders(KeepOrders(0, 1, orders))


def span(first: int, end: int) -> RunSet:
    return bitset.full(end - first) << first


def has(app: AgentApp, layout: Layout) -> RunSet:
    swarm = app.downloads.swarms.get(layout.digest)
    return swarm.have_runs() if swarm is not None else 0


async def until_has(app: AgentApp, layout: Layout, runs: RunSet) -> None:
    await until(lambda: has(app, layout) == runs and not app.downloads.running)


async def row(app: AgentApp) -> dict[str, Any]:
    (only,) = (await get(app, "/v1/models"))["models"]
    found: dict[str, Any] = only
    return found


def no_storage(tmp: Path) -> None:
    shutil.rmtree(tmp / "origin")


async def test_parts_are_fetched_once_shown_and_kept(tmp_path: Path) -> None:
    layout = model(tmp_path)
    half = layout.run_count // 2
    async with cluster(tmp_path, "", "") as (one, other):
        await asyncio.gather(
            tell(one, order(layout, (0, half))),
            tell(other, order(layout, (half, layout.run_count))),
        )
        await until_has(one, layout, span(0, half))
        await until_has(other, layout, span(half, layout.run_count))
        told = await row(one)
        assert (told["ref"], told["kept"], told["complete"]) == (REF, "part", False)
        assert told["bytes_done"] == layout.bytes_of(span(0, half))
        room = await get(one, "/v1/room")
        assert room["kept_bytes"] == told["bytes_done"]
        read = sum(app.metrics.totals()["origin"] for app in (one, other))
        assert read == layout.total_bytes, "each byte leaves storage once"
        (ended,) = (await get(one, "/v1/history"))["history"]
        assert (ended["action"], ended["bytes"]) == ("keep", told["bytes_done"])
        async with client(one) as session, session.delete(f"/v1/model?ref={REF}") as answer:
            assert answer.status == 409
            assert "keep" in (await answer.json())["message"]


async def test_what_a_fetch_has_brought_is_told_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeps, "COUNT_S", 0.0)
    monkeypatch.setattr("p2pcache.agent.keep.kept_report.REPORT_S", 0.0)
    layout = model(tmp_path)
    async with cluster(tmp_path, "", origin_bytes_per_s=2 * MB) as (one,):
        link = one.context.link
        assert link is not None
        told: list[int] = []
        send = link.send

        def heard(message: Any) -> None:
            if isinstance(message, KeptReport):
                told.extend(kept.fetched_bytes for kept in message.kept)
            send(message)

        monkeypatch.setattr(link, "send", heard)
        await tell(one, order(layout, whole=True))
        await until(lambda: layout.total_bytes in told)
    assert any(0 < size < layout.total_bytes for size in told), told
    assert told == sorted(told)


async def test_a_pull_takes_all_from_holders_of_parts_when_storage_is_gone(tmp_path: Path) -> None:
    layout = model(tmp_path)
    count = layout.run_count
    cuts = [0, count // 3, 2 * count // 3, count]
    async with cluster(tmp_path, *[""] * 4) as apps:
        *holders, reader = apps
        for app, first, end in zip(holders, cuts, cuts[1:], strict=False):
            await tell(app, order(layout, (first, end)))
        for app, first, end in zip(holders, cuts, cuts[1:], strict=False):
            await until_has(app, layout, span(first, end))
        no_storage(tmp_path)
        done = await pull(reader, f"{REF}@blake3:{layout.digest}")
        assert done["event"] == "done", done
        assert (done["bytes_peers"], done["bytes_origin"]) == (layout.total_bytes, 0)
        assert all(app.metrics.totals()["served"] for app in holders)
        located = (await get(reader, f"/v1/locate?ref={REF}@blake3:{layout.digest}"))["nodes"]
        assert [row["share"] == 1.0 for row in located] == [True, False, False, False]
        assert [row["kept"] for row in located] == ["", "part", "part", "part"]
        assert not any(row["pinned"] or row["held"] for row in located)
        assert all(row["last_used"] for row in located)
        mine = await pull(holders[0], f"{REF}@blake3:{layout.digest}")
        assert mine["bytes_peers"] == layout.bytes_of(span(cuts[1], count)), (
            "it begins with its part"
        )


async def test_parts_are_there_after_a_restart_and_served_without_a_pull(tmp_path: Path) -> None:
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (reader,):
        where = {"tracker": reader.settings.tracker}
        async with agent(tmp_path, "kept", **where) as app:
            await tell(app, order(layout, (2, layout.run_count)))
            await until_has(app, layout, span(2, layout.run_count))
        async with agent(tmp_path, "kept", **where) as app:
            assert has(app, layout) == span(2, layout.run_count)
            await until(lambda: app.link is not None and app.link.connected)
            async with (
                client(app) as session,
                session.post("/v1/prune", json={"all": True}) as answer,
            ):
                assert answer.status == 200
            done = await pull(reader, REF)
            assert done["bytes_peers"] == layout.bytes_of(span(2, layout.run_count))
            assert done["bytes_origin"] == layout.bytes_of(span(0, 2))


async def test_orders_that_shrink_free_their_space(tmp_path: Path) -> None:
    layout = model(tmp_path)
    count = layout.run_count
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, (0, 20)))
        await until_has(app, layout, span(0, 20))
        await tell(app, order(layout, (5, 10)))
        await until_has(app, layout, span(5, 10))
        assert app.store.usage().filled_bytes <= layout.bytes_of(span(5, 10)) + 64 * 1024
        await tell(app, order(layout, (8, count)))
        await until_has(app, layout, span(8, count))
        await tell(app)
        await until(lambda: layout.digest not in app.downloads.swarms)
        assert app.store.models() == []
        assert app.store.usage().cached_bytes == 0


async def test_what_a_client_pulled_meanwhile_stays(tmp_path: Path) -> None:
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, (0, 4)))
        await until_has(app, layout, span(0, 4))
        assert (await pull(app, REF))["event"] == "done"
        await tell(app)
        await until(lambda: not app.store.orders.all_kept())
        told = await row(app)
        assert (told["complete"], told["kept"]) == (True, "")


async def test_a_client_that_comes_before_its_turn_keeps_what_is_ordered_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeps, "AGAIN_S", 0.0)
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,), asyncio.timeout(30):
        await tell(app, order(layout, (0, 8)))
        await until_has(app, layout, span(0, 8))
        with ExitStack() as use:
            async with app.downloads.opening.of(layout.digest):
                told = asyncio.gather(tell(app, order(layout, (0, 4))))
                await asyncio.sleep(0.2)
                app.downloads.protect(app.downloads.swarms[layout.digest], use)
            await told
            assert has(app, layout) == span(0, 8)
            assert [kept.leaving for kept in app.store.orders.all_kept()] == [span(4, 8)]
        await app.keeps._look()
        await until_has(app, layout, span(0, 4))


async def test_what_is_pinned_stays_when_its_order_ends(tmp_path: Path) -> None:
    """Also a part that has its name from the order alone."""
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, (0, 8)))
        await until_has(app, layout, span(0, 8))
        async with client(app) as session:
            wish = {"ref": REF, "name": "prod"}
            async with session.post("/v1/pins", json=wish) as answer:
                assert answer.status == 200
            await tell(app)
            await app.keeps._look()
            assert has(app, layout) == span(0, 8)
            assert (await row(app))["ref"] == REF
            async with session.delete(f"/v1/pins?ref={REF}") as answer:
                assert answer.status == 200
        await app.keeps._look()
        await until(lambda: not has(app, layout))


async def test_a_whole_model_is_shown_as_by_a_warm_and_goes_when_it_is_ordered_no_more(
    tmp_path: Path,
) -> None:
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, whole=True))
        await until((tmp_path / "n0/models/team/m/v1/weights.bin").exists)
        await until(lambda: all(k.shown_at for k in app.store.orders.all_kept()))
        told = await row(app)
        assert (told["complete"], told["kept"], told["tags"]) == (True, "whole", ["v1"])
        await tell(app)
        await until(lambda: not app.store.orders.all_kept())
        assert (await row(app))["remote"]
        assert not (tmp_path / "n0/models/team/m/v1").exists()


@pytest.mark.parametrize("part", [False, True], ids=["kept no more", "kept in part"])
async def test_a_whole_model_that_a_process_has_mapped_stays_until_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: bool
) -> None:
    """As a pod has it that mounts the models: nobody pulled it."""
    monkeypatch.setattr(keeps, "AGAIN_S", 0.1)
    layout = model(tmp_path)
    tag = tmp_path / "n0/models/team/m/v1"
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, whole=True))
        await until((tag / "weights.bin").exists)
        await until(lambda: all(k.shown_at for k in app.store.orders.all_kept()))
        with holding(tag / "weights.bin", "mapped"):
            await tell(app, *[order(layout, (0, 8))] * part)
            for _ in range(2):
                await asyncio.sleep(0.2)
                await app.keeps._look()
                assert (tag / "weights.bin").read_bytes() == (
                    tmp_path / "m/weights.bin"
                ).read_bytes()
            assert has(app, layout) == span(0, layout.run_count)
        await until(lambda: not tag.exists() and has(app, layout) == span(0, 8 * part))


async def test_a_new_version_finds_the_room_of_the_old_one(tmp_path: Path) -> None:
    """It was refused for room that the old one had a moment longer, and was ordered again after half a minute."""
    other = make_model(tmp_path / "m2", {"weights.bin": random.Random(2).randbytes(8 * MB)})
    old, new = model(tmp_path), push(tmp_path / "origin", other, REF)
    async with cluster(tmp_path, "", cache_quota="12MiB") as (app,):
        sent = spied(app)

        def kept() -> list[str]:
            return [one.digest for one in app.store.orders.all_kept() if one.shown_at]

        for layout in (old, new, old):  # by any order one of them is the first
            await tell(app, order(layout, whole=True))
            await until(lambda only=[layout.digest]: kept() == only)
    assert not any(_refused(message) for message in sent)


async def test_a_model_that_is_only_listed_comes_and_goes_with_its_order(tmp_path: Path) -> None:
    """It is `remote` since an order before: nothing of it was here, though it has a name."""
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        for _ in range(2):
            await tell(app, order(layout, whole=True))
            await until(lambda: all(k.shown_at for k in app.store.orders.all_kept()))
            assert (await row(app))["complete"]
            await tell(app)
            await until(lambda: not app.store.orders.all_kept())
            assert (await row(app))["remote"]


async def test_what_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    layout = model(tmp_path)
    async with cluster(tmp_path, "", cache_quota="4MiB") as (app,):
        sent = spied(app)
        await tell(app, order(layout, (0, layout.run_count - 1)))
        await until(lambda: app.keeps.figures()[2] == 1)
        await until(lambda: any(_refused(message) for message in sent))
        (said,) = next(message.kept for message in sent if _refused(message))
        assert said.refused == "quota"
        assert "cache_quota" in said.detail
        await tell(app, order(layout, (0, 8)))
        await until_has(app, layout, span(0, 8))


def spied(app: AgentApp) -> list[Any]:
    """What it sends to its tracker from now on."""
    sent: list[Any] = []
    assert app.link is not None
    send: Callable[[Any], None] = app.link.send

    def spy(message: Any) -> None:
        sent.append(message)
        send(message)

    app.link.send = spy  # type: ignore[method-assign]
    return sent


def _refused(message: Any) -> bool:
    return any(row.refused for row in getattr(message, "kept", ()))


async def test_a_loader_takes_only_its_runs_from_holders_of_parts(tmp_path: Path) -> None:
    layout = model(tmp_path)
    cut = layout.run_count // 2
    async with cluster(tmp_path, "", "", "") as (low, high, reader):
        await tell(low, order(layout, (0, cut)))
        await tell(high, order(layout, (cut, layout.run_count)))
        await until_has(low, layout, span(0, cut))
        await until_has(high, layout, span(cut, layout.run_count))
        no_storage(tmp_path)
        wish = {"ref": f"{REF}@blake3:{layout.digest}", "needed": True}
        async with client(reader) as session, session.post("/v1/load", json=wish) as answer:
            first = json.loads(await answer.content.readline())
            runs = [[2, 5], [cut + 1, cut + 3]]
            body = {"load": first["load"], "runs": runs, "urgent": True}
            async with session.post("/v1/demand", json=body) as said:
                assert await said.json() == {"missing": 5}
            wanted = span(2, 5) | span(cut + 1, cut + 3)
            await until(lambda: has(reader, layout) == wanted)
            await asyncio.sleep(0.2)
        assert has(reader, layout) == wanted
        assert low.metrics.totals()["served"] == layout.bytes_of(span(2, 5))
        assert high.metrics.totals()["served"] == layout.bytes_of(span(cut + 1, cut + 3))


async def test_a_manifest_comes_from_a_holder_when_storage_is_gone(tmp_path: Path) -> None:
    layout = model(tmp_path)
    async with cluster(tmp_path, "") as (app,):
        await tell(app, order(layout, (0, layout.run_count)))
        await until_has(app, layout, span(0, layout.run_count))
    gone = tmp_path / "origin"
    gone.rename(tmp_path / "away")
    gone.mkdir()
    async with cluster(tmp_path, "", "") as (app, reader):  # with a tracker that knows nothing
        gone.rmdir()
        assert has(app, layout) == span(0, layout.run_count)
        done = await pull(reader, f"{REF}@blake3:{layout.digest}")
        assert (done["event"], done["bytes_peers"]) == ("done", layout.total_bytes), done


async def test_a_model_that_was_remote_before_it_was_kept_is_so_again(tmp_path: Path) -> None:
    """Its tag was taken for that of a client, and what had been brought stayed for good."""
    layout = model(tmp_path)
    async with agent(tmp_path, "a", origin=(tmp_path / "origin").as_uri()) as app:
        assert (await pull(app, REF))["event"] == "done"
        async with client(app) as session, session.post("/v1/evict", json={"ref": REF}) as answer:
            assert answer.status == 200
        await tell(app, order(layout, (0, layout.run_count)))
        await until_has(app, layout, span(0, layout.run_count))
        await tell(app)
        await until(lambda: app.store.usage().cached_bytes == 0)
        told = await row(app)
        assert (told["remote"], told["ref"]) == (True, REF)
