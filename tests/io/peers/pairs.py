"""A node that has a model of mixed lengths, and one that asks it for runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from p2pcache.core import bitset
from p2pcache.io.peers.protocol.limits import PeerLimits
from tests.io.peers.kit import Node, Port, make_model, node

MIXED = [1, 5, 300_000, 262_144, 262_144, 70_000, 12, 13, 1_000_000]
MODEL = make_model(MIXED)
DIGEST = MODEL.layout.digest
RUNS = MODEL.layout.run_count
EVERYTHING = bitset.full(RUNS)


async def dialled(client: Node, port: Port, server: Node, have: int = EVERYTHING) -> None:
    client.net.dial(port.layout.digest, server.number, server.address)
    await port.heard("joined", server.number, have)


@asynccontextmanager
async def served(
    *, limits: PeerLimits | None = None, up: int | None = None
) -> AsyncIterator[tuple[Node, Node, Port]]:
    """A server (1) that has all of the model, and a client (2) that has dialled it, with the client's port."""
    async with node(1, limits=limits, up=up) as server, node(2) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await dialled(client, port, server)
        yield server, client, port
