"""`python -m loadtest.edge`: one pull over a long link, from storage and from a node, beside plain TCP (root).

An S3 server, a tracker and two agents, each a round trip of `--delay` from any other. The first agent
pulls from storage, the second then from the first; before each, one plain TCP flow on the same way.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from loadtest.kit.cluster import Agent
from loadtest.kit.daemons import StartError, exit_on_signals
from loadtest.kit.flags import count, out_file, rate, size
from loadtest.kit.goodput import WARM_UP_S, goodput
from loadtest.kit.models import check_tree, total_bytes
from loadtest.kit.netns import FabricError
from loadtest.storm.arena import Arena, say
from loadtest.storm.plan import VOID_BUSY, Plan
from loadtest.storm.race import busy_share
from p2pcache.core.units import format_bytes, parse_duration, parse_rate, parse_size
from p2pcache.errors import P2PCacheError, UsageError

WARM_UP_TRIPS = 15  # round trips until slow start and its first losses are over


@dataclass(frozen=True, slots=True)
class Leg:
    """One pull."""

    source: str  # "storage" or "node"
    size_bytes: int
    seconds: float  # of the whole command, every question to the tracker included
    goodput: float  # bytes per second of the plain flow before it
    from_source: float  # share of the bytes that came from there
    cpu_busy: float

    @property
    def share(self) -> float:
        """Of what a plain flow would have carried in that time."""
        return self.size_bytes / self.seconds / self.goodput


def main(argv: list[str] | None = None) -> int:
    """Run it. Exit code 0: all bytes right; 1: not; 2: can't run here."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    legs: list[Leg] = []
    try:
        delay_s = parse_duration(options.delay)
        rate = parse_rate(options.rate)
        plan = Plan(nodes=2, rate=rate, origin_rate=rate, size_bytes=parse_size(options.size),
                    delay_s=delay_s / 2, logs=options.logs)  # fmt: skip
        for leg in legs_of(plan, options.rounds):
            legs.append(leg)
            say(_line(leg))
    except (UsageError, FabricError, StartError, RuntimeError, P2PCacheError) as error:
        print(f"edge: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"edge: {error}", file=sys.stderr)
        return 1
    for source in ("storage", "node"):
        shares = [leg.share for leg in legs if leg.source == source]
        print(f"{source:8} median share of a plain flow {statistics.median(shares):.3f} "
              f"({min(shares):.3f}-{max(shares):.3f})")  # fmt: skip
    if options.json:
        told = [asdict(leg) | {"share": leg.share} for leg in legs]
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    return 0


def legs_of(plan: Plan, rounds: int) -> Iterator[Leg]:
    """Pull a new model in each round, first from storage, then from the node that has it."""
    warm_up_s = max(WARM_UP_S, WARM_UP_TRIPS * 2 * plan.delay_s)
    with Arena(plan, proxy=False) as arena:
        arena.start()
        first, second = arena.agents
        near, far = arena.node_hosts
        for number in range(rounds):
            ref = f"edge/model:v{number}"
            source = arena.push(plan.size_bytes, ref, seed=number)
            plain = goodput(arena.origin_host, [near], warm_up_s=warm_up_s)
            yield _pull(first, ref, source, "storage", plain)
            plain = goodput(near, [far], warm_up_s=warm_up_s)
            yield _pull(second, ref, source, "node", plain)


def _pull(agent: Agent, ref: str, source: Path, kind: str, plain: float) -> Leg:
    stat = psutil.cpu_times()
    began = time.monotonic()
    done = list(agent.client.pull(ref))[-1]
    seconds = time.monotonic() - began
    busy = busy_share(stat, psutil.cpu_times())
    check_tree(agent.tree(str(done["path"])), source)
    came = int(str(done["bytes_origin" if kind == "storage" else "bytes_peers"]))
    size = total_bytes(source)
    return Leg(kind, size, seconds, plain, came / size, busy)


def _line(leg: Leg) -> str:
    void = "  VOID: the CPU was the limit" if leg.cpu_busy > VOID_BUSY else ""
    return (
        f"from {leg.source:8} {format_bytes(leg.size_bytes)} in {leg.seconds:6.2f} s: "
        f"{leg.size_bytes / leg.seconds * 8e-6:6.1f} Mbit/s, plain TCP {leg.goodput * 8e-6:6.1f}, "
        f"share {leg.share:.3f} ({leg.from_source:.0%} from there, CPU {leg.cpu_busy:.0%}){void}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.edge", description=__doc__)
    add = parser.add_argument
    add("--rate", type=rate, default="50mbit", help="each link, both directions [50mbit]")
    add("--delay", default="40ms", help="a round trip between any two hosts [40ms]")
    add("--size", type=size, default="64MiB", help="each model [64MiB: 256 chunks]")
    add("--rounds", type=count, default=3, metavar="K", help="models, each pulled twice [3]")
    add("--logs", default="", metavar="DIR", help="keep every daemon's log here")
    add("--json", type=out_file, metavar="FILE", help="write all numbers here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
