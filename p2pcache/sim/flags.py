"""The command line of `python -m p2pcache.sim`, and the combinations that make no storm."""

import argparse
import math
from pathlib import Path

from p2pcache.core.units import parse_rate
from p2pcache.errors import UsageError
from p2pcache.sim import ablation
from p2pcache.sim.scenarios import Storm

_PLAIN = Storm()
# Solutions of the network while a link carries one run, for one storm: more than in tests. The rate of an ended flow is
# lost until the next solution, which costs large storms some eta.
_RESOLUTION = 16


def parse(argv: list[str], about: str) -> tuple[argparse.Namespace, Storm | None]:
    """The arguments, and for `storm` the storm that they describe; ends the process with 2 if they are wrong.

    Args:
        argv: without the program's name.
        about: description of the program.
    """
    parser = argparse.ArgumentParser(prog="python -m p2pcache.sim", description=about)
    commands = parser.add_subparsers(dest="what", required=True)
    storm = commands.add_parser("storm", help="one storm")
    _storm_flags(storm)
    table = commands.add_parser("table", help="each kind of fault beside a calm storm")
    table.add_argument("--nodes", type=_count, default=100)
    table.add_argument("--chunks", type=_count, default=256, help="runs of the model")
    table.add_argument("--seed", type=int, default=1)
    _ablation_flags(commands.add_parser("ablate", help="storms without some rules"))
    calibration = commands.add_parser("calibrate", help="recorded storms beside their predictions")
    calibration.add_argument("files", nargs="+", type=Path, help="of loadtest.storm --json")
    laws = commands.add_parser("properties", help="random small storms with faults")
    laws.add_argument("--count", type=_count, default=2000)
    laws.add_argument("--seed", type=int, default=0, help="of the first one")
    laws.add_argument("--keep", type=_file, metavar="FILE", help="append storms that fail")
    month = commands.add_parser(
        "month", help="one node's cache over a month, by what decides what goes"
    )
    month.add_argument("--models", type=_count, default=200)
    month.add_argument("--requests", type=_count, default=6000)
    month.add_argument(
        "--share", type=float, default=0.2, help="of all models that fits into the cache"
    )
    month.add_argument("--nodes", type=_count, default=8, help="of the pool that shares it")
    month.add_argument("--zipf", type=float, default=0.9, help="exponent of the popularity")
    month.add_argument("--seed", type=int, default=1)
    pool = commands.add_parser("pool", help="models that are kept while nodes are lost and come")
    pool.add_argument("--nodes", type=_count, default=1000)
    pool.add_argument("--models", type=_count, default=200)
    pool.add_argument("--copies", type=_count, default=2)
    pool.add_argument("--racks", type=_count, default=40)
    pool.add_argument("--lost", type=float, default=0.05, help="share of the nodes, all at once")
    pool.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.what != "storm":
        return args, None
    if says := _contradiction(args):
        storm.error(says)
    return args, _storm(args)


def _ablation_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--off", type=_rules, nargs="+", metavar="RULE[+RULE...]",
        default=[(name,) for name in ablation.NAMES],
        help=f"rules that are off together [each one alone]: {', '.join(ablation.NAMES)}",
    )  # fmt: skip
    add(
        "--in", dest="scenarios", nargs="+", choices=ablation.SCENARIOS, metavar="SCENARIO",
        default=list(ablation.SCENARIOS), help=f"[all] {', '.join(ablation.SCENARIOS)}",
    )  # fmt: skip
    add("--chunks", type=_count, default=1024, help="runs of the model [%(default)s]")
    add("--seeds", type=_count, default=2, help="storms of each kind [%(default)s]")
    add(
        "--file",
        type=_file,
        metavar="FILE",
        help="keep results there, and use those that are there",
    )


def _rules(text: str) -> tuple[str, ...]:
    names = tuple(text.split("+"))
    if unknown := set(names) - set(ablation.NAMES):
        raise argparse.ArgumentTypeError(f"no such rule: {', '.join(sorted(unknown))}")
    return names


