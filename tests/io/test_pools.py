"""Threads by purpose: what is stuck in one pool holds up no other one."""

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from p2pcache.io import pools
from p2pcache.io.peers.transport.dialer import Dialer
from tests.agent.jobs.warm_kit import model
from tests.agent.kit import agent, pull


async def test_a_pull_does_not_wait_for_names_that_nobody_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, real = threading.Event(), socket.getaddrinfo

    def lookup(host: str, *args: int, **more: int) -> object:
        if host.endswith(".slow.test") and "flags" not in more:
            silent.wait(60)
            raise OSError("no answer")
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    model(tmp_path)
    failed: list[str] = []
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        loop = asyncio.get_running_loop()
        dials = [
            Dialer(loop, f"x{i}.slow.test:7401", lambda _: None, failed.append) for i in range(40)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            assert (await pull(app, "team/m:v1"))["event"] == "done"
        assert not failed
        silent.set()
        async with asyncio.timeout(30):
            while len(failed) < len(dials):
                await asyncio.sleep(0.01)


async def test_a_pull_does_not_wait_for_long_work_of_others(tmp_path: Path) -> None:
    model(tmp_path)
    go = threading.Event()
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri()) as app:
        verifies = [pools.WORK.begin_job(go.wait, 60) for _ in range(30)]
        async with asyncio.timeout(30):
            assert (await pull(app, "team/m:v1"))["event"] == "done"
        go.set()
        await asyncio.gather(*verifies)
