"""What the coordinator wants done: messages, dials, reads, notices for people."""

from dataclasses import dataclass

from p2pcache.core.membership.dialback import Dial
from p2pcache.core.membership.running_pull import PullEnd
from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId, RunIndex


@dataclass(slots=True)
class Send:
    """Send a message to a member (dropped if its connection is gone: it will announce again)."""

    node: NodeId
    message: m.ToAgent


@dataclass(slots=True)
class Close:
    """End a member's connection."""

    node: NodeId
    reason: str


@dataclass(slots=True)
class DialBack:
    """See whether a member can be dialled where it says; ends in `TrackerState.on_dial_ended`."""

    node: NodeId
    dial: Dial


@dataclass(slots=True)
class Unreached:
    """People should know: others couldn't get from a member what it has of a model."""

    node: NodeId
    digest: str  # empty: of no model, since the member couldn't be dialled


@dataclass(slots=True)
class Silent:
    """People should know: a member says that it has runs of a model, and delivers none when asked."""

    node: NodeId
    digest: str


@dataclass(slots=True)
class StorageNotice:
    """People should know what a member said of a model's bytes in storage, and what became of it."""

    node: NodeId
    digest: str
    text: str


@dataclass(slots=True)
class Joined:
    """People should know: a node is a member from now on."""

    node: NodeId


@dataclass(slots=True)
class Left:
    """People should know: a node is a member no longer."""

    node: NodeId


@dataclass(slots=True)
class Shunned:
    """People should know: a member sent wrong bytes of a model, and nobody asks it for that model any more."""

    node: NodeId
    digest: str


@dataclass(slots=True)
class Stopped:
    """People should know: a model's bytes in storage are wrong, and nobody gets leases for it."""

    node: NodeId  # one that read them wrong
    digest: str


@dataclass(slots=True)
class PullEnded:
    """People should know: a member fetches a model no longer."""

    node: NodeId
    digest: str  # empty: the pull failed before it was known
    label: str  # a ref of the model, or ""
    end: PullEnd
    code: int  # exit code, as the member tells; 0 where its node is gone
    share: float  # of the model that it has, 0 to 1
    seconds: float
    total_bytes: int  # of the model
    taken: tuple[
        int, int, int
    ]  # bytes that the pull brought: from peers, the origin, the member's own cache


@dataclass(slots=True)
class ReadRun:
    """Read a run from the origin and prove it, as a witness; always ends in `TrackerState.on_witness_report`."""

    node: NodeId  # the member that read it wrong
    digest: str
    run: RunIndex


Output = (
    Send | Close | DialBack | Unreached | Silent | StorageNotice | ReadRun | Joined | Left | Shunned
    | Stopped | PullEnded
)  # fmt: skip
