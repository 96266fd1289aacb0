"""The two ends of the loopback benchmark, each a process of its own (see loopback.py).

    serve CACHE MODEL_DIR    index the model into a fresh cache and serve it, until stdin ends
    pull CACHE MANIFEST NODE_ADDRESS     fetch it all into a fresh cache
    drain ADDRESS BYTES      the raw rival: recv_into one reused buffer
    write FILE BYTES         the floor: one thread writes a reused buffer into a fresh file

Every line on stdout is one JSON object.
"""

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from p2pcache.core.events import Outcome
from p2pcache.core.handshake import Secret
from p2pcache.core.identity import Member
from p2pcache.core.layout import Layout
from p2pcache.core.manifest import decode, encode
from p2pcache.core.settings import UploadSettings
from p2pcache.io.hashing import index_directory
from p2pcache.io.modelstore import ModelStore
from p2pcache.io.peers.net import PeerNet
from p2pcache.io.store import Store
from p2pcache.io.tls import Tls

NAMES = ("server", "client")
SERVER, CLIENT = (Member("agent", name).node(1) for name in NAMES)  # node ids
SECRET = Secret(b"benchmark" * 4)
OUTSTANDING = 6  # as SwarmSettings.outstanding_few_peers
RAW_SLICE = 1 << 20


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Port:
    """A swarm of two: keeps a few requests under way until all is there."""

    def __init__(self, store: ModelStore, net: PeerNet) -> None:
        self.layout = store.layout
        self.store = store
        self.done = asyncio.Event()
        self.failure = ""
        self._net = net
        self._next = 0
        self._left = store.layout.run_count

    def have_runs(self) -> int:
        return self.store.have_runs()

    def wants(self) -> bool:
        return not self.store.complete

    def peer_joined(self, node: int, have: int, load: int) -> None:
        for _ in range(OUTSTANDING):
            self._ask()

    def peer_left(self, node: int) -> None:
        self._fail("the connection ended")

    def peer_has(self, node: int, runs: int, load: int) -> None:
        pass

    def request_ended(self, request: int, outcome: Outcome, nbytes: int) -> None:
        if outcome is not Outcome.DONE:
            self._fail(f"run {request} ended {outcome.name}")
        self._left -= 1
        self._ask()
        if not self._left:
            self.done.set()

    def dial_failed(self, node: int) -> None:
        self._fail("the dial failed")

    def inbound(self, node: int, address: str, wants: bool, have: int) -> None:  # noqa: FBT001
        pass

    def _ask(self) -> None:
        if self._next < self.layout.run_count:
            run, self._next = self._next, self._next + 1
            self._net.request(self.layout.digest, run, SERVER, run)

    def _fail(self, why: str) -> None:
        if self._left:
            self.failure = why
            self.done.set()


class TlsFiles(NamedTuple):
    """What `Tls` asks for."""

    tls_cert: str
    tls_key: str
    tls_ca: str


def peer_net(node: int) -> PeerNet:
    """In mTLS mode if P2PCACHE_BENCH_TLS names a directory with certificates."""
    tls = None
    if folder := os.environ.get("P2PCACHE_BENCH_TLS"):
        base = f"{folder}/{NAMES[node == CLIENT]}"
        tls = Tls(TlsFiles(f"{base}.pem", f"{base}.key", f"{folder}/ca.pem"), "agent")
    return PeerNet(node=node, secret=SECRET, uploads=UploadSettings(), tls=tls)


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


async def serve(cache: Path, model: Path) -> None:
    manifest, sources = index_directory(model)
    encoded = encode(manifest)
    layout = Layout(manifest)
    (cache.parent / "manifest").write_bytes(encoded)
    store = Store.open(cache, min_free_bytes=0)
    opened = store.add_model(layout, encoded)
    await asyncio.to_thread(fill, opened, sources)
    opened.flush()
    net = peer_net(SERVER)
    host, port = await net.start("127.0.0.1", 0)
    net.add_swarm(Port(opened, net))
    listener = socket.create_server(("127.0.0.1", 0))
    files = list(sources.values())
    threading.Thread(target=raw_server, args=(files, listener), daemon=True).start()
    say(
        peers=f"{host}:{port}",
        raw=f"127.0.0.1:{listener.getsockname()[1]}",
        bytes=layout.total_bytes,
    )
    while await asyncio.to_thread(sys.stdin.readline):
        say(cpu_s=cpu_s())
    await net.stop()
    store.close()


async def pull(cache: Path, manifest: Path, address: str) -> None:
    encoded = manifest.read_bytes()
    layout = Layout(decode(encoded))
    store = Store.open(cache, min_free_bytes=0)
    opened = store.add_model(layout, encoded)
    net = peer_net(CLIENT)
    await net.start("127.0.0.1", 0)
    port = Port(opened, net)
    net.add_swarm(port)
    cpu, start = cpu_s(), time.perf_counter()
    net.dial(layout.digest, SERVER, address)
    await port.done.wait()
    seconds, cpu = time.perf_counter() - start, cpu_s() - cpu
    if port.failure:
        raise SystemExit(port.failure)
    assert opened.complete
    say(seconds=seconds, cpu_s=cpu)
    await net.stop()
    os._exit(0)  # durability isn't measured, and the cache is thrown away


def drain(address: str, size: int) -> None:
    host, _, port = address.rpartition(":")
    buffer = bytearray(RAW_SLICE)
    cpu, start = cpu_s(), time.perf_counter()
    with socket.create_connection((host, int(port))) as sock:
        got = 0
        while got < size:
            count = sock.recv_into(buffer, 0, socket.MSG_WAITALL)
            assert count, "the server hung up"
            got += count
    say(seconds=time.perf_counter() - start, cpu_s=cpu_s() - cpu)


def write(path: Path, size: int) -> None:
    """No network, no hash: what fresh page cache alone costs here and now."""
    buffer = memoryview(os.urandom(RAW_SLICE))
    cpu, start = cpu_s(), time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for at in range(0, size, RAW_SLICE):
            file.write(buffer[: size - at])
    say(seconds=time.perf_counter() - start, cpu_s=cpu_s() - cpu)


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop, as the daemons do (P2PCACHE_BENCH_LOOP=asyncio for the other one)."""
    if os.environ.get("P2PCACHE_BENCH_LOOP") == "asyncio":
        asyncio.run(work)
    else:
        import uvloop

        uvloop.run(work)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", cache, model]:
            run_loop(serve(Path(cache), Path(model)))
        case ["pull", cache, manifest, address]:
            run_loop(pull(Path(cache), Path(manifest), address))
        case ["drain", address, size]:
            drain(address, int(size))
        case ["write", path, size]:
            write(Path(path), int(size))
        case _:
            sys.exit(__doc__)
