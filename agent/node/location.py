"""The node's location: rack, site and address, from settings or from labels of its Kubernetes Node."""

import asyncio
import contextlib
import logging
import socket

import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.core.protocol import address as addresses
from p2pcache.core.protocol.messages import unfit_text
from p2pcache.errors import P2PCacheError, RemoteProtocolError, UsageError
from p2pcache.io.host.kube import NodeLabels, in_cluster

log = logging.getLogger(__name__)

# Pauses after failures: a node that has just booted has no network yet.
TRIES_S = (1.0, 2.0, 4.0, 8.0)

LABELS = ("rack", "site", "node_name")  # settings that every member of the cluster gets


def check(settings: AgentSettings) -> None:
    """Check the settings that other nodes get. Without a tracker they don't get rack, site and name.

    Raises:
        UsageError: a tracker would refuse one of them, or no node could dial the address; it names the setting.
    """
    advertised(settings.advertise)
    for setting in LABELS if settings.tracker else ():
        check_label(setting, getattr(settings, setting))


def advertised(address: str) -> str:
    """The address in the form that other nodes get; "" stays "": the operator set none.

    Raises:
        UsageError: it can't be dialled.
    """
    if not address:
        return ""
    with contextlib.suppress(RemoteProtocolError):
        return addresses.canonical(address)
    raise UsageError(
        f"advertise is no address that other nodes can dial: {address[:80]!r}; "
        "expected HOST:PORT, for example 10.0.0.7:7401 or [fd00::7]:7401"
    )


def check_label(setting: str, text: str) -> None:
    """Check one name of a node or of its place.

    Raises:
        UsageError: other nodes would refuse it.
    """
    if why := unfit_text(text):
        raise UsageError(
            f"{setting} {why}: {text[:80]!r}; change P2PCACHE_{setting.upper()}, the flag or the settings file"
        )


def own_name(settings: AgentSettings) -> str:
    """The node's name for people."""
    name = settings.node_name or socket.gethostname()
    return "".join(c if c.isprintable() else "?" for c in name)  # a host's name can be any bytes


async def located(settings: AgentSettings, node: NodeLabels | None = None) -> AgentSettings:
    """The settings with rack and site, read from the Node's labels where they ask for it.

    If the Node can't be read, or has no such label, the agent goes on without it and logs a warning.

    Args:
        settings: what the operator set; a rack or site that is there stays.
        node: the Node; default: the one named `node_name` in this pod's cluster.

    Raises:
        UsageError: labels are to be read, and this isn't a pod; or `check` fails.
    """
    check(settings)
    keys = {"rack": settings.kubernetes_rack_label, "site": settings.kubernetes_site_label}
    keys = {part: key for part, key in keys.items() if key and not getattr(settings, part)}
    if not keys:
        return settings
    labels = await _read(node or in_cluster(own_name(settings)))
    for part, key in keys.items():
        if labels is not None and not labels.get(key):
            log.warning("no %s: this Node has no label %s", part, key)
    found = {part: (labels or {}).get(key, "") for part, key in keys.items()}
    log.info("rack %r, site %r", found.get("rack", settings.rack), found.get("site", settings.site))
    return msgspec.structs.replace(settings, **found)


async def _read(node: NodeLabels) -> dict[str, str] | None:
    for pause_s in (*TRIES_S, None):
        try:
            return await node.fetch_labels()
        except P2PCacheError as error:
            if pause_s is None or not error.retryable:
                log.warning("rack and site are unknown: %s", error)
                return None
        await asyncio.sleep(pause_s)
    return None
