"""`python -m p2pcache.sim`: storms in virtual time.

`storm` runs one and prints its figures. `table` runs each kind of fault beside a calm storm. `calibrate` puts measured
storms beside their predictions. `properties` runs many small random storms that must keep the laws. `month` is no
storm: it compares what decides which models leave a cache. `pool` is none either: it counts what moves where models are
kept while nodes are lost and come.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from p2pcache.errors import UsageError
from p2pcache.sim import ablation, cache_month, calibrate, pool_life, properties, table
from p2pcache.sim.cache_month import Month
from p2pcache.sim.flags import parse
from p2pcache.sim.pool_life import Life
from p2pcache.sim.scenarios import Run, Storm


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code.

    1: a node that lives isn't complete, or a law is broken; 2: the arguments make no storm.
    """
    args, storm = parse(argv, __doc__)
    if storm is not None:
        return _storm(storm, args.json)
    if args.what == "table":
        return _say(table.lines(Storm(nodes=args.nodes, runs=args.chunks, seed=args.seed)))
    if args.what == "month":
        month = Month(
            models=args.models, requests=args.requests, share=args.share, zipf=args.zipf, seed=args.seed
        )  # fmt: skip
        return _say((*cache_month.lines(month), *cache_month.pool_lines(month, args.nodes)))
    if args.what == "pool":
        return _say(pool_life.lines(Life(
            nodes=args.nodes, models=args.models, copies=args.copies, racks=args.racks,
            lost=args.lost, seed=args.seed,
        )))  # fmt: skip
    if args.what == "ablate":
        found = ablation.Table(args.file)
        return _say(found.lines(args.off, args.scenarios, args.chunks, args.seeds))
    if args.what == "calibrate":
        try:
            recordings = [calibrate.read(file) for file in args.files]
        except UsageError as error:
            sys.stderr.write(f"calibrate: {error}\n")
            return 2
        return _say(calibrate.lines(recordings))
    return _properties(args)


def _say(lines: Iterable[str]) -> int:
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()  # the next line may take minutes
    return 0


def _storm(storm: Storm, out: Path | None) -> int:
    gc.disable()  # it takes much of the time of a large storm and frees little memory
    began = time.monotonic()
    result = Run(storm).go()
    figures = {**result.as_dict(), "seed": storm.seed, "wall_s": time.monotonic() - began}
    for key, value in figures.items():
        text = f"{value:.4f}" if isinstance(value, float) else str("-" if value is None else value)
        sys.stdout.write(f"{key:12} {text}\n")
    if out is not None:
        out.write_text(json.dumps(figures, indent=2) + "\n")
    if lacking := result.alive - result.complete:
        sys.stderr.write(f"{lacking} of the {result.alive} nodes that live never got all of it\n")
    return 1 if lacking else 0


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
