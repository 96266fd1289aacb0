"""One node to another over loopback, beside the raw rate of the same kernel: `make bench`.

Two real processes move a model of one file of 1 GiB, so chunks of 4 MiB, as the shards of large models
have: by sendfile, BLAKE3, written to cache files.

raw       the same files by plain sendfile into one reused buffer: no hash, no file, no protocol
fresh     p2pcache into an empty cache: every page of the page cache is new
again     p2pcache into the cache of an agent that has just removed a model: its pages are free again, and
          some are still warm (docs/lab/0043-no-recycled-files.md)
bare      recv_into, BLAKE3 and pwrite over an existing file, without a protocol: more than "again" could reach
write     one thread that writes as many bytes into a fresh file: neither network nor hash

They run in turns, so that all meet the same machine; ratios are those of one turn, and the median
turn counts. "Python" is the user CPU time of both ends less what BLAKE3 alone takes for these bytes.

In a virtual machine the *first* touch of a page by anybody also makes the host find memory for it,
which is most of what "fresh" and "write" then measure; `--warm-memory` has another process touch and
free as much memory right before each of them, so that the pages are backed as on bare metal.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.kit.flags import count, out_file
from loadtest.kit.models import make_model
from loadtest.loopback import runs
from loadtest.loopback.runs import Node, Run

GB = 1e9
# (ratio to raw, CPU-s per GB of both ends) that the data plane has to reach on two cores
ASKED = {"fresh": (0.45, 1.3), "again": (0.45, 1.3)}


class Turn(NamedTuple):
    """One of each, right after each other."""

    raw: Run
    fresh: Run
    again: Run
    bare: Run
    write: Run


def certificates(folder: Path) -> Path:
    """A CA, and one certificate for each end."""
    from p2pcache.io.security import ca

    ca.init(folder, cluster="bench")
    for name in ("server", "client"):
        ca.issue(folder, name, role="agent")
    return folder


def between_agents(
    stack: contextlib.ExitStack, root: Path, model: Path
) -> tuple[Callable[[], Run], Callable[[], Run]]:
    """What pulls into a fresh cache, and what into one that has just removed it, through real agents."""
    cluster = stack.enter_context(runs.seeded(root, model))
    again = stack.enter_context(runs.newcomer(cluster))
    runs.agents_run(cluster, again)

    def fresh() -> Run:
        with runs.newcomer(cluster) as agent:
            return runs.agents_run(cluster, agent)

    def once_more() -> Run:
        runs.forget(again)
        return runs.agents_run(cluster, again)

    return fresh, once_more


def between_peers(
    stack: contextlib.ExitStack, root: Path, server: Node
) -> tuple[Callable[[], Run], Callable[[], Run]]:
    """The same through the data plane and the store alone."""
    again = Node(root, "client")
    stack.callback(again.stop)
    runs.peers_run(server, again)

    def fresh() -> Run:
        (root / "fresh").mkdir()
        client = Node(root / "fresh", "client")
        try:
            return runs.peers_run(server, client)
        finally:
            client.stop()
            shutil.rmtree(root / "fresh")

    return fresh, lambda: runs.peers_run(server, again)


# -- figures --------------------------------------------------------------------------------------


def report(turns: list[Turn], size: int, blake3_s: float) -> dict[str, Any]:
    """Medians over the turns; CPU in seconds per GB."""
    gb = size / GB
    rows: dict[str, Any] = {}
    for name in Turn._fields:
        column: list[Run] = [getattr(turn, name) for turn in turns]
        rows[name] = {
            "gb_per_s": gb / statistics.median(r.seconds for r in column),
            "best_gb_per_s": gb / min(r.seconds for r in column),
            "sender_cpu_s_per_gb": statistics.median(r.sender_cpu_s for r in column) / gb,
            "receiver_cpu_s_per_gb": statistics.median(r.receiver_cpu_s for r in column) / gb,
            "cpu_s_per_gb": statistics.median(r.sender_cpu_s + r.receiver_cpu_s for r in column) / gb,
        }  # fmt: skip
    for name in ASKED:
        pairs = [(turn.raw, getattr(turn, name)) for turn in turns]
        python = [(r.user_s - blake3_s) / (r.sender_cpu_s + r.receiver_cpu_s) for _, r in pairs]
        rows[name]["ratio"] = statistics.median(raw.seconds / r.seconds for raw, r in pairs)
        rows[name]["python_share"] = statistics.median(python)
    rows["again"]["of_bare"] = statistics.median(t.bare.seconds / t.again.seconds for t in turns)
    rows["bare"]["ratio"] = statistics.median(t.raw.seconds / t.bare.seconds for t in turns)
    rounded = {n: {k: round(v, 3) for k, v in row.items()} for n, row in rows.items()}
    return {"bytes": size, "turns": len(turns), "blake3_cpu_s_per_gb": round(blake3_s / gb, 3),
            "load_average": round(os.getloadavg()[0], 1)} | rounded  # fmt: skip


def show(figures: dict[str, Any]) -> None:
    """Print it as a table, with what was asked."""
    print(f"{'':10} {'GB/s':>6} {'best':>6} {'CPU-s/GB sender':>16} {'receiver':>9} {'both':>6}")
    for name in Turn._fields:
        row = figures[name]
        print(f"{name:10} {row['gb_per_s']:6.2f} {row['best_gb_per_s']:6.2f} {row['sender_cpu_s_per_gb']:16.2f} "
              f"{row['receiver_cpu_s_per_gb']:9.2f} {row['cpu_s_per_gb']:6.2f}")  # fmt: skip
    for name, (ratio, cpu) in ASKED.items():
        row = figures[name]
        print(f"{name}: {row['ratio']:.2f} of raw (asked: {ratio}), {row['cpu_s_per_gb']:.2f} CPU-s per GB "
              f"(asked: {cpu}), Python {row['python_share']:.0%} of it")  # fmt: skip
    print(
        f"bare: {figures['bare']['ratio']:.2f} of raw; again: {figures['again']['of_bare']:.2f} of bare"
    )
    print(f"medians of {figures['turns']} turns; load average {figures['load_average']} at the end")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.loopback", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--through", choices=["agents", "peers"], default="agents",
                        help="two real agents (default), or the data plane and the store alone")  # fmt: skip
    parser.add_argument("--size-mib", type=count, default=1024)
    parser.add_argument("--pairs", type=count, default=5, help="turns")
    parser.add_argument("--warm-memory", action="store_true",
                        help="touch and free the memory first, so that not the host's paging is measured")  # fmt: skip
    parser.add_argument("--dir", type=Path, help="where caches lie; default: the temporary directory, which "
                        "should be a disk, not a tmpfs")  # fmt: skip
    parser.add_argument("--json", type=out_file, help="also write the figures to this file")
    parser.add_argument("--tls", action="store_true", help="in mTLS mode (with --through peers)")
    arguments = parser.parse_args()
    if arguments.tls and arguments.through != "peers":
        parser.error("--tls goes with --through peers")
    return arguments


def measure(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    """All turns."""
    model = make_model(root / "model", arguments.size_mib << 20, shards=1)
    with contextlib.ExitStack() as stack:
        if arguments.tls:
            os.environ["P2PCACHE_BENCH_TLS"] = str(certificates(root / "ca"))
        server = Node(root, "server", model)
        stack.callback(server.stop)
        fresh, again = (
            between_agents(stack, root, model)
            if arguments.through == "agents"
            else between_peers(stack, root, server)
        )

        def warmed(run: Callable[[], Run]) -> Run:
            if arguments.warm_memory:
                runs.warm(server.bytes)
            return run()

        reused = root / "reused"
        fresh()  # the very first pages of all count for nobody
        runs.bare_run(server, reused)
        blake3_s = runs.once("hash", str(server.bytes))["cpu_s"]
        turns = [
            Turn(runs.raw_run(server), warmed(fresh), again(), runs.bare_run(server, reused),
                 warmed(lambda: runs.write_run(server.bytes, root)))
            for _ in range(arguments.pairs)
        ]  # fmt: skip
        figures = report(turns, server.bytes, blake3_s)
    return figures | {"through": arguments.through, "warm_memory": arguments.warm_memory}


def main() -> None:
    arguments = parse()
    root = Path(tempfile.mkdtemp(prefix="p2pc-loopback-", dir=arguments.dir))
    try:
        figures = measure(arguments, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
