"""Two real nodes on loopback: join, request, have, cancel, drop, stop."""

from p2pcache.core import chunkset
from p2pcache.core.events import Outcome
from tests.io.peers.kit import make_model, node

MIXED = [1, 5, 300_000, 262_144, 262_144, 70_000, 12, 13, 1_000_000]


async def test_everything_comes_over() -> None:
    model = make_model(MIXED)
    async with node(1) as server, node(2) as client:
        server.swarm(model, full=True)
        port = client.swarm(model)
        client.net.dial(model.layout.digest, 1, server.address)
        await port.heard("joined", 1, chunkset.full(model.layout.run_count))
        for run in range(model.layout.run_count):
            client.net.request(model.layout.digest, 100 + run, 1, run)
            assert await port.end(100 + run) is Outcome.DONE
        assert port.store.read() == b"".join(model.chunks)
        assert not port.wants()
        assert client.net.stats.bytes_received == sum(MIXED)
        assert server.net.stats.bytes_served == sum(MIXED)
