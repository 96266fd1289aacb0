"""Storms by name: what starts when, and what goes wrong."""

from dataclasses import dataclass, field, replace

from p2pcache.core import chunkset
from p2pcache.core.settings import LeaseSettings, SwarmSettings, UploadSettings
from p2pcache.sim.cluster import Cluster
from p2pcache.sim.node import SimNode
from p2pcache.sim.report import Report, report

KiB = 1024
SLOW = 0.1  # rate of a slow node, of an ordinary one's
START_SPREAD_S = 0.1  # pods of one deployment don't start in the same millisecond


@dataclass(frozen=True, slots=True)
class Storm:
    """One storm and its faults. Shares are of the nodes, points of the time T_LB."""

    nodes: int = 50
    runs: int = 512
    run_bytes: int = 256 * KiB
    rate: float = 50e6 / 8  # bytes per second each way: as the emulated networks of loadtest
    origin_rate: float = 50e6 / 8
    latency_s: float = 0.0005
    origin_latency_s: float = 0.005
    seed: int = 1
    slow: float = 0.0  # share of nodes at a tenth of the rate
    crash: float = 0.0  # share of nodes killed between 20 % and 80 %
    late: float = 0.0  # share of nodes that start at 50 %
    liars: int = 0  # nodes that claim everything and serve garbage
    tracker: bool = True
    no_tracker_after: float | None = None  # the tracker dies for good at this point
    tracker_restart: float | None = None  # ... or comes back, without memory, 2 s later
    partition: tuple[int, int] | None = None  # sizes of the two sides (the tracker is on the first)
    partition_at: float = 0.3
    partition_s: float = 10.0
    limit_s: float = 600.0  # give up after so many virtual seconds, ...
    limit: float = 40.0  # ... or so many times of a whole model, if that is more
    settings: SwarmSettings = field(default_factory=SwarmSettings)
    uploads: UploadSettings = field(default_factory=UploadSettings)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    check_every: int = 0

    @property
    def scale_s(self) -> float:
        """The time one link takes for the whole model."""
        return self.runs * self.run_bytes / min(self.rate, self.origin_rate)


class Run:
    """A storm as it happens."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.cluster = Cluster(
            seed=storm.seed, run_bytes=[storm.run_bytes] * storm.runs, rate=storm.rate,
            origin_rate=storm.origin_rate, latency_s=storm.latency_s,
            origin_latency_s=storm.origin_latency_s, settings=storm.settings,
            uploads=storm.uploads, leases=storm.leases, tracker=storm.tracker,
            check_every=storm.check_every,
        )  # fmt: skip
        self.ordinary: list[SimNode] = []
        self.late: list[SimNode] = []
        self._to_come = 0
        self._people()
        self._faults()

    def go(self) -> Report:
        """Run it to its end."""
        cluster = self.cluster
        limit = max(self.storm.limit * self.storm.scale_s, self.storm.limit_s)
        cluster.world.run(limit, lambda: not cluster.missing and not self._to_come)
        return report(cluster, self.ordinary)

    def _people(self) -> None:
        storm, world = self.storm, self.cluster.world
        slow = round(storm.slow * storm.nodes)
        late = round(storm.late * storm.nodes)
        self._to_come = storm.nodes
        for number in range(storm.nodes):
            rate = storm.rate * (SLOW if number < slow else 1.0)
            when = START_SPREAD_S * world.dice.random()
            if number >= storm.nodes - late:
                when += 0.5 * storm.scale_s
            world.at(when, self._start, rate, number >= slow, number >= storm.nodes - late)
        for _ in range(storm.liars):
            self._to_come += 1
            world.at(0.0, self._start_liar)

    def _start(self, rate: float, quick: bool, late: bool) -> None:  # noqa: FBT001
        self._to_come -= 1
        node = self.cluster.add(rate=rate)
        if late:
            self.late.append(node)
        elif quick:
            self.ordinary.append(node)

    def _start_liar(self) -> None:
        self._to_come -= 1
        self.cluster.add(have=chunkset.full(self.storm.runs), liar=True)

    def _faults(self) -> None:
        storm, world = self.storm, self.cluster.world
        scale = storm.scale_s
        for _ in range(round(storm.crash * storm.nodes)):
            world.at((0.2 + 0.6 * world.dice.random()) * scale, self._crash)
        if storm.no_tracker_after is not None:
            world.at(storm.no_tracker_after * scale, self.cluster.tracker.die)
        if storm.tracker_restart is not None:
            at = storm.tracker_restart * scale
            world.at(at, self.cluster.tracker.die)
            world.at(at + 2.0, self.cluster.tracker.start)
        if storm.partition is not None:
            world.at(storm.partition_at * scale, self._split)

    def _crash(self) -> None:
        alive = [n for n in self.ordinary if n.alive]
        if len(alive) > 1:  # somebody must be left to measure
            self.cluster.kill(alive[int(self.cluster.world.dice.random() * len(alive))])

    def _split(self) -> None:
        storm = self.storm
        first = storm.partition[0] if storm.partition else 0
        others = list(self.cluster.nodes.values())[first:]
        self.cluster.partition(others, storm.partition_s)


def run(storm: Storm, **changes: object) -> Report:
    """Run a storm, with some fields changed."""
    return Run(replace(storm, **changes)).go()  # type: ignore[arg-type]
