"""What Prometheus sees of an agent: counters gathered at scrape time from the parts that keep them."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import p2pcache
from p2pcache.agent.downloads import Downloads
from p2pcache.agent.parts import Parts
from p2pcache.core.events import Source
from p2pcache.io.tls import certificate_metrics

_SOURCES = {Source.ORIGIN: "origin", Source.PEER: "peer", Source.LOCAL: "local"}


class AgentMetrics(Collector):
    """The agent's figures of merit. Nothing is counted twice: each value has one owner."""

    def __init__(self, parts: Parts, downloads: Downloads, ready: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self._parts = parts
        self._downloads = downloads
        self._ready = ready
        self.registry.register(self)

    def totals(self) -> dict[str, int]:
        """Bytes that this process received by source, and served to peers."""
        taken = dict.fromkeys(_SOURCES.values(), 0)
        for swarm in self._downloads.swarms.values():
            for source, name in _SOURCES.items():
                taken[name] += swarm.traffic[source]
        return {**taken, "served": self._parts.net.stats.bytes_served}

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering must not need a running agent."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        totals = self.totals()
        served = totals.pop("served")
        received = CounterMetricFamily(
            "p2pcache_agent_received_bytes", "Proved bytes by source (origin, peer, local copy).",
            labels=["source"],
        )  # fmt: skip
        for name, count in totals.items():
            received.add_metric([name], count)
        yield received
        yield CounterMetricFamily(
            "p2pcache_agent_served_bytes", "Payload bytes served to peers.", value=served
        )
        yield CounterMetricFamily(
            "p2pcache_agent_mismatches", "Chunks from peers that didn't match the manifest.",
            value=self._parts.net.stats.mismatches,
        )  # fmt: skip
        yield from self._gauges()
        yield from certificate_metrics("agent", self._parts.tls)
        build = InfoMetricFamily("p2pcache_agent_build", "The running release.")
        build.add_metric([], {"version": p2pcache.__version__})
        yield build

    def _gauges(self) -> Iterator[Metric]:
        cached, free = self._parts.store.usage()
        link = self._parts.link
        for name, text, value in (
            ("ready", "1 when tracker and origin are usable.", int(self._ready())),
            (
                "tracker_connected",
                "1 while this agent is a member.",
                int(link is not None and link.connected),
            ),
            ("cache_bytes", "Bytes of blobs in the cache.", cached),
            ("cache_free_bytes", "Free bytes on the cache's disk.", free),
            (
                "models",
                "Models that this agent serves, partial ones included.",
                len(self._downloads.swarms),
            ),
            ("pulls_running", "Pulls that run now.", len(self._downloads.running)),
            (
                "peer_connections",
                "Open peer connections, both directions.",
                self._parts.net.stats.connections,
            ),
            ("upload_load", "Uploads active and queued.", self._parts.net.load),
        ):
            yield GaugeMetricFamily(f"p2pcache_agent_{name}", text, value=value)
        pulls = self._downloads.history
        yield CounterMetricFamily(
            "p2pcache_agent_pulls", "Pulls that completed.", value=pulls.count
        )
        yield CounterMetricFamily(
            "p2pcache_agent_pull_seconds",
            "Time that completed pulls took, summed.",
            value=pulls.seconds,
        )
        yield CounterMetricFamily(
            "p2pcache_agent_pull_bytes",
            "Bytes of the models of completed pulls, summed.",
            value=pulls.bytes,
        )
