"""The data plane on the real store: bytes arrive proved, a rotten copy is found out, two may race."""

import asyncio
from pathlib import Path

from p2pcache.core import bitset
from p2pcache.core.format.manifest import encode
from p2pcache.core.swarm.events import Outcome
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.store import Store
from tests.io.peers.kit import Model, Node, Port, make_model, node

MODEL = make_model([262_144] * 20 + [100] * 50 + [777_777], seed=5)
LAYOUT = MODEL.layout
EVERYTHING = bitset.full(LAYOUT.run_count)


class StorePort(Port):
    """A port whose chunks lie in a real cache."""

    def __init__(self, model: Model, opened: ModelStore) -> None:
        super().__init__(model, full=False)
        self.store.file.close()
        self.store = opened  # type: ignore[assignment] # both are a ChunkStore


def open_store(cache: Path, model: Model, *, full: bool) -> tuple[Store, ModelStore]:
    store = Store.open(cache, min_free_bytes=0)
    opened = store.add_model(model.layout, encode(model.layout.manifest))
    for chunk, data in enumerate(model.chunks if full else ()):
        writer = opened.begin(chunk)
        assert writer is not None
        writer.update(memoryview(data))
        writer.put(0, memoryview(data))
        assert writer.finish()
    return store, opened


def swarm(one: Node, opened: ModelStore) -> StorePort:
    port = StorePort(MODEL, opened)
    one.net.add_swarm(port)
    return port


async def pull(client: Node, port: Port, server: int) -> list[Outcome]:
    for run in range(LAYOUT.run_count):
        client.net.request(LAYOUT.digest, server * 1000 + run, server, run)
    return [await port.end(server * 1000 + run) for run in range(LAYOUT.run_count)]


async def test_a_cache_is_filled_from_two_peers_that_race(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / str(n), MODEL, full=n != 3) for n in (1, 2, 3)]
    async with node(1) as left, node(2) as right, node(3) as client:
        swarm(left, stores[0][1])
        swarm(right, stores[1][1])
        port = swarm(client, stores[2][1])
        for server in (left, right):
            client.net.dial(LAYOUT.digest, server.number, server.address)
            await port.heard("joined", server.number, EVERYTHING)
        both = await asyncio.gather(pull(client, port, 1), pull(client, port, 2))
    assert {outcome for outcomes in both for outcome in outcomes} <= {Outcome.DONE, Outcome.BUSY}
    opened = stores[2][1]
    for run, ends in enumerate(zip(*both, strict=True)):
        assert bool(opened.have_runs() >> run & 1) == (Outcome.DONE in ends)
    assert opened.verify() == []
    for store, _ in stores:
        store.close()


async def test_rotten_bytes_end_in_mismatch_and_are_not_kept(tmp_path: Path) -> None:
    (good, full), (fresh, empty) = (
        open_store(tmp_path / name, MODEL, full=name == "good") for name in ("good", "fresh")
    )
    full.flush()
    for blob in LAYOUT.blobs:
        for folder in ("partial", "blobs"):
            path = tmp_path / "good" / folder / blob.id
            if path.exists():
                path.chmod(0o600)
                with path.open("r+b") as file:  # what another root process could do
                    file.write(b"rot")
    async with node(1) as server, node(2) as client:
        served, port = swarm(server, full), swarm(client, empty)
        assert served.have_runs() & 1
        client.net.dial(LAYOUT.digest, 1, server.address)
        await port.heard("joined", 1, EVERYTHING)
        client.net.request(LAYOUT.digest, 1, 1, 0)
        # The store may notice by the file's time stamp before it serves; else BLAKE3 does here.
        assert await port.end(1) in (Outcome.MISMATCH, Outcome.REFUSED)
        assert empty.have_runs() == 0
    good.close()
    fresh.close()
