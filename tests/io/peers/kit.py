"""A one-file store, a recording swarm and a node, for tests of the peer data plane."""

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from blake3 import blake3

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, make_file, make_manifest
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome
from p2pcache.core.swarm.events import Source as From
from p2pcache.errors import NotFound
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.protocol.limits import PeerLimits, TokenBucket
from p2pcache.io.security.tls import Tls

KEY = Secret(b"k" * 32)
TLS: Tls | None = None  # of all nodes that aren't given one; set while a test runs in mTLS mode
# Short deadlines, so that tests of them are quick, and honest peers keep them on a busy machine.
QUICK = PeerLimits(
    handshake_s=1.5, stall_s=1.0, ping_s=0.5, idle_s=8.0, request_s=2.0, ban_s=2.0, half_open=16
)


class Model(NamedTuple):
    """Bytes and how they are cut. Chunks of one file lie at running offsets."""

    layout: Layout
    chunks: list[bytes]


def make_model(lengths: list[int], seed: int = 1) -> Model:
    """A model of one file with chunks of the given lengths."""
    rng = Random(seed)
    chunks = [rng.randbytes(length) for length in lengths]
    file = make_file("weights", [Chunk(len(c), blake3(c).digest()) for c in chunks])
    return Model(Layout(make_manifest([file])), chunks)


class Source(NamedTuple):
    fd: int
    offset: int
    length: int


class FileStore:
    """Chunks of one model in one temporary file; the shape of `ChunkStore`."""

    def __init__(self, model: Model, *, full: bool, broken: Exception | None = None) -> None:
        self.layout = model.layout
        self.broken = broken  # raised by every write
        self.have: set[int] = set(range(len(model.chunks))) if full else set()
        self.begun = self.finished = self.aborted = 0
        self.offsets = [0]
        for chunk in model.chunks:
            self.offsets.append(self.offsets[-1] + len(chunk))
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `node`
        if full:
            self.file.write(b"".join(model.chunks))
            self.file.flush()

    def have_runs(self) -> int:
        runs = range(self.layout.run_count)
        return bitset.of(r for r in runs if not self.missing_chunks(r))

    def missing_chunks(self, run: int) -> list[int]:
        return [c for c in self.layout.run_chunks(run) if c not in self.have]

    def source(self, chunk: int) -> Source:
        if chunk not in self.have:
            raise NotFound(f"chunk {chunk} is not here")
        return Source(self.file.fileno(), self.offsets[chunk], self.layout.lengths[chunk])

    def unreadable(self, chunk: int) -> bool:
        self.have.discard(chunk)
        return True

    def begin(self, chunk: int) -> "FileWriter | None":
        if chunk in self.have:
            return None
        self.begun += 1
        return FileWriter(self, chunk)

    def read(self) -> bytes:
        return os.pread(self.file.fileno(), self.offsets[-1], 0)


class FileWriter:
    def __init__(self, store: FileStore, chunk: int) -> None:
        self.store, self.chunk = store, chunk
        self.hash = blake3()
        self.lock = threading.Lock()
        self.put_bytes = 0
        self.over = False

    def update(self, data: memoryview) -> None:
        self.hash.update(data)

    def put(self, offset: int, data: memoryview) -> None:
        if self.over:
            return
        if self.store.broken is not None:
            raise self.store.broken
        written = os.pwrite(self.store.file.fileno(), data, self.store.offsets[self.chunk] + offset)
        with self.lock:
            self.put_bytes += written

    def finish(self) -> bool:
        assert not self.over
        self.over = True
        self.store.finished += 1
        assert self.put_bytes == self.store.layout.lengths[self.chunk]
        good = self.hash.digest() == self.store.layout.digest_of_chunk(self.chunk)
        if good:
            self.store.have.add(self.chunk)
        return good

    def abort(self) -> None:
        assert not self.over
        self.over = True
        self.store.aborted += 1


