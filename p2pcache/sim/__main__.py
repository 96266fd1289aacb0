"""`python -m p2pcache.sim`: storms in virtual time.

`storm` runs one and prints its figures, `table` a row of them side by side, `calibrate` puts measured
ones beside their predictions, `properties` runs many small random ones that must keep the laws.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from p2pcache.sim import calibrate, properties, table
from p2pcache.sim.scenarios import Run, Storm


def _sides(text: str) -> tuple[int, int]:
    first, _, second = text.partition(":")
    return int(first), int(second)


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def _share(text: str) -> float:
    if not 0 <= (share := float(text)) <= 1:
        raise argparse.ArgumentTypeError("a share is between 0 and 1")
    return share


def _rate(text: str) -> float:
    if not 0 < (rate := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("more than 0")
    return rate


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m p2pcache.sim", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    _storm_flags(commands.add_parser("storm", help="one storm"))
    table = commands.add_parser("table", help="each kind of fault beside a calm storm")
    table.add_argument("--nodes", type=_count, default=100)
    table.add_argument("--chunks", type=_count, default=256, help="runs of the model")
    table.add_argument("--seed", type=int, default=1)
    calibration = commands.add_parser("calibrate", help="recorded storms beside their predictions")
    calibration.add_argument("files", nargs="+", type=Path, help="of loadtest.storm --json")
    laws = commands.add_parser("properties", help="random small storms with faults")
    laws.add_argument("--count", type=_count, default=2000)
    laws.add_argument("--seed", type=int, default=0, help="of the first one")
    laws.add_argument("--keep", type=Path, metavar="FILE", help="append storms that fail")
    return parser.parse_args(argv)


def _storm_flags(storm: argparse.ArgumentParser) -> None:
    storm.add_argument("--nodes", type=_count, default=50)
    storm.add_argument("--chunks", type=_count, default=512, help="runs of the model")
    storm.add_argument("--chunk-bytes", type=_count, default=Storm().run_bytes)
    storm.add_argument("--rate", type=_rate, default=Storm().rate, help="bytes/s, each way")
    storm.add_argument("--origin-rate", type=_rate, default=Storm().origin_rate, help="bytes/s")
    storm.add_argument("--latency", type=float, default=Storm().latency_s, help="s, one way")
    storm.add_argument(
        "--origin-latency", type=float, default=Storm().origin_latency_s, help="s, one way"
    )
    storm.add_argument(
        "--queue", type=float, default=0.0, help="s that a full link adds to a message (emulated links: 0.1)"
    )  # fmt: skip
    storm.add_argument("--seed", type=int, default=1)
    storm.add_argument("--slow", type=_share, default=0.0, help="share of nodes at a tenth of it")
    storm.add_argument("--slow-disk", type=_share, default=0.0, help="share with a slow disk")
    storm.add_argument("--crash", type=_share, default=0.0, help="share of nodes killed")
    storm.add_argument(
        "--restart", nargs="?", const="kept", choices=("kept", "lost"),
        help="who crashed comes back, with its bytes (kept, the default) or without (lost)",
    )  # fmt: skip
    storm.add_argument("--late", type=_share, default=0.0, help="share of nodes that join at 50 %%")
    storm.add_argument("--liars", type=int, default=0, help="nodes that serve garbage")
    storm.add_argument("--hidden", type=int, default=0, help="nodes that nobody can dial")
    storm.add_argument("--racks", type=int, default=0)
    storm.add_argument("--oversubscribed", type=float, default=Storm().oversubscribed)
    storm.add_argument("--no-tracker", action="store_true", help="none is configured")
    storm.add_argument("--no-tracker-after", type=float, help="point at which it dies for good")
    storm.add_argument("--tracker-restart", type=float, help="point at which it restarts")
    storm.add_argument("--partition", type=_sides, metavar="A:B", help="sizes of two sides")
    storm.add_argument("--partition-s", type=float, default=10.0)
    storm.add_argument("--partition-tracker", choices=("first", "both"), default="first")
    storm.add_argument("--check-every", type=int, default=0, help="check invariants so often")
    storm.add_argument("--json", type=argparse.FileType("w"), metavar="FILE")


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code (1: a node that lives isn't complete, a law is broken)."""
    args = _parse(argv)
    if args.what == "storm":
        return _storm(args)
    if args.what == "table":
        return _say(table.lines(Storm(nodes=args.nodes, runs=args.chunks, seed=args.seed)))
    if args.what == "calibrate":
        return _say(calibrate.lines(json.loads(file.read_text()) for file in args.files))
    return _properties(args)


def _say(lines: Iterable[str]) -> int:
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()  # the next one may take minutes
    return 0


def _storm(args: argparse.Namespace) -> int:
    gc.disable()  # a fifth of the time of 600 nodes, for 10 MB of cycles
    storm = Storm(
        nodes=args.nodes, runs=args.chunks, run_bytes=args.chunk_bytes, rate=args.rate,
        origin_rate=args.origin_rate, latency_s=args.latency,
        origin_latency_s=args.origin_latency, queue_s=args.queue, seed=args.seed, slow=args.slow,
        slow_disk=args.slow_disk,
        crash=args.crash, restart=args.restart, late=args.late, liars=args.liars,
        hidden=args.hidden, racks=args.racks, oversubscribed=args.oversubscribed,
        tracker=not args.no_tracker, no_tracker_after=args.no_tracker_after,
        tracker_restart=args.tracker_restart, partition=args.partition,
        partition_s=args.partition_s, partition_tracker=args.partition_tracker,
        check_every=args.check_every,
    )  # fmt: skip
    began = time.monotonic()
    result = Run(storm).go()
    figures = {**result.as_dict(), "seed": args.seed, "wall_s": time.monotonic() - began}
    for key, value in figures.items():
        text = f"{value:.4f}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{key:12} {text}\n")
    if args.json is not None:
        with args.json as file:
            file.write(json.dumps(figures, indent=2) + "\n")
    return 0 if result.complete == result.alive else 1


def _properties(args: argparse.Namespace) -> int:
    failed = 0
    for storm, law in properties.failures(range(args.seed, args.seed + args.count)):
        failed += 1
        line = properties.kept(storm)
        sys.stdout.write(f"{law.splitlines()[0]}\n  {line}\n")
        sys.stdout.flush()
        if args.keep is not None:
            with args.keep.open("a") as file:
                file.write(line + "\n")
    sys.stdout.write(f"{args.count} storms, {failed} failures\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
