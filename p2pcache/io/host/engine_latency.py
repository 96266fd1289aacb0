"""An engine's latency, from its Prometheus metrics."""

import math
from collections.abc import Iterable

import aiohttp
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from p2pcache.errors import UsageError
from p2pcache.io import pools
from p2pcache.io.log import redact

QUANTILE = 0.9  # of the requests between two samples: few are needed, and one outlier isn't enough
ANSWER_S = 2.0  # an engine that is slower than this has other troubles
MAX_BYTES = 4 << 20  # vLLM says some 100 kB
_FEWEST = 3  # requests for a quantile


class EngineMetrics:
    """Asks one engine. Each answer is about the time since the one before."""

    def __init__(self, url: str, metric: str, latency_s: float) -> None:
        """Nothing is asked yet.

        Args:
            url: of its metrics.
            metric: a histogram of seconds (its p90 counts) or a gauge of seconds.
            latency_s: the highest good latency; that is level 1.

        Raises:
            UsageError: not a URL, or not a latency.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"engine_metrics {redact(url)}: not a URL, for example http://127.0.0.1:8000/metrics"
            )
        if latency_s <= 0:
            raise UsageError(
                "engine_latency_s must be above 0: the latency that is just good enough"
            )
        self._url = url
        self._metric = metric
        self._latency_s = latency_s
        self._before: dict[float, float] = {}
        self.trouble = ""  # why there was no answer last time, for people

    async def level(self) -> float | None:
        """Latency over the allowed one; None: the engine doesn't report it.

        An engine that answers and had no requests is at 0.
        """
        try:
            text = await self._ask()
            families = await pools.STEPS.run(lambda: list(text_string_to_metric_families(text)))
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            why = str(error) or type(error).__name__
            self.trouble = redact(f"the engine's metrics at {self._url}: {why}")
            self._before = {}
            return None
        level = self._read(families)
        self.trouble = (
            "" if level is not None else redact(f"{self._url} has no metric {self._metric}")
        )
        return level

    async def _ask(self) -> str:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self._url, raise_for_status=True) as answer,
        ):
            body = bytearray()
            async for part in answer.content.iter_chunked(1 << 16):
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes")
            return body.decode()

    def _read(self, families: Iterable[Metric]) -> float | None:
        for family in families:
            if family.name != self._metric:
                continue
            if family.type == "histogram":
                return self._of_histogram(family)
            values = [sample.value for sample in family.samples if math.isfinite(sample.value)]
            return max(0.0, *values) / self._latency_s if values else None
        return None

    def _of_histogram(self, family: Metric) -> float:
        counts: dict[float, float] = {}
        for sample in family.samples:  # of several models or ranks: all requests together
            if sample.name.endswith("_bucket") and "le" in sample.labels:
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
        before, self._before = self._before, counts
        if not before:
            return 0.0
        return quantile(counts, before) / self._latency_s


def quantile(counts: dict[float, float], before: dict[float, float]) -> float:
    """Upper bound of the bucket with the quantile of the requests between two samples; 0: too few.

    Beyond the last finite bucket it is that bucket's bound.
    """
    fresh = {bound: counts[bound] - before.get(bound, 0.0) for bound in sorted(counts)}
    total = fresh.get(math.inf, 0.0)
    if total < _FEWEST or any(count < 0 for count in fresh.values()):  # it restarted
        return 0.0
    for bound, count in fresh.items():
        if count >= QUANTILE * total and bound < math.inf:
            return bound
    return max((bound for bound in fresh if bound < math.inf), default=0.0)
