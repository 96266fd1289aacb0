"""What each rule of the swarm is worth: storms without it, beside the same storms with all rules.

A rule is switched off by its field of `Mechanisms`, or by a setting at which it does nothing. Storms are written to a
file as they end, one JSON line each, and a table that was broken off goes on from there.
"""

import dataclasses
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from p2pcache.core.mechanisms import Mechanisms
from p2pcache.sim.scenarios import Run, Storm

NOTHING = "nothing"
_GBIT = 1e9 / 8
_QUICK: dict[str, Any] = {
    "rate": 25 * _GBIT, "origin_rate": 25 * _GBIT, "run_bytes": 4 << 20, "latency_s": 0.001,
}  # fmt: skip
_FAR: dict[str, Any] = {
    "origin_latency_s": 0.025, "origin_jitter": 0.6, "origin_stream": 90e6, "rate": 10 * _GBIT,
    "origin_rate": 25 * _GBIT, "run_bytes": 4 << 20,
}  # fmt: skip

SCENARIOS: dict[str, dict[str, Any]] = {
    "calm": {"nodes": 16, "queue_s": 0.1},
    "one slow": {"nodes": 16, "slow": 1 / 16},
    "half late": {"nodes": 16, "late": 0.5, "queue_s": 0.1},
    "crashes": {"nodes": 16, "crash": 1 / 8},
    "slow disks": {"nodes": 16, "slow_disk": 1 / 8},
    "racks": {"nodes": 16, "racks": 4},
    "hidden": {"nodes": 16, "hidden": 2},
    "no tracker": {"nodes": 16, "no_tracker_after": 0.3},
    "far storage": {"nodes": 16, **_FAR},
    "quick": {"nodes": 8, **_QUICK},
    "quick pair": {"nodes": 2, **_QUICK},
    "silent": {"nodes": 12, "hung": 1, "dripping": 1, "busy": 1},
    "parts in racks": {"nodes": 16, "parts": 4, "racks": 4},
    "calm 50": {"nodes": 50},
    "a tenth slow": {"nodes": 50, "slow": 0.1},
    "a tenth crash": {"nodes": 50, "crash": 0.1},
    "calm 100": {"nodes": 100},
    "calm 300": {"nodes": 300},
}
"""The storms, as fields of `Storm`."""

_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "window": {"settings": {"window_runs": 1 << 20}},
    "bandwidth_delay": {"settings": {"ahead_per_peer": 0}},
    "read_concurrency": {"settings": {"origin_ahead": 0}},
    "slow_readers": {"leases": {"slow_node_ratio": 1e9}},
}
"""Rules that do nothing at these settings, by part of a `Storm`."""

NAMES = (*(field.name for field in dataclasses.fields(Mechanisms)), *_SETTINGS)
"""All rules that can be switched off."""


class Result(NamedTuple):
    """One storm."""

    eta: float  # 0: a node never got all of it
    alpha: float
    requests: float  # for each run that came from a neighbour
    busy: float  # the same


class Cell(NamedTuple):
    """The same storm with several seeds."""

    eta: float  # the mean
    worst: float  # the lowest eta
    alpha: float  # the mean
    requests: float  # the mean

    @classmethod
    def of(cls, results: Sequence[Result]) -> "Cell":
        """The mean and the worst of some storms, one at least."""
        etas = [one.eta for one in results]
        return cls(
            fmean(etas), min(etas), fmean(one.alpha for one in results),
            fmean(one.requests for one in results),
        )  # fmt: skip


def without(storm: Storm, names: Iterable[str]) -> Storm:
    """A storm without some rules."""
    for name in names:
        if name not in _SETTINGS:
            storm = dataclasses.replace(storm, on=dataclasses.replace(storm.on, **{name: False}))
            continue
        for part, values in _SETTINGS[name].items():
            changed = dataclasses.replace(getattr(storm, part), **values)
            storm = dataclasses.replace(storm, **{part: changed})
    return storm


def measure(storm: Storm) -> Result:
    """Run one storm."""
    report = Run(storm).go()
    eta = report.eta if report.complete == report.alive and math.isfinite(report.t_last) else 0.0
    from_peers = max(1.0, report.alive * report.runs - report.alpha * report.runs)
    return Result(eta, report.alpha, report.requests / from_peers, report.busy / from_peers)


class Table:
    """Results by set of rules, scenario and seed, and the file that they are kept in."""

    def __init__(self, file: Path | None) -> None:
        """Read what an earlier table left in the file; None: keep nothing."""
        self._file = file
        self._results: dict[str, Result] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                key, *figures = json.loads(line)
                self._results[key] = Result(*figures)

    def result(self, names: Sequence[str], scenario: str, runs: int, seed: int) -> Result:
        """One storm without these rules, run now unless it is known."""
        storm = Storm(runs=runs, seed=seed, **SCENARIOS[scenario])
        key = f"{'+'.join(names)} | {scenario} | {runs} | {seed} | {_version(storm)}"
        if key not in self._results:
            found = self._results[key] = measure(without(storm, names))
            if self._file is not None:
                with self._file.open("a") as out:
                    out.write(json.dumps([key, *(round(x, 6) for x in found)]) + "\n")
        return self._results[key]

    def lines(
        self, sets: Sequence[Sequence[str]], scenarios: Sequence[str], runs: int, seeds: int
    ) -> Iterator[str]:
        """The table, line by line as storms end: each scenario, and in it each set of rules that are off.

        `lost` is the mean and the worst eta that the storms with all rules have more, `alpha` what they have less.
        """
        wide = max(len(NOTHING), *(len("+".join(names)) for names in sets))
        yield f"{'off':{wide}} {'eta':>6} {'worst':>6} {'lost':>7} {'worst':>7} {'alpha':>6} {'more':>7} {'asked':>6}"
        for scenario in scenarios:
            yield f"-- {scenario}: {runs} runs, {SCENARIOS[scenario]}"
            usual: Cell | None = None
            for names in ((), *sets):
                some = [self.result(names, scenario, runs, seed) for seed in range(1, seeds + 1)]
                cell = Cell.of(some)
                usual = usual or cell
                yield (
                    f"{'+'.join(names) or NOTHING:{wide}} {cell.eta:6.3f} {cell.worst:6.3f} "
                    f"{usual.eta - cell.eta:+7.4f} {usual.worst - cell.worst:+7.4f} "
                    f"{cell.alpha:6.3f} {cell.alpha - usual.alpha:+7.4f} {cell.requests:6.2f}"
                )


def _version(storm: Storm) -> int:
    """A number for the fields of a scenario: a changed one is another storm."""
    return zlib.crc32(repr(storm).encode())
