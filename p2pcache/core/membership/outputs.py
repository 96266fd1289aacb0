"""What the coordinator wants done: messages, dials, reads, notices for people."""

from dataclasses import dataclass
from enum import StrEnum

from p2pcache.core.membership.reachability import Dial
from p2pcache.core.membership.usage_ledger import PullEnd
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


class Event(StrEnum):
    """What people should know of a member."""

    JOINED = "joined"  # it is a member from now on
    LEFT = "left"  # it is none any longer, and said goodbye
    LOST = "lost"  # it fell silent
    UNREACHED = "unreached"  # it can't be dialled, or others don't get what it says it has
    SHUNNED = "shunned"  # it sent wrong bytes: nobody asks it for that model any more
    STOPPED = "stopped"  # it read wrong bytes, as others do: nobody gets leases for the model
    DOUBTED = "doubted"  # what it said of a model's bytes in storage, or what became of that: see the text


@dataclass(slots=True)
class Notice:
    """People should know: an event of a member."""

    event: Event
    node: NodeId
    digest: str = ""  # of the model that it is about
    text: str = ""  # more about it


@dataclass(slots=True)
class PullEnded:
    """People should know: a member fetches a model no longer."""

    node: NodeId
    said: m.EndedPull  # by the member; or by us, with code 0, where the member is gone
    end: PullEnd
    share: float  # of the model that it has, 0 to 1


@dataclass(slots=True)
class ReadRun:
    """Read a run from the origin and prove it, as a witness; always ends in `TrackerState.on_witness_report`."""

    node: NodeId  # the member that read it wrong
    digest: str
    run: RunIndex


Output = Send | Close | Dial | Notice | ReadRun | PullEnded
