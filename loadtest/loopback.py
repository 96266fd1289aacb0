"""One node to another over loopback, beside the raw rate of the same kernel: `make bench`.

Two real processes move a model of 1 GiB: chunks by sendfile, BLAKE3, written to fresh cache files.
The rival moves the same files by plain sendfile into one reused buffer: no hash, no write, no
protocol. Pairs are run in turns, so that both meet the same machine; the median pair counts.

Every run writes to fresh files, and fresh page cache is the dearest part of it. In a virtual
machine the *first* touch of a page by anybody also makes the host find memory for it (one thread
then writes 0.4 GB/s where it writes 1.7-2.8 later). So one run comes first that doesn't count, and
each turn also measures the floor: one thread that writes as many bytes into a fresh file, without
network or hash. `--warm-memory` takes the host out of the figures: right before each run that writes,
another process touches as much memory and frees it, so that the pages which the run gets are backed
already, as they are on bare metal.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.cluster import Agent, Cluster
from loadtest.models import make_model

GB = 1e9
ENDS = [sys.executable, "-m", "loadtest.loopback_ends"]
LIMIT_S = 120.0  # a run takes a second or two


class Run(NamedTuple):
    """One transfer: seconds of wall clock, CPU seconds of each end."""

    seconds: float
    sender_cpu_s: float
    receiver_cpu_s: float


class Server:
    """The process that serves, over the data plane and raw."""

    def __init__(self, root: Path, model: Path) -> None:
        self.process = subprocess.Popen(
            [*ENDS, "serve", str(root / "server"), str(model)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        facts = self._read()
        self.peers, self.raw, self.bytes = facts["peers"], facts["raw"], int(facts["bytes"])
        self.manifest = root / "manifest"

    def cpu_s(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._read()["cpu_s"])

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the serving process ended; its error is above")
        facts: dict[str, Any] = json.loads(line)
        return facts


def receive(server: Server, *arguments: str) -> Run:
    """Run a receiving process against the server."""
    before = server.cpu_s()
    done = subprocess.run(
        [*ENDS, *arguments], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    facts = json.loads(done.stdout)
    return Run(facts["seconds"], server.cpu_s() - before, facts["cpu_s"])


def raw_run(server: Server) -> Run:
    return receive(server, "drain", server.raw, str(server.bytes))


def warm(size: int) -> None:
    """Touch as much memory as a run will fill, and free it at once."""
    touch = "import mmap,sys; m = mmap.mmap(-1, int(sys.argv[1])); m[:] = bytes(len(m))"
    subprocess.run([sys.executable, "-c", touch, str(size)], check=True, timeout=LIMIT_S)


def peers_run(server: Server, root: Path) -> Run:
    cache = root / "client"
    try:
        return receive(server, "pull", str(cache), str(server.manifest), server.peers)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def write_run(server: Server, root: Path) -> Run:
    path = root / "floor"
    try:
        return receive(server, "write", str(path), str(server.bytes))
    finally:
        path.unlink(missing_ok=True)


def certificates(folder: Path) -> Path:
    """A CA, and one certificate for each end."""
    from p2pcache.io import ca

    ca.init(folder, cluster="bench")
    for name in ("server", "client"):
        ca.issue(folder, name, role="agent")
    return folder


# -- through two real agents ----------------------------------------------------------------------


@contextlib.contextmanager
def seeded(root: Path, model: Path) -> Iterator[Cluster]:
    """A tracker and one agent that has the whole model."""
    origin = root / "origin"
    origin.mkdir()
    with Cluster(f"file://{origin}", agents=1, folder=root) as cluster:
        cluster.run("push", str(model), "bench:v1")
        cluster.run("pull", "bench:v1")
        yield cluster


def agents_run(cluster: Cluster, warm_bytes: int) -> Run:
    """A fresh agent pulls; the clock runs from the resolved ref to the last proved byte."""
    agent = cluster.add_agent()
    agent.start()
    try:
        if warm_bytes:
            warm(warm_bytes)
        sender, receiver = agent_cpu_s(cluster.agents[0]), agent_cpu_s(agent)
        started = ended = time.perf_counter()
        cpu, last = (0.0, 0.0), dict[str, Any]()
        for event in agent.client.pull("bench:v1"):
            last = event
            if event["event"] == "resolved":
                started = time.perf_counter()
            elif event["event"] == "progress":
                ended = time.perf_counter()
                cpu = agent_cpu_s(cluster.agents[0]) - sender, agent_cpu_s(agent) - receiver
        if last["bytes_origin"]:
            raise SystemExit(
                f"{last['bytes_origin']} bytes came from the origin, not from the peer"
            )
        return Run(ended - started, *cpu)
    finally:
        agent.stop()
        cluster.agents.remove(agent)
        shutil.rmtree(agent.home, ignore_errors=True)


def agent_cpu_s(agent: Agent) -> float:
    """CPU seconds of a daemon so far."""
    fields = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# -- figures --------------------------------------------------------------------------------------


def report(turns: list[tuple[Run, Run, Run]], size: int, first: Run) -> dict[str, Any]:
    """Medians over the turns; CPU in seconds per GB."""

    def column(which: int) -> dict[str, float]:
        runs = [turn[which] for turn in turns]
        return {
            "gb_per_s": round(size / GB / statistics.median(r.seconds for r in runs), 3),
            "best_gb_per_s": round(size / GB / min(r.seconds for r in runs), 3),
            "sender_cpu_s_per_gb": round(
                statistics.median(r.sender_cpu_s for r in runs) / (size / GB), 3
            ),
            "receiver_cpu_s_per_gb": round(
                statistics.median(r.receiver_cpu_s for r in runs) / (size / GB), 3
            ),
        }

    ratios = [raw.seconds / ours.seconds for raw, ours, _ in turns]
    return {
        "bytes": size, "pairs": len(turns), "raw": column(0), "p2pcache": column(1), "write_only": column(2),
        "ratio": round(statistics.median(ratios), 3),
        "first_touch_gb_per_s": round(size / GB / first.seconds, 3),
    }  # fmt: skip


def show(figures: dict[str, Any]) -> None:
    print(f"{'':10} {'GB/s':>7} {'best':>7} {'CPU-s/GB sender':>16} {'receiver':>9}")
    for name in ("raw", "p2pcache", "write_only"):
        row = figures[name]
        print(f"{name:10} {row['gb_per_s']:7.2f} {row['best_gb_per_s']:7.2f} "
              f"{row['sender_cpu_s_per_gb']:16.2f} {row['receiver_cpu_s_per_gb']:9.2f}")  # fmt: skip
    print(f"ratio {figures['ratio']:.2f} (median of {figures['pairs']} pairs in turns); "
          f"very first run {figures['first_touch_gb_per_s']:.2f} GB/s")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.loopback", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--through", choices=["agents", "peers"], default="agents",
                        help="two real agents (default), or the data plane and the store alone")  # fmt: skip
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--warm-memory", action="store_true",
                        help="touch and free the memory first, so that not the host's paging is measured")  # fmt: skip
    parser.add_argument("--dir", type=Path, help="where caches lie; default: the temporary directory, which "
                        "should be a disk, not a tmpfs")  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tls", action="store_true", help="in mTLS mode (with --through peers)")
    arguments = parser.parse_args()
    if arguments.tls and arguments.through != "peers":
        parser.error("--tls goes with --through peers")
    root = Path(tempfile.mkdtemp(prefix="p2pc-loopback-", dir=arguments.dir))
    try:
        model = make_model(root / "model", arguments.size_mib << 20)
        with contextlib.ExitStack() as stack:
            if arguments.tls:
                os.environ["P2PCACHE_BENCH_TLS"] = str(certificates(root / "ca"))
            server = Server(root, model)
            stack.callback(server.stop)
            cluster = (
                stack.enter_context(seeded(root, model)) if arguments.through == "agents" else None
            )

            warm_bytes = server.bytes if arguments.warm_memory else 0

            def ours() -> Run:
                if cluster is not None:
                    return agents_run(cluster, warm_bytes)
                warm(warm_bytes or 1)
                return peers_run(server, root)

            def floor() -> Run:
                warm(warm_bytes or 1)
                return write_run(server, root)

            first = ours()
            turns = [(raw_run(server), ours(), floor()) for _ in range(arguments.pairs)]
            figures = report(turns, server.bytes, first) | {
                "through": arguments.through, "warm_memory": arguments.warm_memory,
            }  # fmt: skip
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
