"""Everything that a scheduler can ask for, one class each.

A `Request` ends in exactly one `RequestEnded`, a `Fetch` in one `FetchEnded`, and a `Dial` in `PeerJoined` or
`DialFailed`. All others are notices: nothing waits for them, and a broken connection may lose them.
"""

from msgspec import Struct

from p2pcache.core.upload.priority import Priority
from p2pcache.ids import NodeId, RunIndex, RunSet

ALL: RunSet = -1  # every run of whatever model


class Request(Struct):
    """Ask a neighbour for a run."""

    request: int  # its number
    peer: NodeId
    run: RunIndex
    priority: Priority = Priority.USUAL  # in the neighbour's upload queue


class Cancel(Struct):
    """Take a request back. It still ends: CANCELLED, or DONE if the run came first."""

    request: int


class Fetch(Struct):
    """Read a run from the origin. We have a lease for it, or own it without a tracker."""

    fetch: int  # its number
    run: RunIndex
    # Read it in one request with the `Fetch` before this one, whose number is one less: its bytes follow those.
    joined: bool = False


class CancelFetch(Struct):
    """Take a read of the origin back. It still ends."""

    fetch: int


class Announce(Struct):
    """Tell neighbours that we have these runs, and our load."""

    runs: RunSet  # proved since the last one


class Dial(Struct):
    """Connect to a member that the tracker didn't name as a neighbour, such as the owner of a wanted run."""

    peer: NodeId


class Blame(Struct):
    """A peer sent bytes that don't match the manifest: drop it and tell the tracker."""

    peer: NodeId
    run: RunIndex


class LeaseReport(Struct):
    """Tell the tracker what became of leases."""

    done: RunSet = 0
    failed: RunSet = 0  # couldn't be read: somebody else should get the lease
    mismatched: RunSet = 0  # the origin's bytes are wrong
    returned: RunSet = 0  # not read, and not needed any more
    urgent: RunSet = 0  # not leased to us, and a loader waits for them: grant them first
    flow_s: float = 0.0  # of a run in `done`: seconds from its first byte to its end; 0: not known


class LeaseCredit(Struct):
    """Tell the tracker how many leases we can work on at once. It grants that many at most."""

    credit: int
    wanted: RunSet = ALL  # leases of other runs are of no use to us


class Stuck(Struct):
    """Tell the tracker of runs that no delivering neighbour has had for long: it names a holder, or grants a read."""

    runs: RunSet
    lacking: RunSet = 0  # all that no neighbour has now, `runs` included
    failing: tuple[NodeId, ...] = ()  # neighbours that claim some of `runs` and deliver nothing
    recovered: tuple[NodeId, ...] = ()  # were told as failing before, and deliver now


class CutOff(Struct):
    """Tell people that no other node of the swarm can be reached: from now on we also read without leases."""


class OriginCorrupt(Struct):
    """Two of our reads of this run mismatched, without leases: the origin's bytes are wrong."""

    run: RunIndex


class Finished(Struct):
    """Every run is proved. This is said once; the scheduler goes on while the node seeds."""


class WantedDone(Struct):
    """Every run of the last `Wanted`, and every urgent run since, is proved."""


Command = (
    Request | Cancel | Fetch | CancelFetch | Announce | Dial | Blame | LeaseReport
    | LeaseCredit | Stuck | CutOff | OriginCorrupt | Finished | WantedDone
)  # fmt: skip
