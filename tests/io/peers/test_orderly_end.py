"""Real nodes on loopback: they stop in good order, and nothing leaks."""

import asyncio
import threading
import time

import pytest
import uvloop

from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import UsageError
from tests.io.peers.kit import node, open_files, uploading
from tests.io.peers.pairs import DIGEST, RUNS, served


async def test_a_stopping_node_finishes_its_uploads() -> None:
    async with served(up=300_000) as (server, client, port):
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        stopping = server.net.stop(drain_s=30)
        asked_late = asyncio.get_running_loop().call_later(
            0.05, client.net.request, DIGEST, 2, 1, 0
        )
        await stopping
        assert await port.end(1) is Outcome.DONE
        assert await port.end(2) is Outcome.BUSY
        await port.heard("left", 1)
        asked_late.cancel()


def test_it_does_so_on_uvloop_too() -> None:
    uvloop.run(test_a_stopping_node_finishes_its_uploads())


async def test_the_drain_has_a_limit() -> None:
    async with served(up=5_000) as (server, client, port):
        client.net.request(DIGEST, 1, 1, RUNS - 1)
        await uploading(server)
        start = time.monotonic()
        await server.net.stop(drain_s=0.1)
        assert time.monotonic() - start < 15
        assert await port.end(1) is Outcome.LOST


async def test_an_address_in_use() -> None:
    async with node(1) as first, node(2) as second:
        await second.net.stop()
        with pytest.raises(UsageError, match="can't listen"):
            await second.net.start(*first.where)


async def test_nothing_leaks() -> None:
    await asyncio.to_thread(time.sleep, 0)  # the loop's own helper thread stays
    before, threads = open_files(), threading.active_count()
    for _ in range(3):
        async with served() as (_, client, port):
            client.net.request(DIGEST, 1, 1, RUNS - 1)
        assert await port.end(1) in (Outcome.LOST, Outcome.DONE)
        assert port.store.begun == port.store.finished + port.store.aborted
    assert open_files() == before
    names = [thread.name for thread in threading.enumerate()]
    assert len([n for n in names if not n.startswith("asyncio")]) <= threads, names
