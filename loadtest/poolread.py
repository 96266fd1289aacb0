"""`python -m loadtest.poolread`: one pull from nodes that keep parts of a model, storage gone (root).

Each holder has a share of the stripes in its cache before it starts, as `p2pcache keep --copies 1` leaves it;
no node has all. Then storage ends, and a node with a wider link pulls. The bound is what single TCP flows from
all holders carried to it together on the same links just before: min(its downlink, the sum of their uplinks).

With `--repair` the holders keep two copies, by `p2pcache keep --copies 2`, and storage stays. One is killed. A node
pulls before the tracker gives it up, and once more while its copies are made again on the others.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from loadtest.kit.cluster import Agent
from loadtest.kit.daemons import StartError, exit_on_signals, wait_until
from loadtest.kit.flags import count, out_file, rate, size
from loadtest.kit.goodput import goodput
from loadtest.kit.models import check_tree
from loadtest.kit.netns import FabricError
from loadtest.storm.arena import Arena, say
from loadtest.storm.plan import VOID_BUSY, Plan
from loadtest.storm.race import busy_share
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.core.units import format_bytes, parse_rate, parse_size
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.models.store import Store

REF = "pool/model:v1"
STRIPES = 4  # of one holder, as the placement has them at least
GOAL = 0.85  # of what the links carry
GRACE_S = 25.0  # until a dead holder's copies are made again: a pull must end within it
LOSES = 0.1  # of a pull's rate while that goes on, at most
MOVED = 1.2  # bytes moved, beside those that were lost, at most
KEPT_S = 120.0


@dataclass(frozen=True, slots=True)
class Pull:
    """One pull."""

    holders: int
    size_bytes: int
    seconds: float  # of the whole command
    carried: float  # bytes per second of plain flows from all holders
    from_peers: float  # share of the bytes
    least_served: float  # of what the holder has that served least, the share that it sent
    cpu_busy: float
    report: dict[str, object]  # where the time went, as the agent says

    @property
    def share(self) -> float:
        """Of what plain flows would have carried in that time."""
        return self.size_bytes / self.seconds / self.carried


def stripes(run_count: int, holders: int, dice: random.Random) -> list[list[int]]:
    """The runs of each holder: every run is at one of them, in stripes of consecutive runs."""
    many = holders * STRIPES
    ends = [run_count * n // many for n in range(many + 1)]
    cut = [list(range(*pair)) for pair in pairwise(ends)]
    dice.shuffle(cut)
    return [[run for stripe in cut[n::holders] for run in stripe] for n in range(holders)]


class Source:
    """A model in a directory, and its tables."""

    def __init__(self, folder: Path) -> None:
        """Hash it."""
        manifest, paths = index_directory(folder)
        self.folder = folder
        self.encoded, self.layout = encode(manifest), Layout(manifest)
        self._paths = {self.layout.blob_of_file[path]: file for path, file in paths.items()}

    def fill(self, cache_dir: Path, runs: Iterable[int]) -> None:
        """Put some runs into a cache, proved and durable."""
        with contextlib.closing(Store.open(cache_dir, min_free_bytes=0)) as store:
            model = store.add_model(self.layout, self.encoded, reserve=False)
            for chunk in (chunk for run in runs for chunk in self.layout.run_chunks(run)):
                place, writer = self.layout.first_place(chunk), model.begin(chunk)
                if writer is None:
                    continue
                with self._paths[place.blob].open("rb") as file:
                    data = os.pread(file.fileno(), self.layout.lengths[chunk], place.offset)
                writer.put(0, memoryview(data))
                writer.update(memoryview(data))
                assert writer.finish(), "the model changed while it was read"
            model.flush()


def run(plan: Plan, seed: int) -> Pull:
    """Fill the holders, end storage, pull."""
    holders = plan.nodes - 1
    with Arena(plan, proxy=False) as arena:
        source = Source(arena.push(plan.size_bytes, REF, seed=seed))
        layout = source.layout
        parts = stripes(layout.run_count, holders, random.Random(seed))
        for agent, runs in zip(arena.agents, parts, strict=False):
            source.fill(agent.cache_dir, runs)
        arena.start()
        *keepers, reader = arena.agents
        reader.client.model(REF)  # the tracker has read the manifest
        arena.origin.__exit__()
        carried = goodput(arena.node_hosts[-1], arena.node_hosts[:-1])
        stat, began = psutil.cpu_times(), time.monotonic()
        done = list(reader.client.pull(f"{REF}@blake3:{layout.digest}"))[-1]
        seconds = time.monotonic() - began
        busy = busy_share(stat, psutil.cpu_times())
        check_tree(reader.tree(str(done["path"])), source.folder)
        served = [
            int(agent.client.status()["bytes"]["served"]) / sum(layout.run_bytes[run] for run in runs)
            for agent, runs in zip(keepers, parts, strict=True)
        ]  # fmt: skip
        return Pull(holders, layout.total_bytes, seconds, carried,
                    int(str(done["bytes_peers"])) / layout.total_bytes, min(served), busy,
                    dict(done["report"]))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repair:
    """Two pulls, and the repair under the second one."""

    holders: int
    size_bytes: int
    alone_s: float  # the pull before it
    beside_s: float  # the pull while copies were made
    lost_bytes: int
    moved_bytes: int  # that nodes fetched for the new copies
    meanwhile_bytes: int  # of them while the second pull ran
    origin_bytes: int  # that they read from storage
    took_s: float  # from the second pull's begin until every copy was there
    cpu_busy: float

    @property
    def loses(self) -> float:
        """The share of its rate that the pull lost."""
        return 1 - self.alone_s / self.beside_s


def run_repair(plan: Plan, seed: int) -> Repair:
    """Fill the holders with two copies, kill one, pull without and with the repair."""
    holders = plan.nodes - 1
    with Arena(plan, proxy=False) as arena:
        source = Source(arena.push(plan.size_bytes, REF, seed=seed))
        layout = source.layout
        parts = stripes(layout.run_count, holders, random.Random(seed))
        parts = [one + other for one, other in zip(parts, parts[1:] + parts[:1], strict=True)]
        for agent, runs in zip(arena.agents, parts, strict=False):
            source.fill(agent.cache_dir, runs)
        *keepers, reader = arena.agents
        reader.command += ["--role", "client"]
        arena.start()
        reader.client.keep(REF, copies=2)
        wait_until(lambda: _row(reader)["state"] == "kept", KEPT_S)
        keepers[0].kill()
        died = time.monotonic()
        alone_s = _timed_pull(reader, source)
        reader.client.remove(f"{REF}@blake3:{layout.digest}")
        time.sleep(max(0.0, died + GRACE_S - time.monotonic()))
        wait_until(lambda: _fetched(keepers[1:])[0] > 0, KEPT_S, 0.02)
        stat, began = psutil.cpu_times(), time.monotonic()
        before, _ = _fetched(keepers[1:])
        beside_s = _timed_pull(reader, source)
        after, _ = _fetched(keepers[1:])
        busy = busy_share(stat, psutil.cpu_times())
        wait_until(lambda: _row(reader)["state"] == "kept", KEPT_S)
        took_s = time.monotonic() - began
        moved, read = _fetched(keepers[1:])
        lost = sum(layout.run_bytes[run] for run in parts[0])
        return Repair(holders, layout.total_bytes, alone_s, beside_s, lost, moved + read, after - before, read,
                      took_s, busy)  # fmt: skip


def _timed_pull(reader: Agent, source: Source) -> float:
    began = time.monotonic()
    done = list(reader.client.pull(f"{REF}@blake3:{source.layout.digest}"))[-1]
    seconds = time.monotonic() - began
    check_tree(reader.tree(str(done["path"])), source.folder)
    return seconds


def _row(agent: Agent) -> dict[str, Any]:
    (row,) = agent.client.keeps()["keeps"]
    return dict(row)


def _fetched(agents: Iterable[Agent]) -> tuple[int, int]:
    """Bytes that agents got from each other, and from storage, since they started."""
    told = [agent.client.status()["bytes"] for agent in agents]
    return sum(int(one["peer"]) for one in told), sum(int(one["origin"]) for one in told)


def _report_repair(repair: Repair) -> int:
    void = repair.cpu_busy > VOID_BUSY
    say(f"{format_bytes(repair.size_bytes)} from {repair.holders - 1} holders in {repair.alone_s:.2f} s, beside the "
        f"repair in {repair.beside_s:.2f} s: it loses {repair.loses:.1%} (goal {LOSES:.0%}); lost "
        f"{format_bytes(repair.lost_bytes)}, moved {repair.moved_bytes / repair.lost_bytes:.2f}x that (goal {MOVED}x), "
        f"{repair.meanwhile_bytes / repair.lost_bytes:.0%} of it during the pull, {format_bytes(repair.origin_bytes)} "
        f"from storage, all there after {repair.took_s:.1f} s; CPU {repair.cpu_busy:.0%}"
        f"{' VOID: the CPU was the limit' if void else ''}")  # fmt: skip
    good = repair.loses < LOSES and repair.moved_bytes <= MOVED * repair.lost_bytes
    return 0 if void or good else 1


def main(argv: list[str] | None = None) -> int:
    """Run it. Exit code 0: as it must be; 1: wrong bytes, or too slow; 2: can't run here."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    try:
        uplink = parse_rate(options.rate)
        rates = (*[uplink] * options.holders, options.times * uplink)
        plan = Plan(nodes=options.holders + 1, rate=uplink, origin_rate=0, rates=rates,
                    size_bytes=parse_size(options.size), logs=options.logs,
                    tracker_flags=("--keep-grace-s", str(GRACE_S)))  # fmt: skip
        if options.repair:
            repair = run_repair(plan, options.seed)
            if options.json:
                Path(options.json).write_text(json.dumps(asdict(repair), indent=1) + "\n")
            return _report_repair(repair)
        pull = run(plan, options.seed)
    except (UsageError, FabricError, StartError, RuntimeError, P2PCacheError) as error:
        print(f"poolread: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"poolread: {error}", file=sys.stderr)
        return 1
    void = pull.cpu_busy > VOID_BUSY
    say(f"{format_bytes(pull.size_bytes)} from {pull.holders} holders in {pull.seconds:.2f} s: "
        f"{pull.size_bytes / pull.seconds * 8e-6:.1f} Mbit/s, plain flows {pull.carried * 8e-6:.1f}, share "
        f"{pull.share:.3f} (goal {GOAL}); {pull.from_peers:.0%} from nodes, each sent {pull.least_served:.0%} of its "
        f"part or more; CPU {pull.cpu_busy:.0%}{' VOID: the CPU was the limit' if void else ''}")  # fmt: skip
    if options.json:
        told = asdict(pull) | {"share": pull.share, "void": void}
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    return 0 if void or pull.share >= GOAL else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.poolread", description=__doc__)
    add = parser.add_argument
    add("--holders", type=count, default=8, metavar="N", help="nodes that keep a part [8]")
    add("--rate", type=rate, default="25mbit", help="each holder's link, both directions [25mbit]")
    add("--times", type=count, default=4, metavar="K", help="the reader's link is K times that [4]")
    add("--size", type=size, default="256MiB", help="the model [256MiB: 256 runs]")
    add(
        "--repair",
        action="store_true",
        help="two copies, one holder dies: a pull beside the repair",
    )
    add("--seed", type=int, default=1, help="of model and placement [1]")
    add("--logs", default="", metavar="DIR", help="keep every daemon's log here")
    add("--json", type=out_file, metavar="FILE", help="write all numbers here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
