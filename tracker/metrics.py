"""The tracker's Prometheus metrics, gathered at scrape time from the parts that keep the counts."""

import heapq
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import p2pcache
from p2pcache.core.coordinator.swarm_state import SwarmTracker
from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.membership.settings import REMEMBERED_S
from p2pcache.io.clock import Clock
from p2pcache.io.event_loop import LoopLag
from p2pcache.io.security.certificate_metrics import certificate_metrics
from p2pcache.io.security.tls import Tls
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.members.hub import MemberHub
from p2pcache.tracker.pool.keeping import Keeping
from p2pcache.tracker.questions import Questions
from p2pcache.tracker.tenure.candidacy import Candidacy
from p2pcache.tracker.tenure.standby import tenure_metrics

MAX_SWARMS = 500  # with series of their own; swarms that most nodes want come first


class TrackerMetrics(Collector):
    """The tracker's counters. Each value is kept in one place."""

    def __init__(
        self,
        *,
        tracking: TrackerState,
        members: MemberHub,
        questions: Questions,
        catalog: Catalog,
        clock: Clock,
        lag: LoopLag,
        ready: Callable[[], bool],
        tls: Tls | None,
        tenure: Candidacy | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._tracking = tracking
        self._members = members
        self._questions = questions
        self._catalog = catalog
        self._clock = clock
        self._lag = lag
        self._ready = ready
        self._tls = tls
        self._tenure = tenure
        self._keeping = keeping
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def describe(self) -> list[Metric]:
        """No metric in advance: registering must not need a running tracker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        yield from tenure_metrics(self._tenure)
        yield from self._gauges()
        yield from self._swarms()
        yield from self._kept()
        totals = self._tracking.totals()
        registry = self._tracking.registry
        for name, text, value in (
            ("members_joined", "Nodes that became members.",
             len(registry.nodes) + registry.left + registry.lost),
            ("members_left", "Members that said goodbye.", registry.left),
            ("members_lost", "Members that fell silent, or whose connection broke for good.", registry.lost),
            ("leases_granted", "Runs that nodes were told to read from the origin.", totals["granted"]),
            ("rescues", "Runs granted again though a live node had them.", totals["rescues"]),
            ("polls", "Times that a swarm was asked what it has.", totals["polls"]),
            ("blames", "Wrong bytes from a peer, as members told.", totals["blames"]),
            ("handshakes_refused", "Connections that failed to become members.",
             self._members.log.refused + (self._tls.refused if self._tls is not None else 0)),
        ):  # fmt: skip
            yield CounterMetricFamily(f"p2pcache_tracker_{name}", text, value=value)
        kinds = self._members.messages.items()
        reads = self._catalog.reads.items()
        asks = self._questions.counts.items()
        ends = self._tracking.lease_ends().items()
        for name, text, labels, values in (
            ("lease_ends", "Leases that are over, by why.", ["reason"], [((k,), n) for k, n in ends]),
            ("messages", "Messages from members.", ["kind"], [((k,), n) for k, n in kinds]),
            ("asks", "Questions from members.", ["what", "outcome"], list(asks)),
            ("origin_reads", "The tracker's own reads.", ["kind"], [((k,), n) for k, n in reads]),
        ):  # fmt: skip
            family = CounterMetricFamily(f"p2pcache_tracker_{name}", text, labels=labels)
            for label, count in sorted(values):
                family.add_metric(label, count)
            yield family
        yield from certificate_metrics("tracker", self._tls)
        build = InfoMetricFamily("p2pcache_tracker_build", "The running release.")
        build.add_metric([], {"version": p2pcache.__version__})
        yield build

    def _gauges(self) -> Iterator[Metric]:
        swarms, nodes = self._tracking.swarms.values(), self._tracking.registry.nodes
        now = self._clock.now()
        for name, text, value in (
            ("ready", "1 when the origin answers.", int(self._ready())),
            ("members", "Live nodes.", len(nodes)),
            ("connections", "Open member connections.", len(self._members)),
            ("lost_members", "Nodes that went without a goodbye within the last hour and aren't back.",
             sum(one.lost for one in self._tracking.registry.departed_since(now - REMEMBERED_S).values())),
            ("swarms", "Models that a live node has or wants.", len(swarms)),
            ("leases_in_flight", "Runs that are read from the origin now.",
             sum(len(swarm.book.leases) for swarm in swarms)),
            ("swarms_stopped", "Models whose origin bytes are wrong.",
             sum(swarm.doubts.stop is not None for swarm in swarms)),
            ("shunned_members", "Members caught sending wrong bytes, per model.",
             sum(len(swarm.banned) for swarm in swarms)),
            ("unreached_members", "Members that can't be dialled, or couldn't be fetched from lately.",
             len(self._tracking.unreached())),
            ("heartbeat_age_seconds", "Since the member that is silent for longest said something.",
             max((now - n.last_seen for n in nodes.values() if n.connected), default=0.0)),
            ("event_loop_lag_seconds", "Longest delay of the event loop in the last minute.",
             self._lag.worst_s),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"p2pcache_tracker_{name}", text, value=value)

    def _kept(self) -> Iterator[Metric]:
        if self._keeping is None:
            return
        figures = self._keeping.told.figures()
        for name, text, value in (
            ("kept_models", "Models that operators want kept.", "models"),
            ("kept_below_target", "Of these, models that have fewer copies than they want.", "below_target"),
            ("kept_missing_bytes", "Bytes of copies that are to be made.", "missing_bytes"),
            ("kept_refusals", "Nodes that refuse to keep a part, per model.", "refusals"),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"p2pcache_tracker_{name}", text, value=figures[value])

    def _swarms(self) -> Iterator[Metric]:
        labels = ["model", "digest"]
        bytes_taken = CounterMetricFamily(
            "p2pcache_tracker_swarm_received_bytes", "Bytes that a model's members took, by source.",
            labels=[*labels, "source"],
        )  # fmt: skip
        gauges = {
            name: GaugeMetricFamily(f"p2pcache_tracker_swarm_{name}", text, labels=labels)
            for name, text in (
                ("size_bytes", "Size of the model, as members tell."),
                ("members", "Nodes that have or want some of the model."),
                ("complete_members", "Nodes that have all of the model."),
                ("wanting_members", "Nodes that pull the model."),
                (
                    "leases_limit",
                    "Runs that may be read from the origin at once, as its way was measured.",
                ),
            )
        }
        for swarm in heapq.nlargest(MAX_SWARMS, self._tracking.swarms.values(), key=_interest):
            key, ledger = [swarm.ledger.label, swarm.digest], swarm.ledger
            for source, count in zip(("peer", "origin", "local"), ledger.taken, strict=True):
                bytes_taken.add_metric([*key, source], count)
            gauges["size_bytes"].add_metric(key, ledger.total_bytes)
            gauges["members"].add_metric(key, len(swarm.roster.members))
            gauges["complete_members"].add_metric(key, len(swarm.roster.complete))
            gauges["wanting_members"].add_metric(key, len(swarm.book.readers.working))
            gauges["leases_limit"].add_metric(key, swarm.book.readers.concurrency.limit)
        yield bytes_taken
        yield from gauges.values()


def _interest(swarm: SwarmTracker) -> tuple[int, int]:
    return len(swarm.book.readers.working), len(swarm.roster.members)