def _storm(args: argparse.Namespace) -> Storm:
    return Storm(
        nodes=args.nodes, runs=args.chunks, run_bytes=args.chunk_bytes, rate=args.rate,
        origin_rate=args.origin_rate, latency_s=args.latency,
        origin_latency_s=args.origin_latency, origin_jitter=args.origin_jitter,
        origin_stream=args.origin_stream, further_share=args.further_share,
        queue_s=args.queue, resolution=args.resolution,
        seed=args.seed, slow=args.slow, slow_disk=args.slow_disk,
        crash=args.crash, restart=args.restart, late=args.late, liars=args.liars,
        hidden=args.hidden, odd=args.odd, hung=args.hung, dripping=args.dripping, busy=args.busy, reading=args.reading,
        racks=args.racks, oversubscribed=args.oversubscribed,
        tracker=not args.no_tracker, no_tracker_after=args.no_tracker_after,
        tracker_restart=args.tracker_restart, notes=args.notes,
        parts=args.parts, outage=args.outage, outage_s=args.outage_s, frozen=args.frozen, frozen_s=args.frozen_s,
        partition=args.partition,
        partition_s=args.partition_s, partition_tracker=args.partition_tracker,
        check_every=args.check_every,
    )  # fmt: skip


def _contradiction(args: argparse.Namespace) -> str:
    """Arguments that contradict each other, in words; "": none."""
    apart, dies = sum(args.partition or ()), args.no_tracker_after is not None
    returns = args.tracker_restart is not None
    wrong = {
        f"{args.racks} racks for {args.nodes} nodes": args.racks > args.nodes,
        f"{args.hidden} hidden ones of {args.nodes} nodes": args.hidden > args.nodes,
        f"a partition of {apart} of {args.nodes} nodes": apart > args.nodes,
        "--slow and --slow-disk are more than all nodes": args.slow + args.slow_disk > 1,
        "--restart needs --crash: who is to come back": bool(args.restart) and not args.crash,
        "--no-tracker leaves none that could die": args.no_tracker and (dies or returns),
        "--notes needs --tracker-restart: who is to read them": args.notes and not returns,
        "a tracker dies for good or comes back, not both": dies and returns,
    }
    return next((says for says, true in wrong.items() if true), "")


def _storm_flags(storm: argparse.ArgumentParser) -> None:
    add = storm.add_argument
    add("--nodes", type=_count, default=50)
    add("--chunks", type=_count, default=512, help="runs of the model")
    add("--chunk-bytes", type=_count, default=_PLAIN.run_bytes)
    add("--rate", type=_rate, default=_PLAIN.rate, help="each way, bytes/s or as 50mbit")
    add("--origin-rate", type=_rate, default=_PLAIN.origin_rate, help="the same")
    add("--latency", type=_seconds, default=_PLAIN.latency_s, help="s, one way")
    add("--origin-latency", type=_seconds, default=_PLAIN.origin_latency_s, help="s, one way")
    add(
        "--origin-jitter", type=_share, default=0.0, help="how its first byte varies: sigma of a log-normal (S3: 0.6)"
    )  # fmt: skip
    add(
        "--origin-stream",
        type=_rate,
        default=0.0,
        help="of one connection to it at most (S3: 90MB/s)",
    )
    add("--further-share", type=_share, default=1.0, help="of a full link for a node's further reads at once, beside "
        "1 of the first (emulated links: down to 0.15)")  # fmt: skip
    add(
        "--queue", type=_seconds, default=0.0, help="s that a full link adds to a message (emulated links: 0.1)"
    )  # fmt: skip
    add("--resolution", type=_count, default=_RESOLUTION,
        help="solutions of the network while a link carries one run [%(default)s]")  # fmt: skip
    add("--seed", type=int, default=1)
    add("--json", type=_file, metavar="FILE", help="write the figures there at the end")
    add("--check-every", type=_natural, default=0, help="check invariants after this many events")
    _fault_flags(storm)


