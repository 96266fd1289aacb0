"""What the tracker's mind wants done. Pure."""

from dataclasses import dataclass

from p2pcache.core.membership.dialback import Dial
from p2pcache.core.protocol import messages as m


@dataclass(slots=True)
class Send:
    """Send a message to a member (dropped if its connection is gone: it will announce again)."""

    node: int
    message: m.ToAgent


@dataclass(slots=True)
class Close:
    """End a member's connection."""

    node: int
    reason: str


@dataclass(slots=True)
class DialBack:
    """See whether a member can be dialled where it says; `Tracking.dialled` is told how it ends."""

    node: int
    dial: Dial


@dataclass(slots=True)
class Unreached:
    """People should know: what a member has read of a model, nobody could get from it."""

    node: int
    digest: str  # empty: of no model, it could not be dialled


@dataclass(slots=True)
class Silent:
    """People should know: a member has runs of a model, as it says, and delivers none of them to who asks."""

    node: int
    digest: str


@dataclass(slots=True)
class Spoken:
    """People should know who said what of a model's bytes in storage, and what became of it."""

    node: int
    digest: str
    text: str


@dataclass(slots=True)
class ReadRun:
    """Read a run from the origin and prove it, as a witness; `Tracking.witnessed` is told how it ends, always."""

    node: int  # because of whose word
    digest: str
    run: int


Output = Send | Close | DialBack | Unreached | Silent | Spoken | ReadRun
