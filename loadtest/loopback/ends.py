"""The ends of the loopback benchmarks, each a process of its own (see loopback.py, updown.py).

    node NAME CACHE MODEL_DIR|-   a node of the data plane; serves the model; commands come by stdin
    drain ADDRESS BYTES           the raw rival: recv_into one reused buffer
    write FILE BYTES              the floor: one thread writes a reused buffer into a fresh file
    bare ADDRESS FILE BYTES       the ceiling: recv_into, BLAKE3 and pwrite, and nothing else
    hash BYTES                    what BLAKE3 alone costs, a slice of a megabyte at a time

Every line on stdout is one JSON object. Commands of a node, a line of JSON each: `{"do": "cpu"}`, and
`{"do": "pull", "manifest": FILE, "from": {NAME: ADDRESS}}`, which removes the model again.
"""

import asyncio
import json
import os
import queue
import resource
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Self

from blake3 import blake3

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import decode, encode
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.settings import UploadSettings
from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.models.store import Store
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.peers.transport.workers import SLICE_BYTES
from p2pcache.io.security.tls import Tls

NAMES = ("server", "client")  # of one to one; with --tls these have certificates
SECRET = Secret(b"benchmark" * 4)
OUTSTANDING = 7  # as SwarmSettings.outstanding: there is one neighbour
RAW_SLICE = 1 << 20
BARE_SLICES = 4  # one is filled, two are hashed and written, one waits


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Cpu(NamedTuple):
    """CPU seconds of this process."""

    cpu_s: float
    user_s: float

    @classmethod
    def now(cls) -> Self:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_utime)

    def since(self, before: "Cpu") -> dict[str, float]:
        return {"cpu_s": self.cpu_s - before.cpu_s, "user_s": self.user_s - before.user_s}


def node_of(name: str) -> int:
    """A node's id."""
    return Member("agent", name).node(1)


class Port:
    """A small swarm: keeps a few requests under way at each peer until all is there."""

    def __init__(self, store: ModelStore, net: PeerNet) -> None:
        self.layout = store.layout
        self.store = store
        self.done = asyncio.Event()
        self.failure = ""
        self._net = net
        self._next = 0
        self._left = store.layout.run_count
        self._peer_of: dict[int, int] = {}  # run under way

    def have_runs(self) -> int:
        return self.store.have_runs()

    def awaited(self) -> tuple[int, float]:
        return 0, 0.0

    def wants(self) -> bool:
        return not self.store.complete

    def peer_joined(self, node: int, have: int, load: int) -> None:
        for _ in range(OUTSTANDING):
            self._ask(node)

    def peer_left(self, node: int) -> None:
        self._fail("the connection ended")

    def peer_has(self, node: int, runs: int, load: int) -> None:
        pass

    def request_ended(
        self, request: int, outcome: Outcome, nbytes: int, waited_s: float = 0.0
    ) -> None:
        if outcome is not Outcome.DONE:
            self._fail(f"run {request} ended {outcome.name}")
        self._left -= 1
        self._ask(self._peer_of.pop(request))
        if not self._left:
            self.done.set()

    def on_proved(self, runs: int, source: Source, nbytes: int | None = None) -> None:
        pass

    def dial_failed(self, node: int) -> None:
        self._fail("the dial failed")

    def inbound(self, node: int, address: str, wants: bool) -> None:  # noqa: FBT001
        pass

    def _ask(self, node: int) -> None:
        if self._next < self.layout.run_count:
            run, self._next = self._next, self._next + 1
            self._peer_of[run] = node
            self._net.request(self.layout.digest, run, node, run)

    def _fail(self, why: str) -> None:
        if self._left:
            self.failure = why
            self.done.set()


class TlsFiles(NamedTuple):
    """What `Tls` asks for."""

    tls_cert: str
    tls_key: str
    tls_ca: str


def peer_net(name: str) -> PeerNet:
    """In mTLS mode if P2PCACHE_BENCH_TLS names a directory with certificates."""
    tls = None
    if folder := os.environ.get("P2PCACHE_BENCH_TLS"):
        base = f"{folder}/{name}"
        tls = Tls(TlsFiles(f"{base}.pem", f"{base}.key", f"{folder}/ca.pem"), "agent")
    return PeerNet(node=node_of(name), secret=SECRET, uploads=UploadSettings(), tls=tls)


def fill(store: ModelStore, sources: dict[str, Path]) -> None:
    """Copy a model into a cache through the store's own writers."""
    layout = store.layout
    for path, number in layout.blob_of_file.items():
        with sources[path].open("rb", buffering=0) as file:
            for chunk in layout.blobs[number].chunks:
                data = memoryview(file.read(layout.lengths[chunk]) or b"")
                writer = store.begin(chunk)
                if writer is not None:
                    writer.update(data)
                    writer.put(0, data)
                    assert writer.finish()


def raw_server(paths: list[Path], listener: socket.socket) -> None:
    """Send all files to each caller, by sendfile on a blocking socket."""
    while True:
        sock, _ = listener.accept()
        with sock:
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                size, at = path.stat().st_size, 0
                while at < size:
                    at += os.sendfile(sock.fileno(), fd, at, min(size - at, 4 << 20))
                os.close(fd)


