"""Calibration: recorded storms of real agents beside the same storms in virtual time."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.sim.scenarios import Run, Storm

QUEUE_S = 0.1  # of the shapers of `loadtest.storm`, which TCP keeps full
SLOW_NODE = (
    "slow-node"  # the one fault that is predicted: a node's link has a tenth of the others' rate
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One shape, measured and simulated. Times in seconds."""

    nodes: int
    measured: float
    predicted: float
    bound: float
    alpha: float = 1.0  # measured
    predicted_alpha: float = 1.0

    @property
    def error(self) -> float:
        """Error of the prediction, as a share of the measured time."""
        return self.predicted / self.measured - 1


def read(path: Path) -> dict[str, Any]:
    """A recorded storm that can be simulated.

    Raises:
        UsageError: the file isn't one; the message says why.
    """
    try:
        recorded: dict[str, Any] = json.loads(path.read_bytes())
        like = storm_like(recorded)
        plan, finished = recorded["plan"], recorded["t_last"] is not None
        _positive(float(recorded["t_lb"]), like.nodes, like.runs, like.rate, like.origin_rate)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path}: isn't what loadtest.storm --json writes") from None
    had = [fault for fault in plan.get("faults", ()) if fault != SLOW_NODE]
    had += ["racks"] if plan.get("racks") else []
    if had:
        raise UsageError(
            f"{path}: the storm had {', '.join(had)}: only calm ones, and those with one slow node, on one flat "
            "network are predicted"
        )
    if not finished:
        raise UsageError(f"{path}: not all nodes were done")
    return recorded


def _positive(*numbers: float) -> None:
    if min(numbers) <= 0:
        raise ValueError


def storm_like(recorded: dict[str, Any]) -> Storm:
    """The storm that `loadtest.storm --json` recorded, with the measured goodput of its links."""
    plan = recorded["plan"]
    nominal = plan.get("rates", ())
    share = (
        recorded["goodput_node"] / max(nominal) if nominal else 0.0
    )  # the goodput is that of the quickest link
    storm = Storm(
        nodes=plan["nodes"], runs=recorded["chunks"], run_bytes=recorded["chunk_bytes"],
        rate=recorded["goodput_node"], rates=tuple(rate * share for rate in nominal),
        origin_rate=recorded["goodput_origin"], queue_s=QUEUE_S,
        slow=1 / plan["nodes"] if SLOW_NODE in plan.get("faults", ()) else 0.0,
    )  # fmt: skip
    return replace(
        storm, origin_latency_s=max(storm.origin_latency_s, plan.get("origin_latency_s", 0.0))
    )


def compare(recorded: dict[str, Any]) -> Comparison:
    """Simulate a recorded storm."""
    predicted = Run(storm_like(recorded)).go()
    return Comparison(
        recorded["plan"]["nodes"], recorded["t_last"], predicted.t_last, recorded["t_lb"],
        recorded["alpha"], predicted.alpha,
    )  # fmt: skip


def lines(recordings: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A table of recorded storms and their predictions."""
    yield f"{'nodes':>5} {'T_LB':>8} {'measured':>9} {'predicted':>9} {'error':>7}"
    for recorded in recordings:
        c = compare(recorded)
        yield f"{c.nodes:5} {c.bound:8.2f} {c.measured:9.2f} {c.predicted:9.2f} {c.error:+7.1%}"