class Port:
    """A `SwarmPort` that writes down what it is told."""

    def __init__(self, model: Model, *, full: bool, broken: Exception | None = None) -> None:
        self.layout = model.layout
        self.store = FileStore(model, full=full, broken=broken)
        self.told: list[tuple[object, ...]] = []
        self.recalls: list[int] = []  # the loads of haves without runs
        self.ends: dict[int, tuple[Outcome, int]] = {}
        self.waited_s: dict[int, float] = {}
        self.pace = 0.0
        self._changed = asyncio.Event()

    def have_runs(self) -> int:
        return self.store.have_runs()

    def wants(self) -> bool:
        return self.have_runs() != bitset.full(self.layout.run_count)

    def awaited(self) -> tuple[int, float]:
        return (bitset.full(self.layout.run_count) & ~self.have_runs()).bit_count(), self.pace

    def peer_joined(self, node: int, have: int, load: int) -> None:
        self._note("joined", node, have)

    def peer_left(self, node: int) -> None:
        self._note("left", node)

    def peer_has(self, node: int, runs: int, load: int) -> None:
        self.recalls += [] if runs else [load]
        self._note("has", node, runs)

    def request_ended(
        self, request: int, outcome: Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        assert request not in self.ends, "a request ended twice"
        self.waited_s[request] = waited_s
        self.ends[request] = (outcome, nbytes)
        self._note("ended", request, outcome)

    def on_proved(self, runs: int, source: From, nbytes: int | None = None) -> None:
        self._note("proved", runs, source, nbytes)

    def dial_failed(self, node: int) -> None:
        self._note("failed", node)

    def inbound(self, node: int, address: str, wants: bool) -> None:
        self._note("inbound", node, address, wants)

    def _note(self, *what: object) -> None:
        self.told.append(what)
        self._changed.set()

    async def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait for something that comes with a callback."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def heard(self, *what: object, timeout_s: float = 30.0) -> None:
        """Wait until told exactly this."""
        await self.until(lambda: what in self.told, timeout_s)

    async def end(self, request: int, timeout_s: float = 30.0) -> Outcome:
        """Wait for the end of a request."""
        await self.until(lambda: request in self.ends, timeout_s)
        return self.ends[request][0]


class Node:
    """A PeerNet that listens."""

    def __init__(self, number: int, net: PeerNet) -> None:
        self.number, self.net = number, net
        self.address = ""
        self.where = ("", 0)
        self.ports: list[Port] = []

    def swarm(self, model: Model, *, full: bool = False, broken: Exception | None = None) -> Port:
        port = Port(model, full=full, broken=broken)
        self.ports.append(port)
        self.net.add_swarm(port)
        return port


@contextlib.asynccontextmanager
async def node(
    number: int,
    *,
    secret: Secret = KEY,
    limits: PeerLimits | None = None,
    uploads: UploadSettings | None = None,
    up: int | None = None,
    down: int | None = None,
    disk: int = 0,
    tls: Tls | None = None,
) -> AsyncIterator[Node]:
    """A started node, stopped at the end."""
    one = Node(
        number,
        PeerNet(
            node=number, secret=secret, uploads=uploads or UploadSettings(), limits=limits,
            upload_bytes_per_s=up, download_bytes_per_s=down, disk=TokenBucket(disk),
            tls=tls or TLS,
        ),
    )  # fmt: skip
    one.where = await one.net.start("127.0.0.1", 0)
    one.address = f"{one.where[0]}:{one.where[1]}"
    try:
        yield one
    finally:
        await one.net.stop(drain_s=0)
        for port in one.ports:
            port.store.file.close()


async def uploading(server: Node) -> None:
    """Until somebody's request has arrived there."""
    async with asyncio.timeout(30):
        while not server.net.load:
            await asyncio.sleep(0.005)


async def idle(server: Node) -> None:
    """Until it serves nobody; the end of an upload calls nobody back."""
    async with asyncio.timeout(30):
        while server.net.load:
            await asyncio.sleep(0.02)


def open_files() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
