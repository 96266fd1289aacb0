"""What a scheduler is doing at one moment, for people. Taking a snapshot changes nothing."""

from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.ids import NodeId, RunIndex, RunSet

WAITS = {
    "peers": "bytes are on their way from peers",
    "origin": "storage is being read",
    "busy": "peers have what is missing, but they are busy or resting",
    "pause": "storage, which this node reads alone: the next read begins soon, at the start or after a failed one",
    "site": "another site: one node of this site brings in what no node here has",
    "lease": "no peer has what is missing: waiting for a lease, or for whoever reads it",
    "tracker": "the tracker is gone: nobody reads yet what it may have leased to somebody",
    "owner": "no tracker: another node owns what is missing and is to read it",
}
"""What a pull can wait for. If several apply, the first one is told."""


@dataclass(frozen=True, slots=True)
class PeerView:
    """One neighbour."""

    node: NodeId
    useful: int  # needed runs that it has
    asked: int  # requests in flight to it
    load: int  # its uploads, as it last said
    rate: float | None  # bytes per second to us; None: not known yet
    rests_s: float  # until it is asked again, after BUSY or a stall; 0: it may be asked
    delivers: bool = True  # False: it delivers nothing, and what it claims to have doesn't count


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request or a read that hasn't ended."""

    run: RunIndex
    seconds: float  # since it began
    node: NodeId | None = None  # the neighbour that was asked; None: read from the origin


@dataclass(frozen=True, slots=True)
class SwarmView:
    """Everything at one moment."""

    needed: RunSet  # wanted and missing
    held: RunSet  # needed runs that some neighbour has
    waits_for: str  # a key of `WAITS`; empty: nothing is needed
    peers: tuple[PeerView, ...]
    requests: tuple[InFlight, ...]  # to neighbours, the oldest first
    reads: tuple[InFlight, ...]  # of the origin, the oldest first
    # Leased runs that aren't being read yet, and for how many seconds they have waited.
    leases: tuple[tuple[RunIndex, float], ...]
    tracker_up: bool
    alone: bool  # this node decides by itself what to read

    def stuck(self, limit: int) -> list[RunIndex]:
        """The runs that delay the pull most, `limit` at most.

        The first needed run comes first, then what is in flight the longest, then the next needed runs. A run far
        behind the first gap delays nothing yet, since leases are granted in order.
        """
        gaps = list(bitset.members(bitset.lowest(self.needed, limit)))
        flying = sorted((*self.requests, *self.reads), key=lambda one: -one.seconds)
        runs = [*gaps[:1], *(one.run for one in flying), *gaps]
        return list(dict.fromkeys(run for run in runs if self.needed >> run & 1))[:limit]
