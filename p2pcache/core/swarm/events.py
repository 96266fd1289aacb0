"""Everything that can happen to a model's swarm on one node, one class each.

Plain slotted classes: frozen dataclasses cost four times as much to create (1.02 against
0.26 us), and a storm makes millions of them. Sets of runs are bits of an int.
"""

from dataclasses import dataclass
from enum import IntEnum


class Outcome(IntEnum):
    """How a `Request` or a `Fetch` ended. Every command of these two kinds ends exactly once."""

    DONE = 0  # every chunk of the run is proved
    BUSY = 1  # the peer has no free upload slot: ask again later
    REFUSED = 2  # the peer doesn't have it (any more), or lets us have nothing
    MISMATCH = 3  # bytes came that don't match the manifest: blame
    STALLED = 4  # no bytes for too long
    LOST = 5  # the connection broke
    CANCELLED = 6  # we cancelled it
    FAILED = 7  # our own side failed (disk): the download can't go on this way
    UNAVAILABLE = 8  # the origin doesn't answer; retries are used up


class Source(IntEnum):
    """Where the bytes of a proved run came from."""

    PEER = 0
    ORIGIN = 1
    LOCAL = 2  # another blob of this cache


@dataclass(slots=True)
class PeerJoined:
    """A neighbour accepted our JOIN: we can request from it."""

    peer: int
    have: int  # bits over runs
    rtt_s: float = 0.0  # the least that a round trip to it takes; 0: not known


@dataclass(slots=True)
class PeerLeft:
    """The connection on which we request from this neighbour is gone."""

    peer: int


@dataclass(slots=True)
class PeerHas:
    """A batched have-delta, with the peer's load (peers that it serves, or that wait there).

    Without runs: it told us BUSY and has room again.
    """

    peer: int
    runs: int  # bits
    load: int


@dataclass(slots=True)
class RequestEnded:
    """The one end of a `Request` command."""

    request: int
    outcome: Outcome
    waited_s: float = 0.0  # for the answer: the first byte of it, or BUSY; 0: not known


@dataclass(slots=True)
class FetchEnded:
    """The one end of a `Fetch` command."""

    fetch: int
    outcome: Outcome


@dataclass(slots=True)
class RunsProved:
    """Runs that became `have` without a command of ours (local copies, a push into this cache)."""

    runs: int  # bits
    source: Source


@dataclass(slots=True)
class RunsLost:
    """Runs that are `have` no longer: the bytes on disk failed a check."""

    runs: int  # bits


@dataclass(slots=True)
class LeaseGranted:
    """The tracker lets us read these runs from the origin (bits)."""

    runs: int
    epoch: int


@dataclass(slots=True)
class LeaseRevoked:
    """The tracker takes leases back: enough peers have the runs by now."""

    runs: int


@dataclass(slots=True)
class TrackerUp:
    """The member connection to the tracker stands."""

    epoch: int


@dataclass(slots=True)
class TrackerDown:
    """The member connection to the tracker is gone."""


@dataclass(slots=True)
class Members:
    """The swarm's full member list as the tracker last told it, ourselves included (node ids)."""

    nodes: tuple[int, ...]
    rack: tuple[int, ...] = ()  # who of them shares our rack, ourselves included; nobody: not known
    site: tuple[int, ...] = ()  # and our site
    racks: tuple[tuple[int, ...], ...] = ()  # the other racks of our site
    sites: tuple[tuple[int, ...], ...] = ()  # the other sites


@dataclass(slots=True)
class DialFailed:
    """The one bad end of a `Dial` command (the good one is `PeerJoined`)."""

    peer: int


@dataclass(slots=True)
class Demanded:
    """A loader waits for these runs: take them first, the lowest before the others."""

    runs: int  # bits


@dataclass(slots=True)
class Wanted:
    """Get only these runs (what is demanded later comes on top), until told otherwise.

    Answered by exactly one `WantedDone`, unless another `Wanted` comes first. What is had beyond
    them is served all the same.
    """

    runs: int  # bits


@dataclass(slots=True)
class Tick:
    """The deadline of `next_wakeup` has come."""


Event = (
    PeerJoined | PeerLeft | PeerHas | RequestEnded | FetchEnded | RunsProved | RunsLost
    | LeaseGranted | LeaseRevoked | TrackerUp | TrackerDown | Members | DialFailed | Demanded
    | Wanted | Tick
)  # fmt: skip
