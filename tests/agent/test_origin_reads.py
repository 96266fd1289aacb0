"""What storage and the event loop notice of reads: connections close soon after the last, and the loop wakes seldom."""

import asyncio
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.agent import origin_reads
from p2pcache.agent.origin_reads import LeasedRun, OriginReads
from p2pcache.core.swarm.events import Outcome
from p2pcache.io.origins import Retrying
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.origins.repo import OriginRepo, blob_key
from p2pcache.io.origins.retry import RetryPolicy
from p2pcache.io.peers.protocol.limits import TokenBucket
from tests.agent.kit import agent, make_model, pull, push
from tests.io.models.store_kit import Model, open_store

FILES = {"weights.bin": random.Random(5).randbytes(3_000_000)}


async def test_the_origin_rests_once_nothing_was_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(origin_reads, "THREAD_IDLE_S", 0.3)
    monkeypatch.setattr(FileOrigin, "rest", lambda _: rested.append(loop.time()))
    origin = tmp_path / "origin"
    origin.mkdir()
    push(origin, make_model(tmp_path / "model", FILES), "m")
    async with agent(tmp_path, "a", origin=origin.as_uri()) as app:
        assert not rested
        await pull(app, "m")
        done = loop.time()
        async with asyncio.timeout(10):
            while not rested:
                await asyncio.sleep(0.02)
        assert rested[0] < done + 2
        await asyncio.sleep(0.7)
        assert len(rested) == 1, "once is enough"


async def test_a_request_of_many_runs_wakes_the_loop_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "origin").mkdir()
    origin = FileOrigin((tmp_path / "origin").as_uri())
    model = Model({"weights.bin": random.Random(5).randbytes(3_000_000)})
    origin.put(blob_key(model.layout.blobs[0].id), model.files["weights.bin"])
    store = open_store(tmp_path / "cache")
    reads = OriginReads(0, TokenBucket())
    reads.repo = OriginRepo(Retrying(origin, RetryPolicy(0)))
    loop = asyncio.get_running_loop()
    woken: list[object] = []
    wake = loop.call_soon_threadsafe

    def count(callback: Any, *arguments: Any, **more: Any) -> asyncio.Handle:
        if threading.current_thread().name.startswith("origin"):
            woken.append(callback)
        return wake(callback, *arguments, **more)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    ended: list[tuple[int, Outcome]] = []

    def wanted(run: int) -> LeasedRun:
        return LeasedRun(run, threading.Event(), lambda outcome, _: ended.append((run, outcome)))

    runs = [wanted(run) for run in range(model.layout.run_count)]
    await reads.read(model.layout, model.add(store), runs)
    store.close()
    assert ended == [(run, Outcome.DONE) for run in range(model.layout.run_count)]
    assert len(ended) > 8
    assert len(woken) == 1


async def test_the_loop_hears_of_runs_in_the_middle_of_a_long_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    def slow(_blobs: object, _layout: object, _store: object, runs: list[int], **more: Any) -> None:
        more["on_ended"](runs[0], Outcome.DONE)
        let_go.wait(60)
        more["on_ended"](runs[1], Outcome.DONE)

    monkeypatch.setattr(origin_reads, "fetch_runs", slow)
    (tmp_path / "origin").mkdir()
    model = Model(FILES)
    store = open_store(tmp_path / "cache")
    reads = OriginReads(0, TokenBucket())
    reads.repo = OriginRepo(Retrying(FileOrigin((tmp_path / "origin").as_uri()), RetryPolicy(0)))
    heard: asyncio.Queue[int] = asyncio.Queue()
    both = [
        LeasedRun(run, threading.Event(), lambda *_, run=run: heard.put_nowait(run))
        for run in (0, 1)
    ]
    target = model.add(store)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        work = group.create_task(reads.read(model.layout, target, both))
        assert await heard.get() == 0
        assert not work.done()
        let_go.set()
    store.close()
    assert heard.get_nowait() == 1


@pytest.mark.parametrize("opened", [True, False], ids=["no first step yet", "the storage opens"])
async def test_no_read_begins_once_reads_were_drained(
    *, opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into a store that is closed."""
    begun: list[object] = []
    monkeypatch.setattr(origin_reads, "fetch_runs", lambda *args, **_: begun.append(args))
    reads, outcomes = OriginReads(0, TokenBucket()), list[Outcome]()
    nothing: Any = SimpleNamespace(digest="d" * 64)
    reads.repo = nothing
    monkeypatch.setattr(reads.sourced, "blobs", lambda *_: None)
    run = LeasedRun(0, threading.Event(), lambda outcome, _: outcomes.append(outcome))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(reads.read(nothing, nothing, [run]))
        if not opened:
            reads.settled.clear()
            await asyncio.sleep(0)
        await reads.drained(0.1)
        reads.settled.set()
    assert (begun, outcomes) == ([], [Outcome.CANCELLED])
    assert not run.begun
