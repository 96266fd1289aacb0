"""How many requests more a long fat link gets, and when a full neighbour is asked."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.peers.peer import BandwidthDelay, Peer
from p2pcache.core.upload.settings import FULL
from p2pcache.sim.cluster.cluster import Cluster

KiB = 1024
MOST = 40


def test_a_link_holds_bandwidth_times_delay() -> None:
    link = BandwidthDelay(0.1, now=0.0)
    for step in range(1, 201):  # 100 MB/s
        link.on_bytes(1_000_000, step * 0.01)
    assert link.measure(1_000_000, MOST)
    assert link.runs in {9, 10}
    assert not link.measure(1_000_000, MOST)


def test_a_thin_link_holds_no_whole_run() -> None:
    link = BandwidthDelay(0.04, now=0.0)
    for step in range(1, 20):  # 50 Mbit/s
        link.on_bytes(256 * KiB, step * 0.042)
    assert not link.measure(256 * KiB, MOST)
    assert link.runs == 0


def test_without_a_round_trip_nothing_is_known() -> None:
    link = BandwidthDelay(0.0, now=0.0)
    link.on_bytes(1 << 40, 1.0)
    assert not link.measure(1, MOST)


def test_a_pause_leaves_the_product_as_it_was() -> None:
    link = BandwidthDelay(0.1, now=0.0)
    link.on_bytes(10_000_000, 0.1)
    link.measure(1_000_000, MOST)
    link.on_first_request(100.0)
    assert link.runs == 10
    link.on_bytes(10_000_000, 100.1)
    link.measure(1_000_000, MOST)
    assert link.runs == 10


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 10)), max_size=50),
    st.floats(0, 3), st.one_of(st.just(0.0), st.floats(0.5, 1e9)),
)  # fmt: skip
def test_the_product_stays_within_its_bound(
    arrivals: list[tuple[int, float]], rtt_s: float, run_bytes: float
) -> None:
    link, now = BandwidthDelay(rtt_s, now=0.0), 0.0
    for nbytes, pause_s in arrivals:
        now += pause_s
        link.on_bytes(nbytes, now)
        link.measure(run_bytes, MOST)
        assert 0 <= link.runs <= MOST


@pytest.mark.parametrize(
    ("rate", "rtt_s", "run_bytes", "seeds"),
    [
        (50e6 / 8, 0.04, 256 * KiB, 1),
        (25e9 / 8, 0.001, 256 * KiB, 1),
        (25e9 / 8, 0.001, 256 * KiB, 7),
        (1e9 / 8, 0.1, 1024 * KiB, 1),
    ],
)
def test_the_link_stays_full(rate: float, rtt_s: float, run_bytes: int, seeds: int) -> None:
    """One node pulls from others over a link of this rate and delay and uses at least 0.95 of it."""
    runs = 600
    cluster = Cluster(
        seed=1, run_bytes=[run_bytes] * runs, rate=rate, origin_rate=1.0,
        latency_s=rtt_s / 2, origin_latency_s=rtt_s / 2, check_every=50,
    )  # fmt: skip
    cluster.refuse_reads(math.inf)
    for _ in range(seeds):
        cluster.add_node(have=bitset.full(runs))
    cluster.world.run(1.0, lambda: False)
    began = cluster.world.now
    puller = cluster.add_node()
    cluster.world.run(began + 60, lambda: not cluster.missing)
    assert puller.finished is not None
    dialled = 4 * rtt_s  # round trips of TCP, handshake, JOIN and the first answer
    ideal_s = runs * run_bytes / rate
    assert ideal_s / (puller.finished - began - dialled) >= 0.95
    assert puller.scheduler.counters.busy == 0


def test_who_is_full_rests_unless_it_is_beyond_a_boundary() -> None:
    near, far = Peer(2, 1, 0.0), Peer(3, 1, 0.0, distance=1)
    for peer in (near, far):
        peer.on_load(FULL, 1.0, 2.0)
    assert near.free_at == 3.0
    assert far.free_at <= 1.0, "it has places for requests across the boundary"
    near.on_load(FULL - 1, 1.5, 2.0)
    assert near.free_at <= 1.5
    near.on_stall(1.5)
    near.on_load(0, 1.6, 2.0)
    assert near.free_at > 1.6, "a free slot doesn't mend a stall"


def test_one_that_serves_others_has_the_whole_patience_again() -> None:
    """The word that it serves names no runs, so it is heard of by `on_recall` only."""
    peer = Peer(2, 1, 0.0)
    for now in (1.0, 2.0, 3.0):
        peer.on_load(0, now, 2.0)
        peer.on_busy(now, 2.0)
    assert peer.idle_refusals == 2
    assert not peer.on_recall(FULL, 9.0)
    assert (peer.idle_refusals, peer.refused_since) == (0, 9.0)
