"""One node up and down at once, beside one way: part of `make bench`.

A node fetches one model from two peers while two others fetch another model from it: five processes
of the data plane (no agents) on one machine, every byte proved and written into files of its own. In
turns with it, one node fetches from one other. The aggregate counts what the node in the middle
receives and sends. All five share this machine's cores, so the bound is what the cores can move;
`cpu_busy` says how near that was.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.kit.flags import count, out_file
from loadtest.kit.models import make_model
from loadtest.loopback.runs import Node, peers_run

GB = 1e9
ASKED = 1.5  # times one way, or the limit of the cores
CPU_LIMIT = 0.9  # of all cores busy: then it was they


class Both(NamedTuple):
    """One run in both directions."""

    seconds: float
    cpu_s: float  # of the five processes
    cpu_busy: float  # share of all cores, whoever it was


class Stage:
    """The five processes."""

    def __init__(self, root: Path, size: int, stack: contextlib.ExitStack) -> None:
        """Two models of different bytes: the peers above have one, the node in the middle another."""
        above = make_model(root / "above", 2 * size, shards=1, seed=1)
        below = make_model(root / "below", size, shards=1, seed=2)
        self.sources = [Node(root, f"source-{i}", above) for i in (1, 2)]
        self.middle = Node(root, "middle", below)
        self.sinks = [Node(root, f"sink-{i}") for i in (1, 2)]
        self.nodes = [*self.sources, self.middle, *self.sinks]
        for node in self.nodes:
            stack.callback(node.stop)
        self.moved = self.sources[0].bytes + 2 * self.middle.bytes

    def both(self) -> Both:
        """Up and down at once."""
        cpu, busy, start = self._cpu_s(), _busy_s(), time.perf_counter()
        self.middle.start_pull(*self.sources)
        for sink in self.sinks:
            sink.start_pull(self.middle)
        for node in (*self.sinks, self.middle):
            node.answer()
        seconds = time.perf_counter() - start
        share = min(1.0, (_busy_s() - busy) / (seconds * (os.cpu_count() or 1)))  # ticks are coarse
        return Both(seconds, self._cpu_s() - cpu, share)

    def _cpu_s(self) -> float:
        return sum(node.cpu()[0] for node in self.nodes)


def _busy_s() -> float:
    """Seconds that all cores were busy so far."""
    fields = [int(f) for f in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def report(turns: list[tuple[float, Both]], one_way: int, moved: int) -> dict[str, Any]:
    """Medians over the turns."""
    figures = {
        "one_way_gb_per_s": one_way / GB / statistics.median(s for s, _ in turns),
        "both_gb_per_s": moved / GB / statistics.median(b.seconds for _, b in turns),
        "ratio": statistics.median(moved / b.seconds / (one_way / s) for s, b in turns),
        "cpu_s_per_gb": statistics.median(b.cpu_s for _, b in turns) / (moved / GB),
        "cpu_busy": statistics.median(b.cpu_busy for _, b in turns),
    }
    return {k: round(v, 3) for k, v in figures.items()} | {"turns": len(turns)}


def show(figures: dict[str, Any]) -> None:
    """Print it, and what bound it."""
    one_way, both = figures["one_way_gb_per_s"], figures["both_gb_per_s"]
    print(f"one way {one_way:.2f} GB/s; up and down at once {both:.2f} GB/s, {figures['ratio']:.2f} times that "
          f"(asked: {ASKED}), {figures['cpu_s_per_gb']:.2f} CPU-s per GB")  # fmt: skip
    bound = "the CPU was the limit" if figures["cpu_busy"] >= CPU_LIMIT else "the CPU was not"
    print(f"cores {figures['cpu_busy']:.0%} busy: {bound}; medians of {figures['turns']} turns")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.updown", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--size-mib",
        type=count,
        default=1024,
        help="what each sink fetches; the middle: twice that",
    )
    parser.add_argument("--turns", type=count, default=3)
    parser.add_argument("--dir", type=Path, help="where caches lie, a disk")
    parser.add_argument("--json", type=out_file, help="also write the figures to this file")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="p2pc-updown-", dir=arguments.dir))
    try:
        with contextlib.ExitStack() as stack:
            stage = Stage(root, arguments.size_mib << 20, stack)
            stage.both()  # the very first pages of all count for nobody
            turns = [
                (peers_run(stage.middle, stage.sinks[0]).seconds, stage.both())
                for _ in range(arguments.turns)
            ]
            figures = report(turns, stage.middle.bytes, stage.moved)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    show(figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
