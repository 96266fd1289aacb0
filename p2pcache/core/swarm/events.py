"""Everything that can happen to a model's swarm on one node, one class each.

They are msgspec's structs: a storm makes millions of events, and dataclasses take long to import (docs/lab/0100).
"""

from enum import IntEnum

from msgspec import Struct

from p2pcache.ids import NodeId, RunSet


class Outcome(IntEnum):
    """How a `Request` or a `Fetch` ended. Each of these commands ends exactly once."""

    DONE = 0  # every chunk of the run is proved
    BUSY = 1  # the peer has no free upload slot: ask again later
    REFUSED = 2  # the peer doesn't have the run any more, or we may not have it
    MISMATCH = 3  # the bytes don't match the manifest: the peer is blamed
    STALLED = 4  # no bytes came for too long
    LOST = 5  # the connection broke
    CANCELLED = 6  # we cancelled it
    FAILED = 7  # our own disk failed: the download can't go on
    UNAVAILABLE = 8  # the origin doesn't answer, after all retries


class Source(IntEnum):
    """Where the bytes of a proved run came from."""

    PEER = 0
    ORIGIN = 1
    LOCAL = 2  # another blob of this cache


class PeerJoined(Struct):
    """A neighbour accepted our JOIN: we can ask it for runs."""

    peer: NodeId
    have: RunSet
    rtt_s: float = 0.0  # the shortest round trip to it so far; 0: not known


class PeerLeft(Struct):
    """The connection on which we asked this neighbour for runs is gone."""

    peer: NodeId


class PeerHas(Struct):
    """A neighbour's have batch: it has these runs, too.

    A batch without runs is a recall: the neighbour told us BUSY before. With a load below `FULL` it has room now,
    otherwise it serves others.
    """

    peer: NodeId
    runs: RunSet
    load: int  # peers that it serves or lets wait


class RequestEnded(Struct):
    """The one end of a `Request` command."""

    request: int
    outcome: Outcome
    waited_s: float = 0.0  # until BUSY or the first byte came; 0: not known


class FetchEnded(Struct):
    """The one end of a `Fetch` command."""

    fetch: int
    outcome: Outcome
    flow_s: float = 0.0  # from the first byte to the end; 0: not known


class RunsProved(Struct):
    """Runs were proved without a command of ours: copied within this cache, or pushed into it."""

    runs: RunSet
    source: Source


class RunsLost(Struct):
    """Runs are missing again: their bytes on disk failed a check."""

    runs: RunSet


class LeaseGranted(Struct):
    """The tracker lets us read these runs from the origin."""

    runs: RunSet
    in_flight: int = 0  # leases that all members have now; 0: not known


class LeaseRevoked(Struct):
    """The tracker takes leases back: enough members have the runs by now."""

    runs: RunSet


class TrackerUp(Struct):
    """We are connected to the tracker, as a member."""

    epoch: int


class TrackerDown(Struct):
    """The tracker grants nothing any more: its connection broke, or it is silent."""

    # It never told us of this swarm, so `Members` named all nodes that we know.
    unheard: bool = False


class Members(Struct):
    """All members of the swarm as the tracker last told them, ourselves included."""

    nodes: tuple[NodeId, ...]
    rack: tuple[NodeId, ...] = ()  # members in our rack, ourselves included; empty: not known
    site: tuple[NodeId, ...] = ()  # members in our site, ourselves included; empty: not known
    racks: tuple[tuple[NodeId, ...], ...] = ()  # the other racks of our site
    sites: tuple[tuple[NodeId, ...], ...] = ()  # the other sites


class DialFailed(Struct):
    """A `Dial` command failed; one that succeeds ends in `PeerJoined`."""

    peer: NodeId


class Reachable(Struct):
    """A member has dialled us, so others can get what this node reads."""


class Urgent(Struct):
    """A loader waits for these runs: get them first, the lowest run before the others."""

    runs: RunSet


class Wanted(Struct):
    """From now on only these runs are wanted, and those that become urgent later.

    It is answered by exactly one `WantedDone`, unless another `Wanted` comes first. Other runs that are here are
    served all the same.
    """

    runs: RunSet


class Tick(Struct):
    """The deadline of `next_wakeup` has come."""


Event = (
    PeerJoined | PeerLeft | PeerHas | RequestEnded | FetchEnded | RunsProved | RunsLost
    | LeaseGranted | LeaseRevoked | TrackerUp | TrackerDown | Members | DialFailed | Reachable
    | Urgent | Wanted | Tick
)  # fmt: skip
