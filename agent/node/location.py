"""Where this node is: what the operator says of it, or a Kubernetes cluster by labels of its Node."""

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

TRIES_S = (
    1.0,
    2.0,
    4.0,
    8.0,
)  # pauses after a failure; a node that has just booted has no network yet

LABELS = ("rack", "site", "node_name")  # settings that every member of the cluster is told


def check(settings: AgentSettings) -> None:
    """Whether others can be told where this node is. Without a tracker nobody is told of rack, site or name.

    Raises:
        UsageError: a tracker would refuse it again and again, or nobody could dial it; it names the setting.
    """
    advertised(settings.advertise)
    for setting in LABELS if settings.tracker else ():
        check_label(setting, getattr(settings, setting))


def advertised(address: str) -> str:
    """The address as other nodes are told it; "" stays "": the operator named none.

    Raises:
        UsageError: they couldn't dial it.
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
    """Whether others can be told this name of a node or of its place.

    Raises:
        UsageError: they can't.
    """
    if why := unfit_text(text):
        raise UsageError(
            f"{setting} {why}: {text[:80]!r}; change P2PCACHE_{setting.upper()}, the flag or the settings file"
        )


def own_name(settings: AgentSettings) -> str:
    """What people call this node."""
    name = settings.node_name or socket.gethostname()
    return "".join(c if c.isprintable() else "?" for c in name)  # a host's name can be any bytes


async def settled(settings: AgentSettings, node: NodeLabels | None = None) -> AgentSettings:
    """The settings with rack and site, read from the Node's labels where they ask for it.

    A Node that can't be read, or has no such label, is no reason to serve nobody: the agent goes on
    without, and says so.

    Args:
        settings: what the operator set; a rack or site that is there stays.
        node: the Node; default: the one that `node_name` names, of this pod's cluster.

    Raises:
        UsageError: labels are to be read, and this isn't a pod; or what is set can't be told to others.
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
            return await node.read()
        except P2PCacheError as error:
            if pause_s is None or not error.retryable:
                log.warning("rack and site are unknown: %s", error)
                return None
        await asyncio.sleep(pause_s)
    return None
