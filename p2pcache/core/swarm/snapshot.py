"""What a scheduler is at, for people: a snapshot that changes nothing."""

from dataclasses import dataclass

from p2pcache.core import bitset

WAITS = {
    "peers": "bytes are on their way from peers",
    "origin": "bytes are on their way from storage",
    "busy": "peers have what is missing, but they are busy, slow or resting",
    "lease": "no peer has what is missing: waiting for a lease, or for whoever reads it",
    "tracker": "the tracker is gone: nobody reads yet what it may have leased to somebody",
    "owner": "no tracker: another node owns what is missing and is to read it",
}
"""What a pull can wait for. With several at once the one named first here is told."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """One neighbour."""

    node: int
    useful: int  # runs that it has and we miss
    asked: int  # requests that it owes us
    load: int  # its uploads, as it last said
    rate: float | None  # bytes per second to us; None: too early to say
    slow: bool  # passed over
    rests_s: float  # it was busy or stalled: not asked for so long
    delivers: bool = (
        True  # False: it sent nothing of what it says that it has, and counts for nothing
    )


@dataclass(frozen=True, slots=True)
class InFlight:
    """Something that was begun and hasn't ended."""

    run: int
    seconds: float
    node: int | None = None  # of the peer that was asked; None: read from the origin


@dataclass(frozen=True, slots=True)
class SwarmView:
    """Everything at one moment. Runs are bits.

    Attributes:
        needed: wanted and missing.
        held: of them, what some neighbour has.
        waits_for: a key of `WAITS`; empty: nothing is missing.
        requests: of peers, the oldest first.
        reads: of the origin.
        leases: leased runs that aren't being read yet, and for how long.
    """

    needed: int
    held: int
    waits_for: str
    peers: tuple[PeerView, ...]
    requests: tuple[InFlight, ...]
    reads: tuple[InFlight, ...]
    leases: tuple[tuple[int, float], ...]
    tracker_up: bool
    alone: bool  # it decides by itself what to read: the tracker is gone for long enough, or all others out of reach

    def stuck(self, limit: int) -> list[int]:
        """The runs that hold the pull up most: the first gap, what is in flight for longest, the next gaps."""
        # Leases go out in order: that nobody has a run far behind the first gap says nothing.
        gaps = list(bitset.members(bitset.lowest(self.needed, limit)))
        flying = sorted((*self.requests, *self.reads), key=lambda one: -one.seconds)
        runs = [*gaps[:1], *(one.run for one in flying), *gaps]
        return list(dict.fromkeys(run for run in runs if self.needed >> run & 1))[:limit]


def waits_for(
    *, needed: int, held: int, asked: int, fetching: int, tracker_up: bool, alone: bool
) -> str:
    """What a pull waits for, a key of `WAITS`; empty: nothing is missing. Runs are bits."""
    if not needed:
        return ""
    if asked:
        return "peers"
    if fetching:
        return "origin"
    if needed & held:
        return "busy"
    if tracker_up:
        return "lease"
    return "owner" if alone else "tracker"
