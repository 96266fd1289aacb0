"""Storms: which nodes start when, and which faults happen."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from p2pcache.core import bitset
from p2pcache.core.coordinator.origin_doubts import WitnessReport
from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.settings import LeaseSettings, MemberSettings, SwarmSettings, UploadSettings
from p2pcache.core.swarm import events
from p2pcache.ids import RunSet
from p2pcache.sim.cluster.cluster import RESOLUTION, Cluster
from p2pcache.sim.cluster.network import Link
from p2pcache.sim.cluster.node import SimNode
from p2pcache.sim.cluster.node_place import Place
from p2pcache.sim.report import Report, report

KiB = 1024
SLOW = 0.1  # rate of a slow node, of an ordinary one's
SLOW_DISK = 0.3  # rate at which a slow disk takes bytes, of a link's
SYNCED_S = 2.0  # a node that dies keeps the runs that it had this long before: its bitmap is synced as often
BACK_AFTER_S = 5.0  # until a pod that crashed is started again
TRACKER_BACK_AFTER_S = 2.0
LEFT_AFTER_S = (
    5.5  # agents leave a tracker of several that says nothing: `tracker_link.SILENCE_OF_SEVERAL_S`
)
START_SPREAD_S = 0.1  # pods of one deployment don't start in the same millisecond


@dataclass(frozen=True, slots=True)
class Storm:
    """One storm and its faults. Shares are of the nodes; points are multiples of `scale_s`."""

    nodes: int = 50
    runs: int = 512
    run_bytes: int = 256 * KiB
    rate: float = 50e6 / 8  # bytes per second each way: as the emulated networks of loadtest
    rates: tuple[float, ...] = ()  # of each node, where links differ; () for `rate` each
    origin_rate: float = 50e6 / 8
    latency_s: float = 0.0005
    origin_latency_s: float = 0.005
    origin_jitter: float = 0.0  # sigma of the log-normal wait for its first byte; S3: about 0.6
    origin_stream: float = 0.0  # bytes per second of one connection; 0: no limit but the links
    further_share: float = 1.0  # of full links for a node's further reads, beside 1 of the first
    resolution: int = RESOLUTION  # solutions of the network while a link carries one run
    queue_s: float = 0.0  # that a full link adds to each message between nodes
    seed: int = 1
    slow: float = 0.0  # share of nodes at a tenth of the rate
    slow_disk: float = 0.0  # share of nodes with a slow disk
    crash: float = 0.0  # share of nodes killed between 20 % and 80 %
    restart: Literal["kept", "lost"] | None = None  # they come back, with their bytes or without
    late: float = 0.0  # share of nodes that start at 50 %
    liars: int = 0  # nodes that have the whole model and serve garbage
    hidden: int = 0  # nodes that nobody can dial
    odd: int = 0  # nodes that read other storage than the others: an empty mount, another bucket
    witness: bool = True  # the tracker can read storage itself
    hung: int = 0  # nodes that have the whole model and send nothing
    # Nodes that have the whole model and send so little that connections are given up.
    dripping: int = 0
    busy: int = 0  # nodes that have the whole model and always answer BUSY
    # Liars, hung, dripping and busy nodes begin with nothing, and pull as all others do.
    reading: bool = False
    racks: int = 0  # nodes are dealt to this many; 0: one flat network
    oversubscribed: float = 4.0  # a rack's uplink carries the sum of its nodes' rates over this
    tracker: bool = True
    no_tracker_after: float | None = None  # the tracker dies for good at this point
    tracker_restart: float | None = None  # the tracker dies at this point and comes back 2 s later
    # The tracker stops at this point for so many seconds; if agents have left it by then, another one takes over.
    tracker_frozen: tuple[float, float] | None = None
    notes: bool = False  # it comes back with its notes of the members, as after an orderly stop
    parts: int = 0  # each node wants one of this many parts of the model; 0: all of it
    outage: float | None = None  # storage refuses every read for a while from this point
    outage_s: float = 5.0
    frozen: float | None = None  # storage sends nothing for a while from this point
    frozen_s: float = 2.0
    partition: tuple[int, int] | None = None  # sizes of the two sides; further nodes reach both
    partition_tracker: Literal["first", "both"] = "first"  # the side that the tracker is on
    partition_at: float = 0.3
    partition_s: float = 10.0
    limit_s: float = 600.0  # virtual seconds after which a storm is given up
    limit: float = 40.0  # multiple of `scale_s` after which it is given up, if that is later
    settings: SwarmSettings = field(default_factory=SwarmSettings)
    uploads: UploadSettings = field(default_factory=UploadSettings)
    leases: LeaseSettings = field(default_factory=LeaseSettings)
    members: MemberSettings = field(default_factory=MemberSettings)
    on: Mechanisms = ALL_ON
    check_every: int = 0

    @property
    def scale_s(self) -> float:
        """Seconds that one link takes for the whole model."""
        return self.runs * self.run_bytes / min(self.rate, self.origin_rate)


class Run:
    """A storm as it happens."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.cluster = Cluster(
            seed=storm.seed, run_bytes=[storm.run_bytes] * storm.runs, rate=storm.rate,
            origin_rate=storm.origin_rate, latency_s=storm.latency_s,
            origin_latency_s=storm.origin_latency_s, settings=storm.settings,
            uploads=storm.uploads, leases=storm.leases, members=storm.members, tracker=storm.tracker,
            queue_s=storm.queue_s, resolution=storm.resolution,
            origin_jitter=storm.origin_jitter, origin_stream=storm.origin_stream, further_share=storm.further_share,
            check_every=storm.check_every, on=storm.on,
        )  # fmt: skip
        self.ordinary: list[SimNode] = []
        self.late: list[SimNode] = []
        self._to_come = 0
        self.cluster.tracker.word = WitnessReport.RIGHT if storm.witness else WitnessReport.NONE
        self._ways = self._rack_links()
        self._schedule_nodes()
        self._schedule_faults()

    def go(self) -> Report:
        """Run it to its end."""
        cluster = self.cluster
        limit = max(self.storm.limit * self.storm.scale_s, self.storm.limit_s)
        cluster.world.run(limit, lambda: not cluster.missing and not self._to_come)
        return report(cluster, self.ordinary, self.late, self._ways)

    def _rack_links(self) -> list[tuple[Link, Link]]:
        """The links out of each rack and into it."""
        storm, net = self.storm, self.cluster.net
        if not storm.racks:
            return []
        rate = math.ceil(storm.nodes / storm.racks) * storm.rate / storm.oversubscribed
        return [(net.link(rate), net.link(rate)) for _ in range(storm.racks)]

    def _schedule_nodes(self) -> None:
        storm, world = self.storm, self.cluster.world
        late = round(storm.late * storm.nodes)
        for number in range(storm.nodes):
            when = START_SPREAD_S * world.dice.random()
            if number >= storm.nodes - late:
                when += 0.5 * storm.scale_s
            self._expect(when, self._start, number, number >= storm.nodes - late)
        for _ in range(storm.liars):
            self._expect(0.0, self._start_liar)
        for fault in ("hung", "dripping", "busy"):
            for _ in range(getattr(storm, fault)):
                self._expect(0.0, self._start_silent, fault)

    def _expect(self, when: float, what: Callable[..., object], *args: Any) -> None:
        """A node will start at `when`; the storm isn't over before."""
        self._to_come += 1
        self.cluster.world.at(when, self._come, what, *args)

    def _come(self, what: Callable[..., object], *args: Any) -> None:
        self._to_come -= 1
        what(*args)

    def _start(self, number: int, late: bool) -> None:  # noqa: FBT001 - through the world's heap
        storm, net = self.storm, self.cluster.net
        slow = number < round(storm.slow * storm.nodes)
        bad_disk = round((storm.slow + storm.slow_disk) * storm.nodes) > number and not slow
        hidden = number >= storm.nodes - storm.hidden
        rack, way_out, way_in = "", None, None
        if self._ways:
            rack = f"rack{number % storm.racks}"
            way_out, way_in = self._ways[number % storm.racks]
        node = self.cluster.add_node(
            rate=(storm.rates[number] if storm.rates else storm.rate) * (SLOW if slow else 1.0), hidden=hidden,
            place=Place(rack, way_out, way_in, net.link(SLOW_DISK * storm.rate) if bad_disk else None),
        )  # fmt: skip
        node.reads.odd = number < storm.odd
        if storm.parts:
            node.post(events.Wanted(self._part(number)))
        if late:
            self.late.append(node)
        elif not slow and not bad_disk and not hidden:
            self.ordinary.append(node)

    def _part(self, number: int) -> RunSet:
        """The runs that a node wants, like a rank of a tensor-parallel engine."""
        runs = self.storm.runs
        parts = min(self.storm.parts, runs)
        first, last = (runs * part // parts for part in (number % parts, number % parts + 1))
        return bitset.of(range(first, last))

    def _start_liar(self) -> None:
        self.cluster.add_node(have=self._held(), liar=True)

    def _held(self) -> RunSet:
        """What a node that delivers nothing right begins with."""
        return 0 if self.storm.reading else bitset.full(self.storm.runs)

    def _start_silent(self, fault: str) -> None:
        storm = self.storm
        name = f"rack{len(self.cluster.nodes) % storm.racks}" if storm.racks else ""
        self.cluster.add_node(have=self._held(), fault=fault, place=Place(name))

    def _schedule_faults(self) -> None:
        storm, world = self.storm, self.cluster.world
        scale = storm.scale_s
        for _ in range(round(storm.crash * storm.nodes)):
            world.at((0.2 + 0.6 * world.dice.random()) * scale, self._crash)
        if storm.no_tracker_after is not None:
            world.at(storm.no_tracker_after * scale, self.cluster.tracker.die)
        if storm.tracker_restart is not None:
            at = storm.tracker_restart * scale
            world.at(at, self._restart_tracker)
        if storm.tracker_frozen is not None:
            world.at(storm.tracker_frozen[0] * scale, self._freeze_tracker, storm.tracker_frozen[1])
        if storm.outage is not None:
            world.at(storm.outage * scale, self.cluster.refuse_reads, storm.outage_s)
        if storm.frozen is not None:
            world.at(storm.frozen * scale, self.cluster.freeze_origin, storm.frozen_s)
        if storm.partition is not None:
            world.at(storm.partition_at * scale, self._split)

    def _restart_tracker(self) -> None:
        tracker = self.cluster.tracker
        notes = (
            tracker.mind.remembered_members()
            if self.storm.notes and tracker.mind is not None
            else None
        )
        tracker.die()
        self.cluster.world.after(TRACKER_BACK_AFTER_S, tracker.start, notes)

    def _freeze_tracker(self, seconds: float) -> None:
        world, tracker = self.cluster.world, self.cluster.tracker
        tracker.freeze()
        if seconds < LEFT_AFTER_S:
            world.after(seconds, tracker.thaw)
        else:
            world.after(LEFT_AFTER_S, tracker.die)
            world.after(seconds, tracker.start)

    def _crash(self) -> None:
        alive = [n for n in self.ordinary if n.alive]
        if len(alive) < 2:  # one node must be left to measure
            return
        node = alive[int(self.cluster.world.dice.random() * len(alive))]
        if self.storm.restart is None:
            self.cluster.kill(node)
        else:
            kept = node.have if self.storm.restart == "kept" else 0
            self._to_come += 1
            self.cluster.world.after(SYNCED_S, self._kill_and_restart, node, kept)

    def _kill_and_restart(self, node: SimNode, kept: int) -> None:
        self._to_come -= 1
        if node.alive:
            self.cluster.kill(node)
            back_at = self.cluster.world.now + BACK_AFTER_S
            self._expect(back_at, self.cluster.restart, node, kept)

    def _split(self) -> None:
        storm = self.storm
        first, second = storm.partition or (0, 0)
        nodes = list(self.cluster.nodes.values())
        sees_all = storm.partition_tracker == "both"
        self.cluster.partition(
            nodes[:first], nodes[first : first + second], storm.partition_s,
            tracker_sees_all=sees_all,
        )  # fmt: skip


def run(storm: Storm, **changes: object) -> Report:
    """Run a storm, with some fields changed."""
    return Run(replace(storm, **changes)).go()  # type: ignore[arg-type]
