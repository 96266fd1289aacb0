"""What Prometheus sees of the tracker: gathered at scrape time from the parts that keep the counts."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import p2pcache
from p2pcache.core.tracking import Tracking
from p2pcache.io.tls import Tls, certificate_metrics
from p2pcache.tracker.asks import Asks
from p2pcache.tracker.catalog import Catalog
from p2pcache.tracker.members import Members


class TrackerMetrics(Collector):
    """The tracker's counters. Nothing is counted twice: each value has one owner."""

    def __init__(
        self,
        *,
        tracking: Tracking,
        members: Members,
        asks: Asks,
        catalog: Catalog,
        ready: Callable[[], bool],
        tls: Tls | None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._tracking = tracking
        self._members = members
        self._asks = asks
        self._catalog = catalog
        self._ready = ready
        self._tls = tls
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering must not need a running tracker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        yield from self._gauges()
        totals = self._tracking.totals()
        for name, text, value in (
            ("leases_granted", "Runs that nodes were told to read from the origin.", totals.granted),
            ("rescues", "Runs granted again though a live node had them.", totals.rescues),
            ("polls", "Times that a swarm was asked what it has.", totals.polls),
            ("handshakes_refused", "Connections that failed to become members.",
             self._members.refused + (self._tls.refused if self._tls is not None else 0)),
        ):  # fmt: skip
            yield CounterMetricFamily(f"p2pcache_tracker_{name}", text, value=value)
        kinds = self._members.messages.items()
        reads = self._catalog.reads.items()
        asks = self._asks.counts.items()
        for name, text, labels, values in (
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
        swarms = self._tracking.swarms.values()
        for name, text, value in (
            ("ready", "1 when the origin answers.", int(self._ready())),
            ("members", "Live nodes.", len(self._tracking.registry.nodes)),
            ("connections", "Open member connections.", len(self._members)),
            ("swarms", "Models that a live node has or wants.", len(swarms)),
            ("leases_in_flight", "Runs that are read from the origin now.",
             sum(len(swarm.book.leases) for swarm in swarms)),
            ("swarms_stopped", "Models whose origin bytes are wrong.",
             sum(swarm.book.stopped is not None for swarm in swarms)),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"p2pcache_tracker_{name}", text, value=value)
