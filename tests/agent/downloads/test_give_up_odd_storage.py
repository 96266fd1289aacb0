"""One node reads other storage than the others: it is warned, and gets the model from them at once."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.agent.downloads.test_give_up import spoil
from tests.agent.kit import agent, make_model, pull, push
from tests.tracker.kit import tracker

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


def another(origin: Path, how: str) -> Path:
    """What one node finds instead of the origin."""
    odd = origin.with_name("odd")
    if how == "empty mount":
        odd.mkdir()
    else:
        shutil.copytree(origin, odd)
        (blob,) = (odd / "p2pcache/v1/blobs").iterdir()
        spoil(blob, how)
    return odd


@pytest.mark.parametrize("how", ["empty mount", "gone", "short", "rotten"])
async def test_the_odd_node_is_warned_and_the_others_get_the_model(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m")
    odd = another(origin, how)
    async with tracker(origin) as one:
        url = f"http://{one.address}"
        async with (
            agent(tmp_path, "odd-one", origin=odd.as_uri(), tracker=url) as bad,
            agent(tmp_path, "good", origin=origin.as_uri(), tracker=url) as good,
        ):
            failed = await pull(bad, "m")
            assert failed["code"] == 6
            assert "others read run" in failed["message"]
            assert "of this node" in failed["message"]
            assert "--repair" not in failed["message"]
            assert (await pull(good, "m"))["event"] == "done"
            assert (await pull(bad, "m"))["event"] == "done", "peers bring what its storage lacks"
        (swarm,) = one.tracking.swarms.values() or [None]
        assert swarm is None or swarm.doubts.stop is None
    said = [
        r.getMessage() for r in caplog.records if r.name == "p2pcache.tracker.members.member_log"
    ]
    assert any("it says that storage has run" in text for text in said)
    assert any("the tracker reads run" in text for text in said)


async def test_without_other_readers_the_node_decides_itself(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m")
    odd = another(origin, "rotten")
    async with tracker() as one:
        url = f"http://{one.address}"
        async with (
            agent(tmp_path, "odd-one", origin=odd.as_uri(), tracker=url) as bad,
            agent(tmp_path, "good", origin=origin.as_uri(), tracker=url) as good,
        ):
            failed = await pull(bad, "m")
            assert failed["code"] == 6
            assert "no other node reads it" in failed["message"]
            assert "--repair" not in failed["message"]
            assert (await pull(good, "m"))["event"] == "done"


async def test_two_nodes_that_agree_are_enough_without_a_tracker_that_reads(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m")
    (blob,) = (origin / "p2pcache/v1/blobs").iterdir()
    spoil(blob, "rotten")
    async with tracker() as one:
        where = {"origin": origin.as_uri(), "tracker": f"http://{one.address}"}
        async with agent(tmp_path, "a", **where) as a, agent(tmp_path, "b", **where) as b:
            ends = await asyncio.gather(pull(a, "m"), pull(b, "m"))
            assert [end["code"] for end in ends] == [6, 6]
            last = await pull(a, "m")
    assert last["message"].endswith("push it again with --repair")


async def test_an_odd_node_that_comes_while_another_reads_gets_the_model_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "model", FILES), "m")
    odd = another(origin, "rotten")
    async with tracker(origin) as one:
        url = f"http://{one.address}"
        async with (
            agent(tmp_path, "odd-one", origin=odd.as_uri(), tracker=url) as bad,
            agent(
                tmp_path, "good", origin=origin.as_uri(), tracker=url, origin_bytes_per_s=1_000_000
            ) as good,
        ):

            async def late() -> dict[str, object]:
                while not one.tracking.swarms:
                    await asyncio.sleep(0.01)
                return await pull(bad, "m")

            ends = await asyncio.gather(pull(good, "m"), late())
            assert [end["event"] for end in ends] == ["done", "done"]
            assert any("other nodes brought it" in text for text in bad.queries.warnings())
            assert not good.queries.warnings()
    warned = [r.getMessage() for r in caplog.records if r.name == "p2pcache.agent.downloads.runner"]
    assert len([text for text in warned if "other nodes brought it" in text]) == 1
