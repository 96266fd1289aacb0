"""A scrape takes what the agent's parts know already."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from p2pcache.errors import Unreachable
from p2pcache.io.disk.store_info import Usage
from tests.agent.kit import agent, client


async def scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: object) -> str:
    async with agent(tmp_path) as app, client(app) as session:
        monkeypatch.setattr(app.store, "usage", look)
        async with asyncio.timeout(2), session.get("/metrics") as answer:
            assert answer.status == 200
            return await answer.text()


async def test_a_scrape_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs held the event loop, and with it the heartbeats, at each scrape."""
    over = threading.Event()

    def hang() -> Usage:
        over.wait(5)
        raise AssertionError("asked")

    began = time.monotonic()
    try:
        text = await scrape(tmp_path, monkeypatch, hang)
    finally:
        over.set()
    assert time.monotonic() - began < 5
    assert float(text.split("\np2pcache_agent_cache_free_bytes ")[1].split()[0]) > 0


async def test_a_cache_that_is_gone_leaves_the_other_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Usage:
        raise Unreachable("the cache dir is gone")

    assert "\np2pcache_agent_ready " in await scrape(tmp_path, monkeypatch, gone)
