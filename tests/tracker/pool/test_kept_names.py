"""What a name that is kept means: its tag moves, its records and manifest are spoilt or gone."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from p2pcache.core.format.keep_record import KeepRecord
from tests.tracker.kit import REF, publish, tracker
from tests.tracker.pool.keep_kit import FILES, NAME, Keeper, eventually, members, say, state


async def test_a_kept_name_that_moves_is_followed_and_a_bad_record_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pcache.tracker.pool.keeping.READ_S", 0.1)
    before, _ = publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        await say(a, "keep", ref=NAME, everywhere=True, nodes="gpu=h100")
        after, _ = publish(tmp_path, files=FILES + 1)
        await eventually(lambda: a.orders == {before: True, after: True})
        await a.obey(after)
        await eventually(lambda: a.orders == {after: True})
        record = tmp_path / "p2pcache/v1/intent/keep" / "/".join(REF.tag_key)
        assert msgspec.json.decode(record.read_bytes(), type=KeepRecord).everywhere
        record.write_bytes(b'{"generation":9,"everywhere":true,"nodes":"nonsense"}')
        await asyncio.sleep(0.3)
        assert "selector" in (await say(a, "keeps"))["keeps"][0]["trouble"]
        record.write_bytes(b"spoilt")
        await asyncio.sleep(0.3)
        assert a.orders == {after: True}


async def test_a_name_that_moves_twice_at_once_ends_the_first_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the first model wasn't told, and kept it until it connected again."""
    monkeypatch.setattr("p2pcache.tracker.pool.keeping.READ_S", 0.1)
    first, _ = publish(tmp_path, files=FILES)
    nodes = [Keeper(node) for node in range(1, 9)]

    def ordered() -> set[str]:
        return {digest for each in nodes for digest in each.orders}

    async with tracker(tmp_path) as one, members(one, *nodes):
        await say(nodes[0], "keep", ref=NAME, copies=1)
        await eventually(lambda: ordered() == {first})
        second, _ = publish(tmp_path, files=FILES + 1)
        await eventually(lambda: ordered() == {first, second})
        third, _ = publish(tmp_path, files=FILES + 2)
        await eventually(lambda: ordered() == {second, third})


async def test_a_wish_that_was_ended_and_made_again_is_new(tmp_path: Path) -> None:
    """At a tracker that has just started: it waited for ten minutes, as for what was there before."""
    publish(tmp_path, files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        await say(a, "keep", ref=NAME, copies=1)
    async with tracker(tmp_path) as two, members(two, a):
        await state(a, "waiting")
        await say(a, "keep", ref=NAME, off=True)
        assert (await say(a, "keep", ref=NAME, copies=1))["state"] == "arriving"


async def test_storage_that_has_forgotten_all_intents_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that isn't mounted is an empty directory."""
    monkeypatch.setattr("p2pcache.tracker.pool.keeping.READ_S", 0.1)
    (tmp_path / "share").mkdir()
    digest, _ = publish(tmp_path / "share", files=FILES)
    a = Keeper(1)
    async with tracker(tmp_path / "share") as one, members(one, a):
        await say(a, "keep", ref=NAME, copies=1)
        await a.obey(digest)
        await state(a, "kept")
        (tmp_path / "share").rename(tmp_path / "away")
        (tmp_path / "share").mkdir()
        await asyncio.sleep(0.5)
        assert a.orders == {digest: False}
        assert (await say(a, "keeps"))["keeps"][0]["state"] == "kept"
    b = Keeper(2)
    async with (
        tracker(tmp_path / "share") as one,
        members(one, b),
    ):  # it starts before the share is there
        await asyncio.sleep(0.5)
        assert not b.lists, "an empty list would end what it keeps"


async def test_a_model_whose_manifest_is_gone_is_kept_as_one_in_trouble(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path)
    for path in tmp_path.rglob(f"*{digest}*"):
        path.unlink()
    a = Keeper(1)
    async with tracker(tmp_path) as one, members(one, a):
        row = await say(a, "keep", ref=NAME, copies=1)
        assert row["state"] == "unknown"
        assert digest in row["trouble"]
