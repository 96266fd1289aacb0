"""`python -m loadtest.edge`: one pull over a long link, from storage and from a node, beside plain TCP (root).

An S3 server, a tracker and two agents, each a round trip of `--delay` from any other. The first agent
pulls from storage, the second then from the first; before each, one plain TCP flow on the same way. With
`--rivals` then eight such flows, and the model as a torrent over uTP; then ours and uTP once more, each beside one
plain flow: what it takes, and what the flow keeps.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from loadtest.kit.cluster import Agent
from loadtest.kit.daemons import StartError, exit_on_signals
from loadtest.kit.flags import count, out_file, rate, share, size
from loadtest.kit.goodput import WARM_UP_S, goodput
from loadtest.kit.models import check_tree, total_bytes
from loadtest.kit.netns import FabricError, Host
from loadtest.storm.arena import Arena, say
from loadtest.storm.plan import VOID_BUSY, Plan
from loadtest.storm.race import busy_share
from loadtest.storm.rivals import make_torrent
from p2pcache.core.units import format_bytes, parse_duration, parse_rate, parse_size
from p2pcache.errors import P2PCacheError, UsageError

FLOWS = 8  # what somebody in a hurry opens side by side
UTP_S = 120.0  # for one torrent
WARM_UP_TRIPS = 15  # round trips until slow start and its first losses are over


@dataclass(frozen=True, slots=True)
class Leg:
    """One pull."""

    source: str  # "storage", "node", or a rival's name
    size_bytes: int
    seconds: float  # of the whole command, every question to the tracker included
    goodput: float  # bytes per second of the plain flow before it
    from_source: float  # share of the bytes that came from there
    cpu_busy: float
    kept: float = 0.0  # bytes per second of a plain flow beside it; 0: there was none

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
        own = ("--congestion-control", options.congestion) if options.congestion else ()
        plan = Plan(nodes=2, rate=rate, origin_rate=rate, size_bytes=parse_size(options.size),
                    delay_s=delay_s / 2, loss=options.loss, agent_flags=own,
                    logs=options.logs)  # fmt: skip
        for leg in legs_of(plan, options.rounds, rivals=options.rivals):
            legs.append(leg)
            say(_line(leg))
    except (UsageError, FabricError, StartError, RuntimeError, P2PCacheError) as error:
        print(f"edge: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"edge: {error}", file=sys.stderr)
        return 1
    for source in dict.fromkeys(leg.source for leg in legs):
        shares = [leg.share for leg in legs if leg.source == source]
        print(f"{source:17} median share of a plain flow {statistics.median(shares):.3f} "
              f"({min(shares):.3f}-{max(shares):.3f})")  # fmt: skip
    if options.json:
        told = [asdict(leg) | {"share": leg.share} for leg in legs]
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    return 0


def legs_of(plan: Plan, rounds: int, *, rivals: bool) -> Iterator[Leg]:
    """Pull a new model in each round, first from storage, then from the node that has it; then the rivals."""
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
            if rivals:
                yield _many(near, far, plain, warm_up_s)
                yield _utp(arena, source, plain, beside=False)
                ref = f"edge/model:v{number}b"
                again = arena.push(plan.size_bytes, ref, seed=1000 + number)
                _pull(first, ref, again, "storage", plain)
                with Beside(near, far) as flow:
                    leg = _pull(second, ref, again, "node", plain)
                yield replace(leg, source="node beside a flow", kept=flow.rate)
                yield _utp(arena, source, plain, beside=True)


class Beside:
    """A plain TCP flow for the length of the block; then its bytes per second."""

    def __init__(self, sender: Host, receiver: Host) -> None:
        self.rate = 0.0
        self._ways = sender, receiver
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._flow)
        self._thread.start()
        return self

    def _flow(self) -> None:
        sender, receiver = self._ways
        self.rate = goodput(sender, [receiver], ended=self._ended)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _many(near: Host, far: Host, plain: float, warm_up_s: float) -> Leg:
    together = goodput(near, [far], warm_up_s=warm_up_s, flows_each=FLOWS)
    return Leg(f"{FLOWS} flows", int(together), 1.0, plain, 1.0, 0.0)


def _utp(arena: Arena, source: Path, plain: float, *, beside: bool) -> Leg:
    """The model as a torrent over uTP, from the first node's host to the second's."""
    near, far = arena.node_hosts
    torrent = arena.work / "utp.torrent"
    make_torrent(source, torrent)
    program = [sys.executable, "-m", "loadtest.kit.utp"]
    stat = psutil.cpu_times()
    with (
        tempfile.TemporaryDirectory(dir=arena.work) as folder,
        subprocess.Popen(
            [*near.prefix, *program, near.address, str(torrent), str(source.parent)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as seed,
    ):  # fmt: skip
        assert seed.stdin is not None
        assert seed.stdout is not None
        seed.stdout.readline()
        with Beside(near, far) if beside else contextlib.nullcontext(None) as flow:
            done = subprocess.run(
                [*far.prefix, *program, far.address, str(torrent), folder, near.address],
                capture_output=True, text=True, check=True, timeout=UTP_S,
            )  # fmt: skip
        seed.stdin.close()
        check_tree(Path(folder) / source.name, source)
    busy = busy_share(stat, psutil.cpu_times())
    name, kept = ("uTP beside a flow", flow.rate) if flow else ("uTP", 0.0)
    return Leg(name, total_bytes(source), float(done.stdout), plain, 1.0, busy, kept)


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
        f"from {leg.source:17} {format_bytes(leg.size_bytes)} in {leg.seconds:6.2f} s: "
        f"{leg.size_bytes / leg.seconds * 8e-6:6.1f} Mbit/s, plain TCP {leg.goodput * 8e-6:6.1f}, "
        f"share {leg.share:.3f} ({leg.from_source:.0%} from there, CPU {leg.cpu_busy:.0%})"
        f"{f', a flow beside it kept {leg.kept * 8e-6:.1f}' if leg.kept else ''}{void}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.edge", description=__doc__)
    add = parser.add_argument
    add("--rate", type=rate, default="50mbit", help="each link, both directions [50mbit]")
    add("--delay", default="40ms", help="a round trip between any two hosts [40ms]")
    add("--loss", type=share, default=0.0, help="share of packets that never arrive [0]")
    add(
        "--congestion",
        default="",
        help="TCP's congestion control between the agents [cubic, bbr on losses]",
    )
    add("--rivals", action="store_true", help="also eight flows, and a torrent over uTP")
    add("--size", type=size, default="64MiB", help="each model [64MiB: 256 chunks]")
    add("--rounds", type=count, default=3, metavar="K", help="models, each pulled twice [3]")
    add("--logs", default="", metavar="DIR", help="keep every daemon's log here")
    add("--json", type=out_file, metavar="FILE", help="write all numbers here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
