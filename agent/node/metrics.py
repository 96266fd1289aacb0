"""The agent's Prometheus metrics, gathered at scrape time from the parts that keep the counts."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import p2pcache
from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.manager import DownloadManager
from p2pcache.agent.journal import Journal
from p2pcache.agent.node.governor_loop import GovernorLoop
from p2pcache.core.swarm.events import Outcome, Source
from p2pcache.io.event_loop import LoopLag
from p2pcache.io.security.certificate_metrics import certificate_metrics

_PREFIX = "p2pcache_agent_"
# Of errors.py; present from the start, so that rates begin at 0.
_CODES = (0, 3, 4, 5, 6, 7, 8, 9, 10)
_ACTIONS = (
    ("pulls", "pull"),
    ("warms", "warm"),
    ("keeps", "keep"),
    ("pushes", "push"),
    ("removals", "rm"),
    ("evictions", "evict"),
)


class AgentMetrics(Collector):
    """The agent's counters. Each value is kept in one place."""

    def __init__(
        self,
        context: AgentContext,
        downloads: DownloadManager,
        journal: Journal,
        lag: LoopLag,
        ready: Callable[[], bool],
        governor: GovernorLoop,
    ) -> None:
        self.kept: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
        """Bytes of ordered parts that are here; bytes ordered; ordered models that can't be kept."""
        self.registry = CollectorRegistry()
        self._context = context
        self._downloads = downloads
        self._journal = journal
        self._lag = lag
        self._ready = ready
        self._governor = governor
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def totals(self) -> dict[str, int]:
        """Bytes that this process received by source, and served to peers."""
        taken = {source.name.lower(): self._context.tally.taken[source] for source in Source}
        return {**taken, "served": self._context.net.stats.bytes_served}

    def describe(self) -> list[Metric]:
        """No metric in advance: registering must not need a running agent."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._ended()
        yield from certificate_metrics("agent", self._context.tls)
        build = InfoMetricFamily(f"{_PREFIX}build", "The running release.")
        build.add_metric([], {"version": p2pcache.__version__})
        yield build

    def _counters(self) -> Iterator[Metric]:
        totals, stats, tally = self.totals(), self._context.net.stats, self._context.tally
        served = totals.pop("served")
        link = self._context.link
        yield _labelled(
            "received_bytes", "Proved bytes by source (origin, peer, local copy).", "source", totals
        )
        for name, text, value in (
            ("served_bytes", "Payload bytes served to peers.", served),
            ("busy_answers", "Requests of peers that we answered BUSY.", stats.busy),
            ("mismatches", "Chunks from peers that didn't match the manifest.", stats.mismatches),
            ("protocol_violations", "Peers dropped for breaking the protocol.", stats.violations),
            ("handshakes_refused", "Peers without a good certificate.", stats.refused),
            ("pull_hits", "Pulls of models that were complete here.", self._journal.hits),
            ("pulled_bytes", "Bytes of models whose pulls completed.", self._journal.pull_bytes),
            ("tracker_losses", "Times that the tracker was lost.", link.losses if link else 0),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=value)
        for name, text, counts in (
            ("requests", "Requests to peers, by how they ended.", tally.requests),
            ("origin_reads", "Reads of runs from the origin, by how they ended.", tally.fetches),
        ):
            ends = {outcome.name.lower(): counts[outcome] for outcome in Outcome}
            yield _labelled(name, text, "outcome", ends)

    def _gauges(self) -> Iterator[Metric]:
        # The janitor looks: a disk that hangs must not hold the loop.
        usage = self._context.usage
        kept_bytes, ordered_bytes, refused = self.kept()
        link, net, running = self._context.link, self._context.net, self._downloads.running
        for name, text, value in (
            ("ready", "1 when tracker and origin are usable.", self._ready()),
            ("tracker_configured", "0 for an agent that works alone.", link is not None),
            ("tracker_connected", "1 while we are a member.", link is not None and link.connected),
            ("last_heartbeat_timestamp_seconds", "When we last told the tracker; 0: never.",
             link.heartbeat_at if link else 0),
            ("cache_bytes", "Bytes of blobs in the cache.", usage.cached_bytes),
            ("cache_free_bytes", "Free bytes on the cache's disk.", usage.free_bytes),
            ("cache_quota_bytes", "What the cache may take (cache_quota); 0: no quota.",
             self._context.store.limits.quota_bytes),
            ("kept_bytes", "Bytes that are here because the cluster keeps them here.", kept_bytes),
            ("ordered_bytes", "Bytes that the cluster orders to be kept here.", ordered_bytes),
            ("keeps_refused", "Models that can't be kept here as ordered.", refused),
            ("models", "Models that we serve, partial ones included.", len(self._downloads.swarms)),
            ("pulls_running", "Pulls that run now.", len(running)),
            ("pull_clients", "Clients that wait for a pull.", sum(d.clients for d in running.values())),
            ("peer_connections", "Open peer connections, both directions.", net.stats.connections),
            ("uploads", "Peers that are sent something, or wait for it.", net.load),
            ("tasks", "Tasks of the event loop: what is being done now.", self._context.tasks.count),
            ("governor_share", "Share of full speed that the governor leaves; 1: all of it.",
             self._governor.limits.share),
            ("governor_strain", "What strains what this host serves most; from 1 we give way.",
             self._governor.limits.strain),
            ("event_loop_lag_seconds", "Longest delay of the event loop in the last minute.",
             self._lag.worst_s),
        ):  # fmt: skip
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))

    def _ended(self) -> Iterator[Metric]:
        ended = self._journal.ended
        for name, action in _ACTIONS:
            seen = {code for kind, code in ended if kind == action}
            counts = {str(code): ended[action, code] for code in sorted({*_CODES, *seen})}
            yield _labelled(name, f"Ended {name}, by exit code.", "exit_code", counts)
        durations = self._journal.durations
        yield HistogramMetricFamily(
            f"{_PREFIX}pull_duration_seconds", "How long completed pulls took.",
            buckets=durations.cumulative(), sum_value=durations.sum_s,
        )  # fmt: skip


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
