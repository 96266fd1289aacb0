"""Connections to storage close soon after the last read."""

import asyncio
import random
from pathlib import Path

import pytest

from p2pcache.agent import origin_reads
from p2pcache.io.origins.file import FileOrigin
from tests.agent.kit import agent, make_model, pull, push

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
