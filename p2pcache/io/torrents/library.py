"""libtorrent, which not everybody has installed, and what every session of ours has in common."""

import contextlib
import os
import resource
from collections.abc import Mapping
from typing import Any

from p2pcache.errors import UsageError

MEMORY_BYTES = 1 << 30  # of a process that speaks to strangers; files that it reads are page cache
_NICE = 5
PEERS = 200  # connections of one session
_DISK_BYTES = 16 << 20  # that wait for the disk; more only hides that it is slow
_REQUESTS = 500  # that one peer may have waiting, of 16 KiB each

# Nobody is told of us but the trackers and peers that are named: models are no public files.
_SETTINGS: dict[str, object] = {
    "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "user_agent": "p2pcache", "peer_fingerprint": "-PC0100-", "anonymous_mode": False,
    "connections_limit": PEERS, "max_queued_disk_bytes": _DISK_BYTES,
    "max_allowed_in_request_queue": _REQUESTS, "alert_queue_size": 10_000,
    # uTP gives way to all other traffic by itself (BEP 29); TCP isn't held back for its sake.
    "mixed_mode_algorithm": 0,
    # Long lines lose packets without being full. With libtorrent's own 100 ms and 3,000 bytes a window is halved there
    # faster than it grows again. It still gives way by the delay of a queue, and at most once a second by a loss.
    "utp_cwnd_reduce_timer": 1000, "utp_gain_factor": 12_000,
    # A cap is what the link carries of torrents, headers included.
    "rate_limit_ip_overhead": True,
}  # fmt: skip


def libtorrent() -> Any:
    """The module.

    Raises:
        UsageError: it isn't installed.
    """
    try:
        import libtorrent as module
    except ImportError:
        raise UsageError(
            "torrents need libtorrent, which isn't installed: pip install 'p2pcache[torrent]'"
        ) from None
    return module


def limit_process() -> None:
    """Bound this process, which speaks to strangers, in memory and priority."""
    # A service manager may forbid both, and has limits of its own.
    with contextlib.suppress(OSError, ValueError):
        os.nice(_NICE)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def new_session(more: Mapping[str, object]) -> Any:
    """A session with our settings and these, which win."""
    lt = libtorrent()
    category = lt.alert_category
    mask = int(category.status | category.error | category.storage)
    params = lt.session_params({**_SETTINGS, "alert_mask": mask, **more})
    return lt.session(params)
