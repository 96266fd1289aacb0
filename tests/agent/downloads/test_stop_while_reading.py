"""An agent that stops lets the reads end that the tracker left to it: nobody reads their runs again."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from p2pcache.core.format.layout import Layout
from p2pcache.core.swarm.events import Source
from p2pcache.io.peers.net import PeerNet
from tests.agent.jobs.warm_kit import until
from tests.agent.kit import HeldReads, agent, make_model, pull, push
from tests.tracker.kit import tracker

REF = "team/m:v1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    files = {"weights.bin": random.Random(7).randbytes(1_000_000)}
    return push(tmp_path / "origin", make_model(tmp_path / "model", files), REF)


async def test_a_read_that_has_begun_is_kept(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with tracker(tmp_path / "origin") as one, asyncio.timeout(30):
        url = f"http://{one.address}"
        async with agent(tmp_path, tracker=url) as app:
            pulling = asyncio.gather(pull(app, REF))
            await reads.until_begun()
            asyncio.get_running_loop().call_later(0.5, reads.let_go.set)
        begun = set(reads.begun)
        assert (await pulling)[0]["event"] == "error"
        assert app.context.tally.taken[Source.ORIGIN] > 0
        book_ends = one.tracking.lease_ends()
        assert book_ends["done"] == len(begun), book_ends
        reads.begun.clear()
        async with agent(tmp_path, tracker=url) as app:
            assert (await pull(app, REF))["event"] == "done"
        assert not begun & set(reads.begun)


async def test_a_read_that_hangs_holds_no_agent_up(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = HeldReads(monkeypatch)
    async with tracker(tmp_path / "origin") as one, asyncio.timeout(30):
        async with agent(tmp_path, tracker=f"http://{one.address}", shutdown_s=0.5) as app:
            pulling = asyncio.gather(pull(app, REF))
            await reads.until_begun()
            began = time.monotonic()
        assert time.monotonic() - began < 5
        reads.let_go.set()
        await until(pulling.done)
        await until(lambda: set(reads.cancelled) == set(reads.begun))


async def test_reads_and_uploads_end_by_one_deadline(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had all of `shutdown_s`, and uploads run while reads end."""
    reads, drains = HeldReads(monkeypatch), list[float]()
    stop = PeerNet.stop

    async def stop_net(net: PeerNet, *, drain_s: float = 0.0) -> None:
        drains.append(drain_s)
        await stop(net, drain_s=drain_s)

    monkeypatch.setattr(PeerNet, "stop", stop_net)
    async with tracker(tmp_path / "origin") as one, asyncio.timeout(30):
        url = f"http://{one.address}"
        async with agent(tmp_path, tracker=url, shutdown_s=0.5) as app:
            pulling = asyncio.gather(pull(app, REF))
            await reads.until_begun()
        reads.let_go.set()
        await until(pulling.done)
        async with agent(tmp_path, tracker=url, shutdown_s=60.0):
            pass
    assert drains[0] == 0, "the read took it all"
    assert 50 < drains[-1] <= 60, "nothing was read"
