"""Everything the scheduler can ask for, one class each.

`Request` and `Fetch` end in exactly one `RequestEnded` / `FetchEnded`; `Dial` ends in
`PeerJoined` or `DialFailed`. The rest are notices: performed or lost with their connection,
nothing waits for them.
"""

from dataclasses import dataclass

from p2pcache.core.upload.upload_queue import Turn

ALL = -1  # every run, as bits


@dataclass(slots=True)
class Request:
    """Ask a neighbour for a run."""

    request: int
    peer: int
    run: int
    turn: Turn = Turn.USUAL  # when the neighbour should serve it


@dataclass(slots=True)
class Cancel:
    """Take a request back; it still ends (CANCELLED, or DONE if it was faster)."""

    request: int


@dataclass(slots=True)
class Fetch:
    """Read a run from the origin. Only ever for a leased run, or one that we own without a tracker."""

    fetch: int
    run: int


@dataclass(slots=True)
class CancelFetch:
    """Take an origin read back; it still ends."""

    fetch: int


@dataclass(slots=True)
class Announce:
    """Tell every neighbour of this swarm that we have these runs (a batch), and our load."""

    runs: int  # bits


@dataclass(slots=True)
class Dial:
    """Connect to a member that isn't among the given neighbours (the owner of a wanted run)."""

    peer: int


@dataclass(slots=True)
class Blame:
    """A peer sent bytes that don't match: drop it and tell the tracker."""

    peer: int
    run: int


@dataclass(slots=True)
class LeaseReport:
    """Tell the tracker what became of leases (bits each)."""

    done: int = 0
    failed: int = 0  # couldn't be read: grant it to somebody else
    mismatched: int = 0  # the origin's bytes are wrong
    returned: int = 0  # not needed any more, never read
    demanded: int = 0  # no lease of ours: a loader waits for them, let somebody read them first


@dataclass(slots=True)
class LeaseCredit:
    """How many leases at once we can work on. The tracker grants up to that, as it sees fit."""

    credit: int
    wanted: int = ALL  # bits: leases of other runs are of no use to us


@dataclass(slots=True)
class Stuck:
    """No neighbour that delivers has had these runs (bits) for long: does any live node, or may somebody read them?"""

    runs: int
    lacks: int = 0  # all that no neighbour has now, these included
    vain: tuple[
        int, ...
    ] = ()  # neighbours that say they have some of these runs and deliver nothing
    gives: tuple[int, ...] = ()  # ... that were named before, and deliver now


@dataclass(slots=True)
class CutOff:
    """No other node of the swarm can be reached: from now on we read what we lack without leases, too."""


@dataclass(slots=True)
class OriginCorrupt:
    """Our own reads of this run from the origin mismatched twice (only said of what is read without leases)."""

    run: int


@dataclass(slots=True)
class Finished:
    """Every run is proved. Said once; the scheduler goes on to answer for what it seeds."""


@dataclass(slots=True)
class WantedDone:
    """Every run of the last `Wanted` (and what was demanded since) is proved."""


Command = (
    Request | Cancel | Fetch | CancelFetch | Announce | Dial | Blame | LeaseReport
    | LeaseCredit | Stuck | CutOff | OriginCorrupt | Finished | WantedDone
)  # fmt: skip
