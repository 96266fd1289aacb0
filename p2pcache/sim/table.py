"""Each kind of fault beside a calm storm: its cost to ordinary nodes and to the origin."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from p2pcache.sim.report import Report
from p2pcache.sim.scenarios import Run, Storm

SCENARIOS: dict[str, dict[str, Any]] = {
    "calm": {},
    "10 % at a tenth of the rate": {"slow": 0.1},
    "10 % with a slow disk": {"slow_disk": 0.1},
    "10 % crash": {"crash": 0.1},
    "10 % crash and come back": {"crash": 0.1, "restart": "kept"},
    "half join at 50 %": {"late": 0.5},
    "tracker lost at 30 %": {"no_tracker_after": 0.3},
    "tracker restarts at 30 %": {"tracker_restart": 0.3},
    "storage freezes for 2 s at 30 %": {"frozen": 0.3},
    "halves apart for 10 s": {"partition": True},
    "one liar": {"liars": 1},
    "one that nobody can dial": {"hidden": 1},
    "4 racks, uplinks 4:1": {"racks": 4},
}


def lines(calm: Storm) -> Iterator[str]:
    """A table of all scenarios in the shape of this storm, line by line as they end.

    `loss` is the lost share of the calm eta; `late` is the eta of late nodes, from their own start.
    """
    yield f"{'':31} {'T_last':>8} {'T_LB':>8} {'eta':>6} {'loss':>7} {'late':>6} {'alpha':>6} {'beta':>6}  done"
    first: Report | None = None
    for name, faults in SCENARIOS.items():
        storm = replace(calm, **faults)
        if storm.partition:
            storm = replace(storm, partition=(calm.nodes // 2, calm.nodes - calm.nodes // 2))
        report = Run(storm).go()
        first = first or report
        loss = 1 - report.eta / first.eta
        late, beta = ("" if x is None else f"{x:.3f}" for x in (report.eta_late, report.beta))
        yield (
            f"{name:31} {report.t_last:8.2f} {report.t_lb:8.2f} {report.eta:6.3f} {loss:7.1%} "
            f"{late:>6} {report.alpha:6.3f} {beta:>6}  {report.complete}/{report.alive}"
        )
