"""Racks, disks, nodes that nobody can dial, and nodes that come back."""

import pytest

from p2pcache.sim.cluster.network import Network
from p2pcache.sim.cluster.node_place import Place, path
from p2pcache.sim.cluster.world import World
from p2pcache.sim.report import Report
from p2pcache.sim.scenarios import Run, Storm, run

SMALL = Storm(nodes=16, runs=96, check_every=23)


def all_complete(report: Report) -> None:
    assert report.complete == report.alive


def test_a_path_between_racks_crosses_their_links_and_a_path_within_one_does_not() -> None:
    net = Network(World(1), 0.01)
    up, down, out_a, in_a, out_b, in_b, disk = (net.link(1.0) for _ in range(7))
    a, b = Place("a", out_a, in_a), Place("b", out_b, in_b, disk)
    assert path(a, up, b, down) == [up, down, disk, out_a, in_b]
    assert path(b, up, b, down) == [up, down, disk]
    assert path(Place(), up, Place(), down) == [up, down]


def test_the_tracker_knows_racks_and_crossing_bytes_are_counted() -> None:
    storm = Run(Storm(nodes=16, runs=96, racks=2))
    report = storm.go()
    all_complete(report)
    assert report.beta is not None
    assert report.beta >= 1.0 - 1e-9, "each byte enters each rack"
    assert report.alpha == pytest.approx(1.0)
    places = {node.place.rack for node in storm.cluster.nodes.values()}
    assert places == {"rack0", "rack1"}


def test_where_storage_is_slow_a_new_run_is_left_to_its_bridge() -> None:
    """With a run every six seconds all others had starved when it came: 1.2 copies of each crossed (96 nodes: 1.8)."""
    storm = Storm(
        nodes=48, racks=3, runs=24, run_bytes=16 << 20, rate=125e6, origin_rate=3e6, check_every=101
    )
    report = run(storm)
    all_complete(report)
    assert report.beta == pytest.approx(1.0)


def test_a_liar_does_not_hold_up_nodes_that_reach_nobody_else() -> None:
    """It can be dialled, and is barred: each waited for that dial to end (104 s)."""
    storm = Run(
        Storm(
            nodes=4, hidden=4, liars=1, runs=300, run_bytes=16 << 20, rate=125e7, origin_rate=125e7
        )
    )
    all_complete(storm.go())
    assert storm.cluster.world.now <= 40


def test_a_rack_with_a_thin_uplink_bounds_the_storm() -> None:
    wide = run(SMALL, racks=2, oversubscribed=1.0)
    thin = run(SMALL, racks=2, oversubscribed=16.0)
    assert wide.t_lb < 0.6 * thin.t_lb
    assert thin.t_last > thin.t_lb
    assert run(SMALL).beta is None


def test_nodes_behind_a_full_uplink_do_not_make_it_fuller() -> None:
    # What takes long there takes long for all: 2.6 copies crossed, and eta was 0.54.
    report = run(Storm(nodes=8, runs=192, racks=2, oversubscribed=8.0))
    all_complete(report)
    assert report.beta is not None
    assert report.beta < 1.05
    assert report.eta > 0.9
    assert report.duplicates == 0


def test_a_slow_disk_holds_up_its_own_node() -> None:
    storm = Run(Storm(nodes=16, runs=96, slow_disk=1 / 16, check_every=23))
    all_complete(storm.go())
    slow = [n for n in storm.cluster.nodes.values() if n.place.disk is not None]
    assert len(slow) == 1
    assert slow[0] not in storm.ordinary
    assert slow[0].finished is not None
    assert slow[0].finished > 1.5 * max(n.finished or 0.0 for n in storm.ordinary)


@pytest.mark.parametrize("restart", ["kept", "lost"])
def test_a_node_that_crashed_comes_back(restart: str) -> None:
    storm = Run(Storm(nodes=16, runs=96, crash=1 / 16, restart=restart, check_every=23))  # type: ignore[arg-type]
    report = storm.go()
    all_complete(report)
    assert report.alive == 16
    (dead,) = storm.cluster.gone
    back = storm.cluster.nodes[dead.node]
    assert back is not dead
    counters = back.scheduler.counters
    got = counters.bytes_peers + counters.bytes_origin
    assert (got < report.model_bytes) == (restart == "kept")
    assert report.alpha <= 1.05


def test_hidden_nodes_hold_nobody_up() -> None:
    report = run(SMALL, hidden=1)
    all_complete(report)
    assert report.alpha <= 1.02, "what the hidden one read is read once more"


@pytest.mark.slow
def test_a_hidden_node_is_found_before_it_reads() -> None:
    """It took seven storms' time: every eight seconds the swarm got one window further."""
    report = run(Storm(nodes=16, runs=512, hidden=1))
    all_complete(report)
    assert report.alpha <= 1.002
    assert report.eta >= 0.95


def test_a_quarter_of_hidden_nodes_on_quick_links_holds_nobody_up() -> None:
    """What they read in 50 ms held everybody up for 8 s, sixteen times as long as the storm."""
    storm = Storm(
        nodes=16, runs=512, run_bytes=4 << 20, rate=25e9 / 8, origin_rate=25e9 / 8, hidden=4
    )
    report = run(storm)
    all_complete(report)
    assert report.alpha <= 1.05
    assert report.t_last <= 2.5


def test_the_tracker_does_not_believe_that_most_nodes_are_hidden() -> None:
    report = run(SMALL, hidden=9)
    all_complete(report)
    assert report.alpha <= 1.6


def test_a_partition_that_the_tracker_does_not_see_costs_a_copy_at_most() -> None:
    report = run(SMALL, partition=(8, 8), partition_tracker="both", partition_s=1000.0)
    all_complete(report)
    assert report.alpha <= 2.0
    assert report.t_last < 100.0


def test_a_node_on_neither_side_of_a_partition_reaches_both() -> None:
    report = run(SMALL, partition=(7, 7), partition_s=1000.0, partition_tracker="both")
    all_complete(report)
    assert report.alpha <= 1.1
