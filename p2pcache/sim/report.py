"""The figures of merit of one storm (docs/design/words.md, "Figures")."""

import math
from dataclasses import asdict, dataclass

from p2pcache.sim.cluster.cluster import Cluster
from p2pcache.sim.cluster.network import Link
from p2pcache.sim.cluster.node import SimNode


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one storm. Times in virtual seconds from the first node's start."""

    nodes: int
    runs: int
    model_bytes: int
    complete: int  # of the nodes that live
    alive: int
    t_lb: float  # the lower bound
    t_last: float  # when the last ordinary node (not slow, not late) is done
    t_median: float
    eta: float  # t_lb / t_last
    eta_median: float
    eta_late: (
        float | None
    )  # t_lb / longest time of a late node from its own start; None: there is none
    alpha: float  # bytes that left the origin / model bytes
    beta: float | None  # bytes between racks / (model bytes * (racks - 1)); None: fewer than two
    requests: int
    busy: int
    duplicates: int
    bytes_twice: int
    mismatched: int
    stuck: int
    messages: int  # that the tracker received
    events: int  # calls of the world, messages included
    trace: str

    def as_dict(self) -> dict[str, object]:
        """For JSON, which has no infinity: a time that never came is None."""
        return {k: None if v == math.inf else v for k, v in asdict(self).items()}


def lower_bound(
    model: float, origin: float, rates: list[float], run: float, ways: list[float] | None = None
) -> float:
    """T_LB in seconds: no schedule finishes all nodes sooner.

    The cut-set bound of Mundinger, Weber and Weiss (2008), plus the time in which one run doubles to all nodes.

    Args:
        model: bytes.
        origin: bytes per second.
        rates: of each node's link, bytes per second.
        run: bytes of one run.
        ways: of each link into a rack, bytes per second.
    """
    count = len(rates)
    narrowest = min(rates + (ways or []))
    flow = max(model / origin, model / narrowest, count * model / (origin + sum(rates)))
    return flow + math.ceil(math.log2(count)) * run / max(rates)


def report(
    cluster: Cluster, ordinary: list[SimNode], late: list[SimNode], ways: list[tuple[Link, Link]]
) -> Report:
    """The figures of a finished storm.

    Args:
        cluster: at its end.
        ordinary: the nodes whose times count.
        late: the nodes that joined later.
        ways: links out of each rack and into it.
    """
    model = sum(cluster.run_bytes)
    alive = [n for n in cluster.nodes.values() if n.alive]
    counted = [n for n in ordinary if n.alive] or alive
    times = sorted(_took(n) for n in counted)
    counters = [n.scheduler.counters for n in (*cluster.gone, *cluster.nodes.values())]
    bound = lower_bound(
        model, cluster.origin.rate, [n.up.rate for n in counted], cluster.run_bytes[0],
        [way_in.rate for _, way_in in ways],
    )  # fmt: skip
    last, median = times[-1], times[len(times) // 2]
    return Report(
        nodes=len(cluster.nodes),
        runs=len(cluster.run_bytes),
        model_bytes=model,
        complete=sum(n.done for n in alive),
        alive=len(alive),
        t_lb=bound,
        t_last=last,
        t_median=median,
        eta=bound / last,
        eta_median=bound / median,
        eta_late=bound / max(map(_took, late)) if late else None,
        alpha=(cluster.origin.carried + cluster.sent_in_vain) / model,
        beta=_crossed(ways, model) if len(ways) > 1 else None,
        requests=sum(c.requests for c in counters),
        busy=sum(c.busy for c in counters),
        duplicates=sum(c.duplicates for c in counters),
        bytes_twice=sum(c.bytes_twice for c in counters),
        mismatched=sum(c.mismatched for c in counters),
        stuck=cluster.stuck,
        messages=cluster.tracker.heard,
        events=cluster.world.steps,
        trace=cluster.world.trace_hash,
    )


def _took(node: SimNode) -> float:
    return math.inf if node.finished is None else node.finished - node.started


def _crossed(ways: list[tuple[Link, Link]], model: int) -> float:
    return sum(way_out.carried for way_out, _ in ways) / (model * (len(ways) - 1))
