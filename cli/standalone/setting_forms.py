"""The forms of settings, such as those of addresses and labels, which a daemon refuses at its start. Asks nobody."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec

from p2pcache.agent.settings import DOORS
from p2pcache.core.pool.selector import checked_labels
from p2pcache.core.protocol.address import tracker_urls
from p2pcache.core.protocol.tokens import check_namespaces
from p2pcache.core.units import parse_part
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io.config import Loaded

ANY_DISK = 1 << 60  # bytes: a share of it is something


def check_forms(section: str, loaded: Loaded[Any], *, but: Collection[str] = ()) -> None:
    """Check the forms of addresses, URLs, names and shares, as a daemon does.

    Args:
        section: of the settings.
        loaded: with the sources of the values.
        but: settings that are passed over.

    Raises:
        UsageError: a value has the wrong form; the message begins with its source.
    """
    settings: msgspec.Struct = loaded.settings
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        given = value not in ("", None) and loaded.sources[field] != "default"
        if field not in _CHECKS or field in but or not given:
            continue
        try:
            _CHECKS[field](value)
        except UsageError as error:
            says = str(error).removeprefix(f"{field} ").removeprefix(f"{field}: ")
            raise UsageError(f"{loaded.sources[field]}: [{section}] {field}: {says}") from None
        except P2PCacheError:
            continue  # this machine may lack a mount or a profile; the form is right


# Each imports what it needs: a pull that has none of these settings pays for nothing.


def _listen(value: str) -> None:
    from p2pcache.io.http.server import parse_listen

    parse_listen(value)


def _agent(value: str) -> None:
    from p2pcache.io.http.client import AgentClient

    AgentClient(value)


def _origin_url(value: str) -> None:
    from p2pcache.io.origins import open_origin

    open_origin(value).close()


def _governor_floor(value: float) -> None:
    from p2pcache.agent.node.governor_loop import check_floor

    check_floor(value)


def _engine_metrics(value: str) -> None:
    from p2pcache.io.host.engine_latency import EngineMetrics

    EngineMetrics(value, metric="", latency_s=1.0)


def _quota(value: str) -> None:
    parse_part(value, ANY_DISK)


def _quotas(value: str) -> None:
    from p2pcache.core.pool.namespace_quotas import parse_quotas

    parse_quotas(value)


def _sites(value: str) -> None:
    from p2pcache.agent.far_sites.far_sites import parse_sites

    parse_sites(value)


def _required(value: str) -> None:
    from p2pcache.agent.trust.required_signatures import parse_required

    parse_required(value)


def _one_at_least(value: int) -> None:
    if value < 1:
        raise UsageError("must be at least 1")


def _advertise(value: str) -> None:
    from p2pcache.agent.node.location import advertised

    advertised(value)


def _place(setting: str, value: str) -> None:
    from p2pcache.agent.node.location import check_label

    check_label(setting, value)


def _labels(value: str) -> None:
    checked_labels(value.split(","))


def _namespaces(value: str) -> None:
    check_namespaces(tuple(value.replace(",", " ").split()))


def _congestion(value: str) -> None:
    from p2pcache.io.peers.transport.tcp_info import check_congestion_control

    check_congestion_control(value)


_CHECKS: dict[str, Callable[[Any], object]] = {
    "advertise": _advertise, "tracker": tracker_urls, "origin": _origin_url,
    **dict.fromkeys(("listen", "api_listen", "health_listen", "torrent_http_listen", *DOORS), _listen),
    **{setting: partial(_place, setting) for setting in ("rack", "site", "node_name")},
    "labels": _labels, "client_namespaces": _namespaces, "congestion_control": _congestion,
    "agent": _agent, "governor_floor": _governor_floor, "engine_metrics": _engine_metrics,
    "cache_quota": _quota, "namespace_quotas": _quotas, "torrent_sites": _sites, "require_signature": _required,
    "leases_in_flight": _one_at_least, "neighbours": _one_at_least,
}  # fmt: skip
