"""Prometheus metrics of a daemon's certificate."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from p2pcache.io.security.tls import Tls


def certificate_metrics(room: str, tls: Tls | None) -> Iterator[Metric]:
    """Its end, when that is warned of, and whether newer files can't be used; none without one."""
    if tls is None:
        return
    yield GaugeMetricFamily(
        f"p2pcache_{room}_certificate_expiry_timestamp_seconds",
        "When the certificate in use ends, unix time.",
        value=tls.expires_at,
    )
    yield GaugeMetricFamily(
        f"p2pcache_{room}_certificate_warn_timestamp_seconds",
        "From when on the end of the certificate in use is warned of, unix time.",
        value=tls.now.warn_at,
    )
    yield GaugeMetricFamily(
        f"p2pcache_{room}_certificate_reload_failed",
        "1 while newer certificate files can't be used.",
        value=int(bool(tls.trouble)),
    )
