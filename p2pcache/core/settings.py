"""Settings of the deciders.

Each field has its unit and one reason. Names that end in `_s` are seconds, in `_bytes` bytes; runs, requests and nodes
are counts. Measurements are in the lab records that are named (docs/lab).
"""

from dataclasses import dataclass

from p2pcache.core.format.chunking import MiB

# Seconds of silence after which a member is gone, and its leases with it: three heartbeats.
EXPIRY_S = 15.0
USUAL_OF = 31  # durations whose median is the usual one: of requests, and of uploads
STORY_LINES = 4096  # of one scheduler, over all runs of its model: about half a megabyte
# Buckets of one rate limit. The least recently used one is dropped, and would start full again.
MAX_CLIENTS = 4096


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """How one node takes part in one swarm."""

    # Runs from the first gap on, among which the rarest is preferred. The window must hold all runs that spread at one
    # moment, or new runs wait with one or two holders until old ones are done (docs/lab/0024).
    window_runs: int = 256
    # Requests that flow at once over all peers, one to each unless they are few; the next one is sent while the last
    # answer ends. With few flows each run arrives early and spreads early; with too few a full link's queue isn't
    # covered (docs/lab/0024).
    outstanding: int = 7
    # Bytes requested at once over all peers. It costs no memory, since bytes wait at the sender, so it is far above
    # what large runs need to fill a fast link (docs/lab/0026).
    outstanding_bytes: int = 256 * MiB
    # Further requests, to each peer and over all, up to what the link holds (its bandwidth-delay product). With the
    # others they stay under the 64 requests that a server takes on one connection (docs/lab/0015).
    ahead_per_peer: int = 40
    # Reads of the origin at once by a node that reads alone: they fill the link to storage that is near. 0: this node
    # reads nothing there, for the model comes from another site.
    origin_fetches: int = 8
    # Further reads, up to what the path to storage holds: object storage is slow to answer and limits each connection,
    # so a fast link needs many reads (docs/lab/0029).
    origin_ahead: int = 56
    # Seconds that proved runs are collected into one have batch. Longer batches delay spreading, shorter ones cost
    # processor time on fast links (docs/lab/0026).
    have_interval_s: float = 0.02
    # Seconds after BUSY in which a neighbour isn't asked unless it calls: a call may be lost.
    busy_rest_s: float = 2.0
    # Seconds for which a neighbour isn't asked that has said that it has no free slot, and says no more: one that has
    # everything sends no have batches.
    full_rest_s: float = 0.3
    # Expected times of a request after which the endgame sends a duplicate: earlier ones are mostly wasted.
    duplicate_after: float = 2.0
    # Seconds before which the endgame sends no duplicate: on quick links the expected time is mostly noise.
    duplicate_min_s: float = 1.0
    # Seconds between two reviews of runs that wait for their bridge, at least: a bridge needs this time to bring one.
    cross_after_s: float = 1.0
    # Seconds that a wanted run is without a holder among the neighbours before the tracker is told: runs that spread
    # normally appear sooner.
    stuck_after_s: float = 4.0
    # Lifetime of a lease without a heartbeat; equal to the tracker's, so that both sides count alike.
    lease_ttl_s: float = EXPIRY_S
    # Seconds beyond the lifetime of all leases before owners read, on a node that never met the tracker and so knows
    # none of its leases.
    fallback_grace_s: float = 5.0
    # Seconds without progress after which the next owner in order may read (docs/lab/0027), and for which a node that
    # reaches no owner leaves alone what a lost tracker may have granted.
    owner_patience_s: float = 8.0


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How the tracker grants leases."""

    # Lifetime of a lease that no heartbeat renews; equal to a member's expiry, so both end together.
    ttl_s: float = EXPIRY_S
    # Leases in flight over the swarm, at first and at least: reads that begin together end together, and until then
    # there is nothing to spread.
    in_flight: int = 4
    # Leases in flight at most, whatever the way to storage holds (docs/lab/0028).
    most_in_flight: int = 128
    # Multiple of the usual read time above which a reader is slow and rests (docs/lab/0013).
    slow_node_ratio: float = 1.6
    # Median read times after which a lease is stuck and its run may be granted again.
    stuck_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Membership at the tracker."""

    # Seconds between heartbeats, with a jitter of a fifth: few enough for a small tracker.
    heartbeat_s: float = EXPIRY_S / 3
    expiry_s: float = EXPIRY_S
    # Seconds after a broken connection until its leases are given back: an agent reconnects within them.
    reconnect_grace_s: float = 3.0
    # Neighbours named to each node: rarest first needs this many to come near the bound (docs/lab/0012).
    neighbours: int = 24
    # Whether node ids tell their certificates (`core.protocol.certificate_identity`). Then all nodes of one certificate
    # count as one witness, since one bearer may run many.
    certified: bool = False


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """What one node serves at once."""

    # Uploads that flow at once: as many as one node requests, so that all requests flow and no link is starved.
    slots: int = SwarmSettings().outstanding
