"""`python -m loadtest.storm`: one storm, its table, its JSON."""

import argparse
import json
import sys
from pathlib import Path

from loadtest.kit.daemons import StartError, exit_on_signals
from loadtest.kit.flags import count, duration, out_file, rate, rates, size
from loadtest.kit.models import check_tree, total_bytes
from loadtest.kit.netns import FabricError
from loadtest.storm.arena import Arena, say
from loadtest.storm.faults import FAULTS, NEW_AFTER_S, TAKEOVER, Trouble
from loadtest.storm.fleet import Calm, FleetReport, read_hosts
from loadtest.storm.fleet import run as on_fleet
from loadtest.storm.plan import Links, Plan, bound_s
from loadtest.storm.race import Act, NewPull, race
from loadtest.storm.report import OriginBytes, Report
from loadtest.storm.rivals import RIVALS
from p2pcache.core.format.chunking import MAX_CHUNK_BYTES, nominal_chunk_bytes
from p2pcache.core.units import format_bytes, parse_duration, parse_rate, parse_size
from p2pcache.errors import UsageError

LIMIT_FACTOR = 4  # of T_LB: who isn't done by then hangs
NEW_REF, NEW_BYTES = "storm/new:v1", 256 << 10  # the pull that begins when the tracker has failed
LIMIT_EXTRA_S = 60.0  # leases expire and stalls time out within it