class Node:
    """One node: a cache and the data plane, without agent, tracker or origin."""

    def __init__(self, name: str, cache: Path) -> None:
        self.store = Store.open(cache, min_free_bytes=0)
        self.net = peer_net(name)

    def serve(self, model: Path) -> dict[str, Any]:
        """Index a model into the cache; what others need to know."""
        manifest, sources = index_directory(model)
        encoded, layout = encode(manifest), Layout(manifest)
        written = self.store.root.with_suffix(".manifest")
        written.write_bytes(encoded)
        opened = self.store.add_model(layout, encoded)
        fill(opened, sources)
        opened.flush()
        self.net.add_swarm(Port(opened, self.net))
        listener = socket.create_server(("127.0.0.1", 0))
        files = list(sources.values())
        threading.Thread(target=raw_server, args=(files, listener), daemon=True).start()
        raw = f"127.0.0.1:{listener.getsockname()[1]}"
        return {"manifest": str(written), "raw": raw, "bytes": layout.total_bytes}

    async def pull(self, manifest: Path, peers: dict[str, str]) -> dict[str, float]:
        """Fetch a whole model from all of these nodes, then remove it."""
        encoded = manifest.read_bytes()
        layout = Layout(decode(encoded))
        opened = self.store.add_model(layout, encoded)
        port = Port(opened, self.net)
        self.net.add_swarm(port)
        before, start = Cpu.now(), time.perf_counter()
        for name, address in peers.items():
            self.net.dial(layout.digest, node_of(name), address)
        await port.done.wait()
        facts = {"seconds": time.perf_counter() - start} | Cpu.now().since(before)
        if port.failure:
            raise SystemExit(port.failure)
        assert opened.complete
        self.net.remove_swarm(layout.digest)
        self.store.remove_model(layout.digest)
        return facts


async def node(name: str, cache: Path, model: str) -> None:
    it = Node(name, cache)
    host, port = await it.net.start("127.0.0.1", 0)
    say(peers=f"{host}:{port}", **(it.serve(Path(model)) if model != "-" else {}))
    while line := await asyncio.to_thread(sys.stdin.readline):
        match json.loads(line):
            case {"do": "cpu"}:
                say(**Cpu.now()._asdict())
            case {"do": "pull", "manifest": manifest, "from": peers}:
                say(**await it.pull(Path(manifest), peers))
    os._exit(0)  # durability isn't measured, and the cache is thrown away


def drain(address: str, size: int) -> None:
    host, _, port = address.rpartition(":")
    buffer = bytearray(RAW_SLICE)
    before, start = Cpu.now(), time.perf_counter()
    with socket.create_connection((host, int(port))) as sock:
        got = 0
        while got < size:
            count = sock.recv_into(buffer, 0, socket.MSG_WAITALL)
            assert count, "the server hung up"
            got += count
    say(seconds=time.perf_counter() - start, **Cpu.now().since(before))


def bare(address: str, path: Path, size: int) -> None:
    """Receive, hash and write over what lies in the file: what has to be done, without a protocol.

    One thread receives into four slices, two hash and write them.
    """
    host, _, port = address.rpartition(":")
    free, full = queue.SimpleQueue[bytearray](), queue.SimpleQueue[tuple[bytearray, int] | None]()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def work() -> None:
        while (job := full.get()) is not None:
            buffer, at = job
            view = memoryview(buffer)[: size - at]
            blake3(view)
            os.pwrite(fd, view, at)
            free.put(buffer)

    for _ in range(BARE_SLICES):
        free.put(bytearray(SLICE_BYTES))
    threads = [threading.Thread(target=work) for _ in range(2)]
    before, start = Cpu.now(), time.perf_counter()
    for thread in threads:
        thread.start()
    with socket.create_connection((host, int(port))) as sock:
        for at in range(0, size, SLICE_BYTES):
            buffer = free.get()
            want = min(SLICE_BYTES, size - at)
            assert sock.recv_into(buffer, want, socket.MSG_WAITALL) == want, "the server hung up"
            full.put((buffer, at))
    for _ in threads:
        full.put(None)
    for thread in threads:
        thread.join()
    say(seconds=time.perf_counter() - start, **Cpu.now().since(before))


def write(path: Path, size: int) -> None:
    """No network, no hash: what fresh page cache alone costs here and now."""
    buffer = memoryview(os.urandom(RAW_SLICE))
    before, start = Cpu.now(), time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for at in range(0, size, RAW_SLICE):
            file.write(buffer[: size - at])
    say(seconds=time.perf_counter() - start, **Cpu.now().since(before))


def hash_only(size: int) -> None:
    """The part of the CPU time that is BLAKE3's own."""
    buffer = memoryview(os.urandom(RAW_SLICE))
    before, start = Cpu.now(), time.perf_counter()
    hasher = blake3()
    for at in range(0, size, RAW_SLICE):
        hasher.update(buffer[: size - at])
    say(seconds=time.perf_counter() - start, **Cpu.now().since(before))


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop, as the daemons do (P2PCACHE_BENCH_LOOP=asyncio for the other one)."""
    if os.environ.get("P2PCACHE_BENCH_LOOP") == "asyncio":
        asyncio.run(work)
    else:
        import uvloop

        uvloop.run(work)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["node", name, cache, model]:
            run_loop(node(name, Path(cache), model))
        case ["drain", address, size]:
            drain(address, int(size))
        case ["bare", address, path, size]:
            bare(address, Path(path), int(size))
        case ["write", path, size]:
            write(Path(path), int(size))
        case ["hash", size]:
            hash_only(int(size))
        case _:
            sys.exit(__doc__)