def _fault_flags(storm: argparse.ArgumentParser) -> None:
    add = storm.add_argument
    add("--slow", type=_share, default=0.0, help="share of nodes at a tenth of the rate")
    add("--slow-disk", type=_share, default=0.0, help="share with a slow disk")
    add("--crash", type=_share, default=0.0, help="share of nodes killed")
    add(
        "--restart", nargs="?", const="kept", choices=("kept", "lost"),
        help="killed nodes come back, with their bytes (kept, the default) or without (lost)",
    )  # fmt: skip
    add("--late", type=_share, default=0.0, help="share of nodes that join at 50 %%")
    add("--liars", type=_natural, default=0, help="nodes that serve garbage")
    add("--odd", type=_natural, default=0, help="nodes that read other, empty storage")
    add("--hidden", type=_natural, default=0, help="nodes that nobody can dial")
    add("--hung", type=_natural, default=0, help="nodes that have the model and send nothing")
    add(
        "--dripping",
        type=_natural,
        default=0,
        help="nodes that have the model and send next to nothing",
    )
    add("--busy", type=_natural, default=0, help="nodes that have the model and always answer BUSY")
    add(
        "--reading",
        action="store_true",
        help="these three kinds begin with nothing, and read storage too",
    )
    add("--racks", type=_natural, default=0, help="racks to which nodes are dealt [none]")
    add("--oversubscribed", type=_rate, default=_PLAIN.oversubscribed,
        help="a rack's uplink carries its nodes' rates over this [%(default)g]")  # fmt: skip
    add("--no-tracker", action="store_true", help="none is configured")
    add("--no-tracker-after", type=_seconds, metavar="POINT",
        help="where the tracker dies for good, in times of the whole model over one link: 0.3")  # fmt: skip
    add(
        "--tracker-restart",
        type=_seconds,
        metavar="POINT",
        help="where the tracker restarts, without memory",
    )
    add("--notes", action="store_true", help="it restarts with its notes of the members")
    add(
        "--parts",
        type=_natural,
        default=0,
        help="each node wants one of this many parts [all of it]",
    )
    add("--outage", type=_seconds, metavar="POINT", help="where storage refuses reads for a while")
    add("--outage-s", type=_seconds, default=_PLAIN.outage_s, help="s that it lasts")
    add("--frozen", type=_seconds, metavar="POINT", help="where storage sends nothing for a while")
    add("--frozen-s", type=_seconds, default=_PLAIN.frozen_s, help="s that it lasts")
    add(
        "--partition",
        type=_sides,
        metavar="A:B",
        help="sizes of two sides; further nodes reach both",
    )
    add("--partition-s", type=_seconds, default=_PLAIN.partition_s, help="s that it lasts")
    add(
        "--partition-tracker",
        choices=("first", "both"),
        default="first",
        help="the side that reaches the tracker",
    )


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def _natural(text: str) -> int:
    if (count := int(text)) < 0:
        raise argparse.ArgumentTypeError("at least 0")
    return count


def _share(text: str) -> float:
    if not 0 <= (share := float(text)) <= 1:
        raise argparse.ArgumentTypeError("a share is between 0 and 1")
    return share


def _seconds(text: str) -> float:
    if not 0 <= (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError("at least 0")
    return seconds


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        try:
            rate = parse_rate(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError("more than 0")
    return rate


def _sides(text: str) -> tuple[int, int]:
    first, _, second = text.partition(":")
    if not (first.isdecimal() and second.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} isn't A:B, the sizes of two sides")
    return int(first), int(second)


def _file(text: str) -> Path:
    if not (
        path := Path(text)
    ).parent.is_dir():  # found out now, not at the first failure after an hour
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory")
    return path
