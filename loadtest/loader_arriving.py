"""A model that is loaded while it arrives over a shaped link, beside a plain pull of the same size.

One node behind a link, tracker and S3 server behind theirs, each in a network namespace (root).
Pulls and loads take turns, so that both meet the same machine; each gets a model of its own that
the node has never seen. Then eight processes load one model at once, and one loads a quarter of
another with fetch="needed".

    python -m loadtest.loader_arriving --rate 1gbit --size 1GiB --turns 3 --json FILE

Exit code: 0 done, 1 wrong bytes or a failed load, 2 can't run here.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import safetensors

import p2pcache
from loadtest.kit import flags
from loadtest.kit.models import check_tree, make_model, total_bytes
from loadtest.kit.netns import FabricError
from loadtest.storm.arena import Arena, say
from loadtest.storm.plan import Plan
from p2pcache.core.units import parse_rate, parse_size
from p2pcache.io.http.client import AgentClient

PROCESSES = 8
STAGES = 4
SHARDS = 4
LIMIT_S = 300.0  # of one load
LOAD = [sys.executable, "-m", "loadtest.loader_arriving", "--one"]


def one_load(agent: str, ref: str, **how: Any) -> dict[str, Any]:
    """Load a model and let each tensor go; seconds to the first and to the last."""
    client = AgentClient(agent)
    before = fetched(client)
    began = time.monotonic()
    first_s = first_bytes = total = 0.0
    with p2pcache.iter_tensors(ref, agent=agent, framework="raw", **how) as stream:
        for _name, tensor in stream:
            if not first_s:
                first_s = time.monotonic() - began
                first_bytes = fetched(client) - before
            total += len(tensor.data)
    return {
        "seconds": time.monotonic() - began, "first_s": first_s, "first_bytes": first_bytes,
        "bytes": total, "line": stream.report.line(),
    }  # fmt: skip


def fetched(client: AgentClient) -> int:
    """Bytes that the agent took from origin and peers since it started."""
    told = client.status()["bytes"]
    return int(told["origin"]) + int(told["peer"])


class Bench:
    """The turns on one arena."""

    def __init__(self, arena: Arena, size_bytes: int) -> None:
        """`size_bytes`: of each model."""
        self._arena = arena
        self._size = size_bytes
        self._agent = arena.agents[0]
        self._count = 0

    def _fresh(self) -> tuple[str, Path]:
        """A model that the node doesn't have."""
        self._count += 1
        ref = f"bench/m{self._count}:v1"
        source = make_model(
            self._arena.work / f"m{self._count}", self._size, shards=SHARDS, seed=self._count
        )
        self._arena.command(self._arena.origin_host, "push", str(source), ref, "--quiet")
        return ref, source

    def _forget(self, ref: str, source: Path) -> None:
        self._agent.client.remove(ref)
        shutil.rmtree(source)

    def pull(self) -> float:
        """Seconds of a pull alone."""
        ref, source = self._fresh()
        began = time.monotonic()
        done = {}
        for event in self._agent.client.pull(ref):
            done = event
        seconds = time.monotonic() - began
        check_tree(self._agent.tree(done["path"]), source)
        self._forget(ref, source)
        return seconds

    def load(self, processes: int = 1) -> list[dict[str, Any]]:
        """Loads of one model by so many processes at once, and what the node fetched for them."""
        ref, source = self._fresh()
        before = fetched(self._agent.client)
        command = [*LOAD, self._agent.url, ref]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        texts = [process.communicate(timeout=LIMIT_S)[0] for process in running]
        if any(process.returncode for process in running):
            raise AssertionError("a load failed")
        share = (fetched(self._agent.client) - before) / total_bytes(source)
        loads = [json.loads(text) | {"fetched_share": share} for text in texts]
        self._check(ref, source)
        self._forget(ref, source)
        return loads

    def part(self) -> float:
        """The share of the model that is fetched for one stage of a pipeline."""
        ref, source = self._fresh()  # no tag names a part of a model: the arena's end removes it
        before = fetched(self._agent.client)
        one_load(self._agent.url, ref, stage=(1, STAGES), fetch="needed")
        share = (fetched(self._agent.client) - before) / total_bytes(source)
        time.sleep(1.0)  # what is fetched without need would come now
        assert fetched(self._agent.client) - before <= share * total_bytes(source) + 1
        return share

    def _check(self, ref: str, source: Path) -> None:
        """The loaded bytes once more, now from the cache, against the files."""
        for path in source.glob("*.safetensors"):
            with p2pcache.safe_open(ref, "raw", agent=self._agent.url) as ours:
                for name, tensor in safetensors_bytes(path).items():
                    if bytes(ours.get_tensor(name).data) != tensor:
                        raise AssertionError(f"{ref}: {name} differs from its source")


def safetensors_bytes(path: Path) -> dict[str, bytes]:
    """The file's tensors, read without our loader."""
    with safetensors.safe_open(path, "np") as file:
        return {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def measure(bench: Bench, turns: int) -> dict[str, Any]:
    """All figures."""
    pulls, loads = [], []
    for turn in range(turns):
        order = (bench.pull, bench.load) if turn % 2 else (bench.load, bench.pull)
        for act in order:
            if act == bench.pull:
                pulls.append(bench.pull())
                say(f"pull {pulls[-1]:.2f} s")
            else:
                loads += bench.load()
                say(loads[-1]["line"])
    together = bench.load(PROCESSES)
    return {
        "pull_s": statistics.median(pulls),
        "load_s": statistics.median(load["seconds"] for load in loads),
        "ratio": statistics.median(load["seconds"] for load in loads) / statistics.median(pulls),
        "first_s": statistics.median(load["first_s"] for load in loads),
        "first_share": max(load["first_bytes"] / load["bytes"] for load in loads),
        "processes": PROCESSES,
        "processes_fetched": together[0]["fetched_share"],
        "processes_s": max(load["seconds"] for load in together),
        "stage_fetched": bench.part(),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("AGENT", "REF"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--rate", type=flags.rate, default="1gbit", help="of the node's and the origin's link"
    )
    parser.add_argument("--size", type=flags.size, default="1GiB", help="of each model")
    parser.add_argument("--turns", type=flags.count, default=3)
    parser.add_argument("--json", type=flags.out_file, metavar="FILE")
    wish = parser.parse_args()
    if wish.one:
        print(json.dumps(one_load(*wish.one)))
        return 0
    rate, size = parse_rate(wish.rate), parse_size(wish.size)
    try:
        with Arena(
            Plan(nodes=1, rate=rate, origin_rate=rate, size_bytes=size), proxy=False
        ) as arena:
            arena.start()
            figures = measure(Bench(arena, size), wish.turns)
    except FabricError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=2))
    if wish.json:
        Path(wish.json).write_text(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
