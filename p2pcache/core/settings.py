"""Knobs of the deciders. Each default has one line of reason; times are seconds."""

from dataclasses import dataclass

from p2pcache.core.format.chunking import MiB


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """How one node takes part in one swarm."""

    # In-order preference above the first gap. It must hold all runs that are spread at one moment, or new ones
    # wait with one or two holders until the old ones are done: 100 nodes, 1,024 runs, 0.947 of the bound with
    # 32, 0.956 with this (decision 0024).
    window_runs: int = 256
    # Requests that flow at once over all peers, one from each; the next one is asked for while the last ends. Few
    # are soon here and spread from here: 100 nodes, 1,024 runs, 0.972 of the bound with 6, 0.971 with this, 0.969
    # with 8; 24 nodes with 0.1 s of bytes before full links 0.945 with 6, 0.951 with 8 (decision 0024).
    outstanding: int = 7
    # ... and no more than this over all peers. It isn't memory (bytes wait at the sender), so it must not
    # bite below 14 runs of 16 MiB: 64 MiB cost 16 nodes at 25 GbE 0.30 of the bound (simulated).
    outstanding_bytes: int = 256 * MiB
    outstanding_few_peers: int = 6  # of each of fewer than 3 neighbours: keeps a fast link full
    # ... and, to each peer and over all, as many more as the way holds (bandwidth x delay), up to so many:
    # with the others they stay under the 64 that a server takes on one connection.
    ahead_per_peer: int = 40
    origin_fetches: int = 8  # runs that a lone node reads at once
    # ... and as many more as the way from the origin holds: S3 takes 30 ms and more for a first byte and gives a
    # connection some 90 MB/s, so 25 Gbit/s take 58 reads of 4 MiB (decision 0029).
    origin_ahead: int = 56
    # Batch of have-deltas. 50 ms cost 100 simulated nodes 0.001 of the bound, 64 at 25 GbE 0.04, and save no CPU
    # time where runs take longer than that; 10 ms cost 16 at 25 GbE 0.08 (decision 0026).
    have_interval_s: float = 0.02
    busy_backoff_s: float = 0.035  # 20-50 ms measured
    busy_backoff_max_s: float = 0.3  # doubled per BUSY in a row up to here: polling costs CPU
    slow_peer_ratio: float = 0.3  # peers under this share of the median rate are passed over
    slow_retry_s: float = 5.0  # a peer that was passed over so long may try again
    duplicate_after: float = 2.0  # endgame: a second request after this many expected times
    duplicate_min_s: float = 1.0  # ... and never sooner
    cross_after_s: float = 1.0  # the next in order may bring what a bridge didn't; never sooner
    stuck_after_s: float = 4.0  # wanted run without a holder among neighbours: tell the tracker
    lease_ttl_s: float = 15.0  # as the tracker's; heartbeats renew
    # Who never met the tracker knows nothing of its leases: after TTL + grace owners may read.
    fallback_grace_s: float = 5.0
    # Without progress for so long, the next owner in order may read; when a tracker is lost, the first one
    # may read what had perhaps been leased (sooner where reads are quick).
    owner_patience_s: float = 8.0


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """How the tracker hands out the right to read the origin."""

    ttl_s: float = 15.0  # renewed by heartbeats; as long as a member's expiry
    in_flight: int = 16  # over the swarm, as long as the way from the origin holds no more ...
    # ... and so many times as many on top: 128 reads of 1 MiB are 40 ms of 25 Gbit/s.
    ahead_ratio: int = 7
    usual_credit: int = SwarmSettings().origin_fetches  # of one node, as long as it holds no more
    first_in_flight: int = 4  # ... at a storm's start: all at once would all end late
    slow_node_ratio: float = 1.6  # nodes slower than this multiple of the median get none
    enough_holders: int = 2  # a lease is taken back when so many nodes have the run
    stuck_factor: float = 4.0  # a lease older than this many medians may be granted again
    rescue_cap: float = 0.04  # share of runs granted again while a live node has them
    unasked_cap: float = (
        0.008  # share of runs taken from readers that drag on: alpha stays under 1.01
    )
    mismatches_to_stop: int = 2  # nodes that must see wrong origin bytes before leases stop


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Membership at the tracker."""

    heartbeat_s: float = 5.0  # with jitter of a fifth
    expiry_s: float = 15.0  # three heartbeats
    reconnect_grace_s: float = 3.0  # a broken connection gives leases back only after this
    neighbours: int = 24  # rarest-first reaches 0.97 of the bound with 24-40
    # Ids say whose certificate they are of (`core.protocol.certificate_identity`): who has several is one witness.
    certified: bool = False


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """What one node serves at once."""

    # As many as one node asks at once: then every request flows, and no downlink is starved while another is crowded.
    slots: int = 7
    # Peers that may wait behind them: above it the answer is BUSY, and the asker finds who is free. Simulated, 50
    # nodes 0.951 of the bound with none, 0.946 with one, 0.941 with two.
    queue: int = 0
    # With one or two askers, so many in all: on a long fat way what one asks for ahead comes in gusts, and a
    # BUSY rests for longer than the way is. (2 nodes, 25 Gbit/s, 1 ms: eta 0.178 with 16, 0.397 with this.)
    few_askers_places: int = 64
    # Among equals an upload takes as long as `slots` new runs take to appear. Fewer slots above so many times
    # that: with one of 16 nodes at a tenth of the speed the others reach 0.80 of the bound instead of 0.74
    # (simulated, 128 runs). In seconds (1 s) it also closed the slots of every node behind 16 Mbit/s.
    pace: float = 4.0
    per_peer: int = 8  # of one peer at once: 6 that few-peer swarms ask for, and 2 whose end the
    # requester saw first (it may ask again before our thread has reported the last byte)
