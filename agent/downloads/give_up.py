"""Why a pull will not end, in words."""

from p2pcache.agent.tracker_link import TrackerLink
from p2pcache.core.leases.origin_integrity import Why
from p2pcache.core.protocol.messages import Stop
from p2pcache.errors import (
    NoSpace,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
)
from p2pcache.io.models.store import Store

CUT_OFF = (
    "no other node that has it or is getting it can be reached: all that is missing is read from storage here; "
    "is the agents' port open between the nodes (firewall, NetworkPolicy)?"
)
HOPELESS_S = 90.0  # longer than a lease TTL, the fallback's grace and an owner's patience together
REFUSED_S = 15.0  # storage that refuses us may serve others, who bring a run within some seconds


def hopeless(
    quiet_s: float, link: TrackerLink | None, storage: P2PCacheError | None, *,
    asking: bool, reading: bool, others: bool,
) -> P2PCacheError | None:  # fmt: skip
    """The error to end a pull with; None while there is hope.

    Args:
        quiet_s: how long no byte has come.
        link: to the tracker, if one is configured.
        storage: why the last read of the origin brought nothing; None: it brought what it should.
        asking: whether a peer was asked for something.
        reading: whether something is being read from the origin.
        others: whether other nodes have the model or are getting it.
    """
    if storage is not None and not storage.retryable and not asking:
        patience_s = REFUSED_S if others else 0.0
        return type(storage)(str(storage)) if quiet_s >= patience_s else None
    if quiet_s < HOPELESS_S:
        return None
    waited = f"no byte came for {quiet_s:.0f} s"
    if storage is not None:
        return OriginUnavailable(f"{waited}: {storage}; pull again: it resumes")
    if asking or reading:
        return None
    why = "no peer has the rest and no lease to read the origin was granted; look at `p2pcache status`"
    if link is not None and not link.connected:
        why = f"the tracker {link.url} isn't reachable ({link.last_error}), and no known peer has the rest"
    return Unreachable(f"{waited}: {why}; pull again when that is mended: it resumes")


def wrong_at_origin(why: str) -> OriginChanged:
    """What was pushed isn't what the origin holds: other bytes, fewer, or none."""
    why = why.removesuffix("; push it again")
    return OriginChanged(
        f"the origin doesn't hold this model as it was pushed ({why}); push it again with --repair"
    )


def stopped(said: Stop, seen: str) -> OriginChanged:
    """What the tracker found of a model's bytes in storage; `seen`: why this node's own read was wrong, if it was."""
    if not said.odd:
        return wrong_at_origin(seen or said.reason)
    why = seen.removesuffix("; push it again") or f"run {said.run} is gone there, or doesn't match"
    return OriginChanged(
        f"storage as this node reads it doesn't hold this model ({why}), but {said.reason}: look at the mount "
        "or bucket, the origin's URL and the credentials of this node, then pull again"
    )


def read_wrong(run: int, seen: str, link: TrackerLink | None) -> OriginChanged:
    """What this node has read wrong twice without a lease; `link`: to a tracker that couldn't be asked."""
    why = seen or f"run {run} doesn't match its digests"
    if link is None:
        return wrong_at_origin(why)
    nobody = "neither the tracker nor another node could be asked"
    return stopped(Stop("", run, nobody, Why.NOBODY_ELSE_READS), why)


def odd_storage(model: str, why: str) -> str:
    """A model is whole, though this node's own storage doesn't hold all of it."""
    why = why.removesuffix("; push it again")
    return (
        f"storage as this node reads it doesn't hold {model} ({why}), but other nodes brought it: look at the mount "
        "or bucket, the origin's URL and the credentials of this node"
    )


def disk_failed(store: Store) -> P2PCacheError:
    """The cache's disk took no more: for want of space, or because the cache dir is gone."""
    try:
        free_bytes = store.usage().free_bytes
    except P2PCacheError as error:
        return error
    return NoSpace(
        f"writing to the cache failed with {free_bytes} bytes free on its disk (the agent's log says how); "
        "make room (`p2pcache rm` or `p2pcache prune --all`), or if there is enough see whether the disk fails "
        "(`dmesg`), and pull again: it resumes"
    )
