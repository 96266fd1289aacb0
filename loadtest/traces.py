"""Traces of a fixed matrix of simulated storms: the proof that a change left every decision as it was.

    python -m loadtest.traces record tests/sim/traces.json     # before a change that must not change decisions
    python -m loadtest.traces check tests/sim/traces.json      # after it: exit 1 and a line for each storm that differs
    python -m loadtest.traces check --short ...                # the part that the tests check, half a minute

The whole matrix takes about ten minutes on one core: each row of `sim table` with 50 nodes and three
seeds, racks, no tracker, partial pulls, storage that answers like S3, and 500 random storms.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2pcache.sim import properties
from p2pcache.sim.scenarios import Run, Storm
from p2pcache.sim.table import SCENARIOS

_SEEDS = (1, 2, 3)
_RANDOM = 500
_SHORT_RANDOM = 40
_S3 = {
    "origin_latency_s": 0.025,
    "origin_jitter": 0.6,
    "origin_stream": 90e6,
    "rate": 1.25e9,
    "origin_rate": 3e9,
}
_MORE: dict[str, dict[str, Any]] = {
    "no tracker": {"tracker": False},
    "partial pulls": {"parts": 4},
    "storage like S3": {**_S3, "run_bytes": 4 << 20},
    "queues of 0.1 s": {"queue_s": 0.1},
    "25 Gbit/s": {"rate": 3.1e9, "origin_rate": 3.1e9, "run_bytes": 4 << 20, "latency_s": 0.001},
}


def storms(*, short: bool) -> Iterator[tuple[str, Storm]]:
    """The matrix, each storm with its name."""
    nodes, runs, seeds, count = (
        (16, 64, (1,), _SHORT_RANDOM) if short else (50, 256, _SEEDS, _RANDOM)
    )
    for seed in seeds:
        for name, changes in {**SCENARIOS, **_MORE}.items():
            fields = dict(changes)
            if fields.get("partition"):
                fields["partition"] = (nodes // 2, nodes - nodes // 2)
            yield (
                f"{name}, {nodes} nodes, {runs} runs, seed {seed}",
                Storm(nodes=nodes, runs=runs, seed=seed, **fields),
            )
    for seed in range(count):
        yield f"random storm {seed}", properties.random_storm(seed)


def traced(storm: Storm) -> dict[str, Any]:
    """The storm's trace and the figures that a change may shift."""
    report = Run(storm).go()
    return {
        "trace": report.trace, "events": report.events, "eta": round(report.eta, 6), "alpha": round(report.alpha, 6),
    }  # fmt: skip


def differences(golden: dict[str, Any], *, short: bool) -> Iterator[str]:
    """A line for each storm whose trace isn't the recorded one."""
    for name, storm in storms(short=short):
        was, now = golden.get(name), traced(storm)
        if was is None:
            yield f"{name}: not recorded"
        elif was != now:
            yield f"{name}: eta {was['eta']} -> {now['eta']}, alpha {was['alpha']} -> {now['alpha']}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.traces", description=__doc__)
    parser.add_argument("what", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--short", action="store_true", help="only the storms that the tests check")
    args = parser.parse_args()
    if args.what == "record":
        parts = (True,) if args.short else (True, False)
        recorded = {name: traced(storm) for short in parts for name, storm in storms(short=short)}
        args.file.write_text(json.dumps(recorded, indent=0) + "\n")
        return 0
    golden = json.loads(args.file.read_text())
    different = 0
    for line in differences(golden, short=args.short):
        different += 1
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{different} storms differ\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
