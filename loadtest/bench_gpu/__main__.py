"""Weights to a GPU: from page cache, from a cold disk, from a swarm on loopback, beside other loaders.

Every measurement has a process of its own (`bench_gpu_ends`); all take turns, and ratios are taken
within a turn. The ceiling is the better of one and two streams that copy from pinned memory which is
filled already. Needs torch with CUDA; rivals that aren't installed are left out.

    python -m loadtest.bench_gpu --layers 66 --turns 3 --json FILE
    python -m loadtest.bench_gpu --only page-cache swarm    # some of the sections
    python -m loadtest.bench_gpu --short --json FILE        # an answer in ten minutes

Exit code: 0 done, 1 wrong bytes, 2 no GPU here.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from loadtest.bench_gpu import short
from loadtest.bench_gpu.ends import digest, shards
from loadtest.bench_loader.__main__ import GB, LAYERS, NEEDS, make_llama
from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import wait_until

MiB = 1 << 20
ENDS = [sys.executable, "-m", "loadtest.bench_gpu.ends"]
LIMIT_S = 300.0  # of one measurement
FORGET_S = 30.0
REF = "bench/llama:v1"
SLOT_BYTES = 8 * MiB
CEILINGS = ("ceiling, 1 stream", "ceiling, 2 streams")
SLOTS, SIZES_MIB, STREAMS, READERS = (2, 4, 12), (2, 8, 16), (1, 2), (2, 4, 8, 12)
LOADERS = ("p2pcache", "p2pcache-into", "safetensors", "runai", "fastsafetensors", "instanttensor")
SECTIONS = ("page-cache", "cold-disk", "swarm", "rings", "arena")

Json = dict[str, Any]
Run = Callable[[Json], Json]


def spawn(job: Json) -> Json:
    """One measurement.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    done = subprocess.run(
        [*ENDS, json.dumps(job)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr[-2000:]}")
    found: Json = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Bench:
    """All measurements of one model on one device."""

    def __init__(self, folder: Path, device: str, turns: int, run: Run = spawn) -> None:
        """`run`: how a measurement is made; the tests make it in their own process."""
        self.folder = folder
        self.size = sum(path.stat().st_size for path in shards(folder))
        self.wrong: list[str] = []
        self._device = device
        self._turns = turns
        self._run = run
        self._digest = digest(
            {k: t for path in shards(folder) for k, t in safetensors.torch.load_file(path).items()}
        )

    def page_cache(self, loaders: Sequence[str]) -> list[Json]:
        """Warm, beside the ceiling and beside copies from memory that isn't pinned."""
        jobs = self._ceilings() | {"copy, not pinned": self._copy(1, pinned=False)}
        return self._table("page cache", jobs | self._loads(loaders))

    def cold_disk(self, loaders: Sequence[str]) -> list[Json]:
        """The files out of the page cache before each load, beside four threads that only read."""
        floor = {"read only": {"what": "read", "folder": str(self.folder)}}
        return self._table("cold disk", floor | self._loads(loaders, cold=True))

    def rings(self) -> list[Json]:
        """Our loader with other readers, rings and streams."""
        jobs = self._ceilings()
        for readers in READERS:
            jobs[f"{readers} readers"] = self._load("p2pcache", tuning={"threads": readers})
        for streams in STREAMS:
            for slots in SLOTS:
                for mib in SIZES_MIB:
                    tuning = {
                        "ring_slots": slots, "read_bytes": mib * MiB, "copy_streams": streams
                    }  # fmt: skip
                    name = f"{slots} slots of {mib} MiB, {streams} stream{'s'[: streams - 1]}"
                    jobs[name] = self._load("p2pcache", tuning=tuning)
        return self._table("ring", jobs)

    def arena(self, nbytes: int) -> list[Json]:
        """A shared arena: seconds per GB to touch, pin, copy and unpin it."""
        found = self._run(self._job("arena", bytes=nbytes))
        return [
            {"section": "arena", "name": f"{name.removesuffix('_s')}, {nbytes // MiB} MiB",
             "gb_per_s": round(nbytes / GB / seconds, 4)}
            for name, seconds in found.items()
        ]  # fmt: skip

    def swarm(self) -> list[Json]:
        """Agents on loopback: a pull alone, a load alone, and a load while the model arrives."""
        pulls, loads, copies = [], [], []
        with tempfile.TemporaryDirectory(prefix="p2pg-") as origin:
            url = Path(origin).as_uri()
            with Cluster(url, agents=2) as cluster:
                cluster.run("push", str(self.folder), REF, "--origin", url, "--quiet", agent=None,
                            limit_s=LIMIT_S)  # fmt: skip
                seed, node = cluster.agents
                _pull(seed)
                for turn in range(self._turns):
                    pulls.append(_pull(node))
                    _forget(node)
                    job = self._load("p2pcache", check=turn == 0)
                    there = self._run(job | {"folder": REF, "agent": node.url})
                    self._check("swarm", there)
                    loads.append(there["seconds"])
                    _forget(node)
                    copies.append(self._run(self._load("p2pcache"))["seconds"])
        ratios = [
            one / max(pull, copy) for one, pull, copy in zip(loads, pulls, copies, strict=True)
        ]
        return [
            self._row("swarm", "pull alone", pulls),
            self._row("swarm", "page cache to GPU alone", copies),
            self._row("swarm", "swarm to GPU", loads)
            | {"times_larger_alone": round(statistics.median(ratios), 3)},
        ]

    def _job(self, what: str, **more: Any) -> Json:
        return {"what": what, "device": self._device, **more}

    def _copy(self, streams: int, *, pinned: bool) -> Json:
        return self._job("copy", bytes=self.size, slot_bytes=SLOT_BYTES, slots=4, streams=streams,
                         pinned=pinned)  # fmt: skip

    def _ceilings(self) -> dict[str, Json]:
        return {name: self._copy(n, pinned=True) for n, name in enumerate(CEILINGS, 1)}

    def _load(self, loader: str, **more: Any) -> Json:
        return self._job("load", loader=loader, folder=str(self.folder), **more)

    def _loads(self, loaders: Sequence[str], **more: Any) -> dict[str, Json]:
        return {loader: self._load(loader, **more) for loader in loaders}

    def _table(self, section: str, jobs: dict[str, Json]) -> list[Json]:
        """Everything in turns. Warm sections touch the files first."""
        for path in shards(self.folder):
            path.read_bytes()
        found: dict[str, list[Json]] = {name: [] for name in jobs}
        names = list(jobs)
        for turn in range(self._turns):
            first = turn % len(names)
            for name in [*names[first:], *names[:first]]:
                job = jobs[name] | {"device": self._device, "check": turn == 0}
                try:
                    told = self._run(job)
                except (
                    RuntimeError
                ) as error:  # a rival that doesn't run here costs its own row only
                    if name.startswith("p2pcache") or job["what"] != "load":
                        raise
                    print(f"{name} failed: {error}", file=sys.stderr)
                    found.pop(name, None)
                    names.remove(name)
                    continue
                self._check(f"{section}, {name}", told)
                found[name].append(told)
                print(f"  {section}, turn {turn + 1}, {name}: {told['seconds']:.3f} s",
                      file=sys.stderr)  # fmt: skip
        ceilings = _best([[r["seconds"] for r in found[c]] for c in CEILINGS if c in found])
        return [
            self._row(section, name, [r["seconds"] for r in runs], ceilings)
            | ({"cpu_s_per_gb": round(statistics.median(r["cpu_s"] for r in runs) / (self.size / GB), 3)}
               if "cpu_s" in runs[0] else {})
            for name, runs in found.items()
        ]  # fmt: skip

    def _check(self, name: str, told: Json) -> None:
        if told.get("digest", self._digest) != self._digest:
            self.wrong.append(name)

    def _row(
        self, section: str, name: str, seconds: list[float], ceilings: Sequence[float] = ()
    ) -> Json:
        row = {
            "section": section, "name": name, "seconds": [round(s, 3) for s in seconds],
            "gb_per_s": float(f"{self.size / GB / statistics.median(seconds):.3g}"),
        }  # fmt: skip
        if ceilings:
            ratios = [c / s for c, s in zip(ceilings, seconds, strict=True)]
            row["of_ceiling"] = round(statistics.median(ratios), 3)
        return row


def _best(runs: list[list[float]]) -> list[float]:
    """Of each turn the shortest."""
    return [min(turn) for turn in zip(*runs, strict=True)]


def _pull(agent: Agent) -> float:
    began = time.perf_counter()
    list(agent.client.pull(REF))
    return time.perf_counter() - began


def _forget(agent: Agent) -> None:
    def forgotten() -> bool:
        agent.client.prune(dry_run=False, everything=True)
        return not agent.client.models()

    wait_until(forgotten, FORGET_S)


def show(rows: list[Json], head: str) -> None:
    """The table."""
    print(head)
    print(f"{'from':11} {'what':30} {'GB/s':>7} {'of ceiling':>11} {'CPU-s/GB':>9}  seconds")
    for row in rows:
        ceiling, cpu = row.get("of_ceiling", ""), row.get("cpu_s_per_gb", "")
        print(f"{row['section']:11} {row['name']:30} {row['gb_per_s']:7.2f} {ceiling!s:>11} {cpu!s:>9}  "
              f"{', '.join(map(str, row.get('seconds', [])))}")  # fmt: skip
        if "times_larger_alone" in row:
            print(f"{'':11} {row['times_larger_alone']} times the larger of the two alone")


def at_hand(names: Sequence[str]) -> list[str]:
    """Those whose package is installed."""
    found = []
    for name in names:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{name} is not installed; pip install '.[loader-rivals]'", file=sys.stderr)
        else:
            found.append(name)
    return found


def measure(bench: Bench, args: argparse.Namespace, head: str) -> list[Json]:
    """The sections that were asked for; what is known is in the file after each, should the next be cut short."""
    loaders = at_hand(LOADERS)
    parts: dict[str, Callable[[], list[Json]]] = {
        "page-cache": lambda: bench.page_cache(loaders),
        "cold-disk": lambda: bench.cold_disk(loaders),
        "swarm": bench.swarm,
        "rings": bench.rings,
        "arena": lambda: bench.arena(args.arena_mib * MiB),
    }
    rows: list[Json] = []
    for name in args.only:
        rows += parts[name]()
        if args.json:
            args.json.write_text(json.dumps({"head": head, "rows": rows}, indent=1))
    return rows


def answer(args: argparse.Namespace) -> int:
    """The short form."""
    with tempfile.TemporaryDirectory(prefix="p2pcache-bench-") as temporary:
        folder = args.dir or Path(temporary)
        llama, moe = folder / "llama", folder / "moe"
        if not llama.exists():
            llama.mkdir(parents=True)
            moe.mkdir(parents=True)
            make_llama(llama, args.shards, args.layers)
            short.make_moe(moe, args.moe_pairs)
        sizes = [sum(path.stat().st_size for path in shards(each)) / GB for each in (llama, moe)]
        head = (f"{short.device_name(args.device)}, torch {torch.__version__}, {os.cpu_count()} cores, "
                f"{sizes[0]:.2f} GB and {sizes[1]:.2f} GB, {time.strftime('%Y-%m-%d')}")  # fmt: skip
        form = short.Short(llama, moe, args.device, args.turns, at_hand(LOADERS))
        records = short.run(form, args.minutes, head, args.json, args.sections)
    short.show(short.rows(records), head)
    return 1 if any(record.get("wrong") for record in records) else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3 * LAYERS, help="66 make 6 GB")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--arena-mib", type=int, default=1024)
    parser.add_argument("--dir", type=Path, help="a model made here before is used again")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--short", action="store_true", help="the short form; --device cpu tries it"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="of the short form")
    parser.add_argument("--sections", nargs="+", default=(), help="of the short form")
    parser.add_argument("--moe-pairs", type=int, default=240, help="240 make 3.5 GB")
    args = parser.parse_args()
    if not torch.cuda.is_available() and not (args.short and args.device == "cpu"):
        print(f"no GPU here that torch {torch.__version__} can use: nothing was measured")
        return 2
    if args.short:
        return answer(args)
    with tempfile.TemporaryDirectory(prefix="p2pcache-bench-") as temporary:
        folder = args.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not shards(folder):
            make_llama(folder, args.shards, args.layers)
        bench = Bench(folder, args.device, args.turns)
        device = torch.cuda.get_device_name(args.device)
        head = (f"{device}, torch {torch.__version__}, {bench.size / GB:.2f} GB, {args.turns} turns, "
                f"{time.strftime('%Y-%m-%d')}")  # fmt: skip
        rows = measure(bench, args, head)
    show(rows, head)
    for name in bench.wrong:
        print(f"WRONG: {name} brought other bytes than the files hold")
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
