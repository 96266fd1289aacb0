"""Rates of a whole node hold however many peers there are, and change while bytes flow."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

import pytest

from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.upload.priority import Priority
from tests.io.peers.kit import Model, Node, Port, make_model, node

RATE = 20_000_000  # bytes per second
PEERS = 8
CHUNK = 1 << 20


async def storm(server: Node, clients: Sequence[Node], model: Model) -> float:
    """All clients get all of it at once; bytes per second over all of them."""
    ports: list[Port] = []
    for one in clients:
        port = one.swarm(model)
        one.net.dial(model.layout.digest, server.number, server.address)
        ports.append(port)
    for port in ports:
        await port.heard("joined", server.number, server_have(model))
    began = time.monotonic()
    await asyncio.gather(*(fetch(*pair, server) for pair in zip(clients, ports, strict=True)))
    return sum(model.layout.lengths) * len(clients) / (time.monotonic() - began)


def server_have(model: Model) -> int:
    return (1 << model.layout.run_count) - 1


async def fetch(one: Node, port: Port, server: Node) -> None:
    number = 0
    for run in range(port.layout.run_count):
        while True:
            number += 1
            one.net.request(port.layout.digest, number, server.number, run)
            if await port.end(number) is Outcome.DONE:
                break
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("capped", ["up", "down", "disk"])
async def test_a_cap_holds_over_all_peers(capped: str) -> None:
    """Many take from one node, or one node takes from many: the node's rate is the rate."""
    model = make_model([CHUNK] * 4)
    caps = {capped: RATE}
    async with contextlib.AsyncExitStack() as stack:
        if capped == "up":
            server = await stack.enter_async_context(
                node(1, uploads=UploadSettings(slots=PEERS), up=RATE)
            )
            server.swarm(model, full=True)
            clients = [await stack.enter_async_context(node(2 + n)) for n in range(PEERS)]
            rate = await storm(server, clients, model)
        else:
            rate = await gather_from_many(stack, caps)
    # The burst is 50 ms of some 1.6 s. How near the cap it comes is the machine's business too.
    assert 0.1 * RATE < rate < 1.15 * RATE


async def gather_from_many(stack: contextlib.AsyncExitStack, caps: dict[str, int]) -> float:
    client = await stack.enter_async_context(
        node(99, down=caps.get("down"), disk=caps.get("disk", 0))
    )
    models = [make_model([CHUNK] * 4, seed=seed) for seed in range(PEERS)]
    ports = []
    for number, model in enumerate(models):
        server = await stack.enter_async_context(node(1 + number))
        server.swarm(model, full=True)
        port = client.swarm(model)
        client.net.dial(model.layout.digest, server.number, server.address)
        await port.heard("joined", server.number, server_have(model))
        ports.append((port, server))
    began = time.monotonic()
    await asyncio.gather(*(fetch(client, port, server) for port, server in ports))
    return PEERS * 4 * CHUNK / (time.monotonic() - began)


async def test_a_limit_comes_and_goes_while_bytes_flow() -> None:
    model = make_model([CHUNK] * 24)
    async with node(1) as server, node(2) as one:
        server.swarm(model, full=True)
        slow = RATE / 20
        server.net.limit_uploads(slow, 1)
        began = time.monotonic()
        work = asyncio.gather(storm(server, [one], model))
        await asyncio.sleep(2.0)
        served, passed = server.net.stats.bytes_served, time.monotonic() - began
        assert served < slow * passed + 2 * CHUNK, "at the limit, and what sockets hold"
        server.net.limit_uploads(0, 100)
        began = time.monotonic()
        await work
        assert time.monotonic() - began < 24 * CHUNK / slow / 2, "it went on at full speed"


async def test_background_requests_wait_for_others() -> None:
    model = make_model([CHUNK] * 6)
    uploads = UploadSettings(slots=1)
    # So slow that all requests arrive while the first chunk is sent.
    async with node(1, uploads=uploads, up=RATE // 10) as server, node(2) as warm, node(
        3
    ) as pull:  # fmt: skip
        server.swarm(model, full=True)
        digest, ports = model.layout.digest, []
        for one in (warm, pull):
            port = one.swarm(model)
            one.net.dial(digest, server.number, server.address)
            await port.heard("joined", server.number, server_have(model))
            ports.append(port)
        warm.net.put_behind(digest, Priority.BACKGROUND)
        warm.net.request(digest, 1, server.number, 0)
        await asyncio.sleep(0)
        pull.net.request(digest, 1, server.number, 0)
        pull.net.request(digest, 2, server.number, 1)
        warm.net.request(digest, 2, server.number, 1)
        assert await ports[1].end(1) is Outcome.DONE
        assert await ports[1].end(2) is Outcome.DONE
        assert await ports[0].end(2) is Outcome.BUSY


async def test_a_request_for_a_rack_goes_before_earlier_ones() -> None:
    model = make_model([CHUNK] * 6)
    uploads = UploadSettings(slots=1)
    async with node(1, uploads=uploads, up=RATE // 10) as server, node(2) as near, node(
        3
    ) as bridge:  # fmt: skip
        server.swarm(model, full=True)
        digest, ports = model.layout.digest, []
        for one in (near, bridge):
            port = one.swarm(model)
            one.net.dial(digest, server.number, server.address)
            await port.heard("joined", server.number, server_have(model))
            ports.append(port)
        for run in range(3):
            near.net.request(digest, run, server.number, run)
        await asyncio.sleep(0)
        bridge.net.request(digest, 1, server.number, 3, Priority.URGENT)
        assert await ports[1].end(1) is Outcome.DONE
        assert len(ports[0].ends) <= 2
        assert await ports[0].end(2) is Outcome.DONE