def main(argv: list[str] | None = None) -> int:
    """Run one storm. Exit code 0: all as it must be; 1: not; 2: can't run here."""
    options = _parser().parse_args(argv)
    exit_on_signals()
    try:
        _check(options)
        report = _on_fleet(options) if options.hosts else run(_plan(options))
    except (UsageError, FabricError, StartError, RuntimeError) as error:
        print(f"storm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("storm: interrupted; everything was removed", file=sys.stderr)
        return 130
    print(report.as_text())
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return 1 if report.failures() else 0


def _check(options: argparse.Namespace) -> None:
    """What makes no storm, told before minutes have gone into it.

    Raises:
        UsageError: with the flag.
    """
    if not 0 <= options.racks <= options.nodes:
        raise UsageError(f"--racks: 0 to {options.nodes}, the number of nodes")
    for flag in ("uplink", "unlabelled"):
        if getattr(options, flag) and not options.racks:
            raise UsageError(f"--{flag} is of racks: say --racks K, too")
    if options.rates and len(options.rates.split(",")) != options.nodes:
        raise UsageError(f"--rates: one rate for each of the {options.nodes} nodes")
    least = nominal_chunk_bytes(parse_size(options.size))
    if options.run_size and not least <= parse_size(options.run_size) <= MAX_CHUNK_BYTES:
        raise UsageError(
            f"--run-size: {format_bytes(least)}, which a model of this size has, to {format_bytes(MAX_CHUNK_BYTES)}"
        )
    if options.ref and not options.hosts:
        raise UsageError("--ref is for --hosts; in namespaces a model is made")
    if options.other_code and not (Path(options.other_code) / "p2pcache" / "cli").is_dir():
        raise UsageError(f"--other-code: {options.other_code} has no p2pcache")
    if options.logs and Path(options.logs).exists() and not Path(options.logs).is_dir():
        raise UsageError(f"--logs: {options.logs} isn't a directory")


def _on_fleet(options: argparse.Namespace) -> FleetReport:
    """The hosts of a list instead of namespaces."""
    if not options.ref:
        raise UsageError("--hosts needs --ref: what the hosts are to pull")
    if options.rival or options.fault or options.other_code:
        raise UsageError("--rival, --fault and --other-code are for namespaces, not for --hosts")
    rate = parse_rate(options.rate)
    calm = Calm(options.ref, rate, parse_rate(options.origin_rate) if options.origin_rate else rate,
                options.ssh, options.remote)  # fmt: skip
    return on_fleet(read_hosts(Path(options.hosts)), calm, say)


def run(plan: Plan) -> Report:
    """One storm and its rivals, on one set of links."""
    trouble = Trouble.of(plan)
    proxy = any(f.proxy for f in trouble.faults)
    standby = any(f.standby for f in trouble.faults)
    with Arena(plan, proxy=proxy, liars=trouble.liars(plan), standby=standby) as arena:
        links = arena.measure_links()
        say(
            f"goodput: {links.node * 8e-6:.1f} Mbit/s between nodes, {links.origin * 8e-6:.1f} from the origin"
        )
        for fault in trouble.faults:
            fault.prepare(arena)
        source = arena.push(plan.size_bytes)
        if any(f.new_pull for f in trouble.faults):
            arena.push(NEW_BYTES, NEW_REF, plan.seed + 1)
        for fault in trouble.faults:
            fault.corrupt(arena, source)
        arena.start()
        report = _storm(arena, trouble, links, total_bytes(source))
        _compare(arena, report, source)
        for rival in plan.rivals:
            say(f"rival: {rival}")
            report.rivals[rival] = RIVALS[rival].run(arena, links, source)
        return report


def _storm(arena: Arena, trouble: Trouble, links: Links, size_bytes: int) -> Report:
    """The timed part: only the pulls run, and what the faults do to them."""
    plan = arena.plan
    unlucky = trouble.unlucky(plan)
    t_lb = bound_s(plan, links, size_bytes, plan.nodes - len(unlucky))
    say(f"{plan.nodes} nodes pull {format_bytes(size_bytes)}; the bound is {t_lb:.1f} s")
    acts = [act for fault in trouble.faults for act in fault.acts(arena, t_lb)]
    new_pull = (
        NewPull(arena.agents[0], NEW_REF) if any(f.new_pull for f in trouble.faults) else None
    )
    if new_pull is not None:
        acts.append(
            Act(TAKEOVER * t_lb + NEW_AFTER_S, "a pull of another model begins", new_pull.start)
        )
    numbers = {str(agent.client.status()["node"]): n for n, agent in enumerate(arena.agents)}
    crossed, again = arena.fabric.left_racks_bytes(), arena.sent_again()
    before = OriginBytes(arena.origin.sent_bytes(), arena.fabric.sent_bytes(arena.origin_host))
    result = race(
        arena.agents, arena.cpu_s, lambda: arena.fabric.sent_bytes(arena.origin_host), acts,
        delays=dict.fromkeys(trouble.late(plan), t_lb / 2),
        wait_for=[n for n in range(plan.nodes) if trouble.expected(plan, n)],
        again=trouble.restarted(plan),
        limit_s=LIMIT_FACTOR * t_lb + LIMIT_EXTRA_S, say=say,
    )  # fmt: skip
    after = OriginBytes(arena.origin.sent_bytes(), arena.fabric.sent_bytes(arena.origin_host))
    read = OriginBytes(after.server - before.server, after.interface - before.interface)
    crossed = arena.fabric.left_racks_bytes() - crossed
    again = arena.sent_again() - again
    return Report(
        plan, trouble, links, result, read, size_bytes, left_racks=crossed, sent_again=again,
        numbers=numbers, lease_ends=arena.lease_ends(), new_pull=new_pull,
    )  # fmt: skip


def _compare(arena: Arena, report: Report, source: Path) -> None:
    for agent, outcome in zip(arena.agents, report.race.outcomes, strict=True):
        if outcome.code != 0:
            continue
        try:
            check_tree(agent.tree(outcome.path), source)
            outcome.equal = True
        except (AssertionError, OSError) as error:
            outcome.equal, outcome.message = False, str(error)


def _plan(options: argparse.Namespace) -> Plan:
    for name in options.rival:
        if missing := RIVALS[name].missing():
            raise UsageError(f"the rival {name} can't run here: {missing}")
    rates = tuple(parse_rate(text) for text in options.rates.split(",")) if options.rates else ()
    return Plan(
        nodes=options.nodes,
        rate=max(rates, default=parse_rate(options.rate)),
        origin_rate=parse_rate(options.origin_rate or options.rate),
        size_bytes=parse_size(options.size),
        rivals=tuple(dict.fromkeys(options.rival)),
        faults=tuple(options.fault),
        seed=options.seed,
        racks=options.racks,
        uplink=parse_rate(options.uplink or options.rate),
        labelled=not options.unlabelled,
        logs=options.logs,
        fault_s=parse_duration(options.fault_for),
        agent_flags=_words(options.agent_flag),
        tracker_flags=_words(options.tracker_flag),
        rates=rates,
        shards=options.shards,
        run_bytes=parse_size(options.run_size) if options.run_size else 0,
        other_code=str(Path(options.other_code).resolve()) if options.other_code else "",
        origin_latency_s=parse_duration(options.origin_latency) if options.origin_latency else 0.0,
    )


def _words(flags: list[str]) -> tuple[str, ...]:
    return tuple(word for flag in flags for word in flag.split(" ", 1))


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, (*FAULTS, *RIVALS)))
    faults = "\n".join(f"  {name:{width}}  {fault.help}" for name, fault in FAULTS.items())
    rivals = "\n".join(f"  {name:{width}}  {rival.help}" for name, rival in RIVALS.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.storm",
        description="N agents in network namespaces behind shaped links pull one model at once (root).",
        epilog="faults (who is unlucky, the last node if not said otherwise, isn't counted in the times):\n"
        f"{faults}\n\n"
        f"rivals, each after the storm on the same links:\n{rivals}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--nodes", type=count, default=8, metavar="N", help="agents [8]")
    add("--rate", type=rate, default="50mbit", help="each node's link, both directions [50mbit]")
    add(
        "--rates",
        type=rates,
        metavar="A,B,C...",
        help="a rate for each node, instead of --rate",
    )
    add("--origin-rate", type=rate, metavar="RATE", help="the origin's link [as --rate]")
    add("--racks", type=int, default=0, metavar="K", help="spread the nodes over so many racks, each a bridge "
        "with an uplink; the table gets beta")  # fmt: skip
    add("--uplink", type=rate, metavar="RATE", help="of each rack, both directions [as --rate]")
    add(
        "--unlabelled",
        action="store_true",
        help="don't tell the agents their racks: beta without a policy",
    )
    add("--origin-latency", type=duration, metavar="TIME", help="how much farther than the nodes storage is, one "
        "way: a proxy holds each answer back; alpha is by the proxy's counter then")  # fmt: skip
    add("--size", type=size, default="128MiB", help="the model [128MiB: 512 chunks]")
    add("--shards", type=count, default=1, metavar="N", help="the model in so many files [1]")
    add("--run-size", type=size, metavar="SIZE", help="a run of the model, as a larger one has: 1MiB from 256 MiB "
        "on, 4MiB from 1 GiB on [as its size says]")  # fmt: skip
    add(
        "--rival",
        action="append",
        default=[],
        choices=list(RIVALS),
        metavar="NAME",
        help="run it too, on the same links; see below; may be repeated",
    )
    add(
        "--fault",
        action="append",
        default=[],
        choices=list(FAULTS),
        metavar="NAME",
        help="see below; may be repeated",
    )
    add("--other-code", default="", metavar="DIR", help="every second agent runs another checkout: what it "
        "takes of the processor beside the others, in one storm")  # fmt: skip
    fleet = Calm("", 0.0, 0.0)
    add("--hosts", metavar="FILE", help="instead of namespaces: hosts that run agents, NAME TARGET on each line; "
        "TARGET is for ssh, or unix:///PATH or http://HOST:PORT of an agent. --rate and --origin-rate say what "
        "the links carry")  # fmt: skip
    add("--ref", default="", help="with --hosts: the model; no host should have it yet")
    add("--ssh", default=fleet.ssh, metavar="COMMAND", help=f"with --hosts [{fleet.ssh}]")
    add(
        "--remote",
        default=fleet.remote,
        metavar="COMMAND",
        help=f"p2pcache on the hosts [{fleet.remote}]",
    )
    add("--json", type=out_file, metavar="FILE", help="write all numbers here")
    add("--logs", default="", metavar="DIR", help="keep every daemon's log here")
    add("--seed", type=int, default=0, help="of the model's bytes [0]")
    add(
        "--fault-for",
        type=duration,
        default="5s",
        metavar="TIME",
        help="how long faults of storage last [5s]",
    )
    add(
        "--agent-flag",
        action="append",
        default=[],
        metavar="'--FLAG VALUE'",
        help="for each agent; may be repeated",
    )
    add(
        "--tracker-flag",
        action="append",
        default=[],
        metavar="'--FLAG VALUE'",
        help="for the tracker: '--neighbours 12'; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
