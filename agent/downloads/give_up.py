"""The errors that end a download without hope, in words for people."""

from typing import TYPE_CHECKING

from p2pcache.core.format.source_record import CHANGED
from p2pcache.core.protocol.messages import Stop
from p2pcache.core.protocol.odd_reason import OddReason
from p2pcache.errors import (
    NoSpace,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
)
from p2pcache.ids import RunIndex
from p2pcache.io.models.store import Store

if TYPE_CHECKING:
    from p2pcache.agent.tracker_link import TrackerLink

CUT_OFF = (
    "no other node that has it or is getting it can be reached: all that is missing is read from storage here; "
    "is the agents' port open between the nodes (firewall, NetworkPolicy)?"
)
HOPELESS_S = 90.0  # longer than the life of a lease, the grace without a tracker and an owner's patience together
REFUSED_S = (
    15.0  # storage that refuses this node may serve others, and they bring a run within seconds
)


def hopeless(
    quiet_s: float, link: "TrackerLink | None", storage: P2PCacheError | None, *,
    asking: bool, reading: bool, others: bool,
) -> P2PCacheError | None:  # fmt: skip
    """The error to end a download with; None while there is hope.

    Args:
        quiet_s: seconds since the last byte.
        link: to the tracker, if one is configured.
        storage: why the last read of the origin failed; None: it didn't.
        asking: whether a request to a peer is in flight.
        reading: whether a read of the origin is in flight.
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
        why = f"{link.trouble}, and no known peer has the rest"
    return Unreachable(f"{waited}: {why}; pull again when that is mended: it resumes")


def wrong_at_origin(why: str) -> OriginChanged:
    """The origin doesn't hold the bytes that were pushed; `why`: the fault of the read."""
    if why.endswith(CHANGED):
        return OriginChanged(why)
    why = why.removesuffix("; push it again")
    return OriginChanged(
        f"the origin doesn't hold this model as it was pushed ({why}); push it again with --repair"
    )


def stopped(said: Stop, seen: str) -> OriginChanged:
    """The error for a model that the tracker has stopped.

    Args:
        said: the tracker's message.
        seen: the fault of this node's own read of the run; "": it read none wrong.
    """
    if not said.odd:
        return wrong_at_origin(seen or said.reason)
    why = seen.removesuffix("; push it again") or f"run {said.run} is gone there, or doesn't match"
    return OriginChanged(
        f"storage as this node reads it doesn't hold this model ({why}), but {said.reason}: look at the mount "
        "or bucket, the origin's URL and the credentials of this node, then pull again"
    )


def read_wrong(run: RunIndex, seen: str, link: "TrackerLink | None") -> OriginChanged:
    """The error for a run that this node has read wrong twice without a lease.

    Args:
        run: its index.
        seen: the fault of the last read; "": none is known.
        link: to the tracker, if one is configured; it couldn't be asked.
    """
    why = seen or f"run {run} doesn't match its digests"
    if link is None:
        return wrong_at_origin(why)
    nobody = "neither the tracker nor another node could be asked"
    return stopped(Stop("", run, nobody, OddReason.NOBODY_ELSE_READS), why)


def odd_storage(model: str, why: str) -> str:
    """The warning for a model that other nodes brought although this node read storage wrong."""
    why = why.removesuffix("; push it again")
    return (
        f"storage as this node reads it doesn't hold {model} ({why}), but other nodes brought it: look at the mount "
        "or bucket, the origin's URL and the credentials of this node"
    )


def disk_failed(store: Store) -> P2PCacheError:
    """The error for a failed write into the cache: the cache dir is gone, or what the disk said."""
    try:
        free_bytes = store.usage().free_bytes
    except P2PCacheError as error:
        return error
    if (trouble := store.trouble) is not None:
        return type(trouble)(f"{trouble}; a pull that is run again resumes")
    return NoSpace(
        f"writing to the cache failed with {free_bytes} bytes free on its disk; "
        "make room (`p2pcache rm` or `p2pcache prune --all`), or if there is enough see whether the disk fails "
        "(`dmesg`), and pull again: it resumes"
    )
