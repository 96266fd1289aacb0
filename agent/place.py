"""This node's rack and site, where a Kubernetes cluster knows them: from labels of its Node."""

import asyncio
import logging
import socket

import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import P2PCacheError
from p2pcache.io.kube import NodeLabels, in_cluster

log = logging.getLogger(__name__)

TRIES_S = (
    1.0,
    2.0,
    4.0,
    8.0,
)  # pauses after a failure; a node that has just booted has no network yet


async def settled(settings: AgentSettings, node: NodeLabels | None = None) -> AgentSettings:
    """The settings with rack and site, read from the Node's labels where they ask for it.

    A Node that can't be read, or has no such label, is no reason to serve nobody: the agent goes on
    without, and says so.

    Args:
        settings: what the operator set; a rack or site that is there stays.
        node: the Node; default: the one that `node_name` names, of this pod's cluster.

    Raises:
        UsageError: labels are to be read, and this isn't a pod.
    """
    keys = {"rack": settings.kubernetes_rack_label, "site": settings.kubernetes_site_label}
    keys = {part: key for part, key in keys.items() if key and not getattr(settings, part)}
    if not keys:
        return settings
    labels = await _read(node or in_cluster(settings.node_name or socket.gethostname()))
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
