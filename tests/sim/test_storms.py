"""Whole storms in virtual time: the real scheduler, upload queue and tracker, checked as they run."""

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from p2pcache.core.settings import SwarmSettings
from p2pcache.sim.cluster.node_reads import READ_TIMEOUT_S
from p2pcache.sim.cluster.node_uploads import Upload
from p2pcache.sim.report import Report
from p2pcache.sim.scenarios import Run, Storm, run

SMALL = Storm(nodes=16, runs=128, check_every=23)
WAIT_S = SwarmSettings().owner_patience_s  # for what may have been leased when the tracker died

# 25 Gbit/s, and storage as S3 is
QUICK = Storm(
    runs=1536, run_bytes=4 << 20, rate=25e9 / 8, origin_rate=25e9 / 8, latency_s=0.00005,
    origin_latency_s=0.0125, origin_jitter=0.6,
)  # fmt: skip


def all_complete(report: Report) -> None:
    assert report.complete == report.alive


def test_no_lease_is_taken_back_because_many_are_read_at_once() -> None:
    """Runs that take long on the link: reads that shared it ended as "too slow", and storage was read 1.35 times."""
    report = run(
        Storm(nodes=4, runs=96, run_bytes=4 << 20, rate=12e6, origin_rate=12e6, queue_s=0.1)
    )
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)
    assert report.eta >= 0.92, "with sixteen reads at once it was 0.90"


@pytest.mark.parametrize("seed", [1, 2])
def test_seven_nodes_lose_little_by_a_slow_one(seed: int) -> None:
    """It was given a run again and again, at last the last one; and the others had second reads, which starve."""
    report = run(
        Storm(nodes=8, runs=256, run_bytes=1 << 20, slow=1 / 8, queue_s=0.1, further_share=0.15, seed=seed)
    )  # fmt: skip
    all_complete(report)
    assert report.eta >= 0.93
    assert report.alpha == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_fifty_nodes_read_storage_once() -> None:
    report = run(Storm(nodes=50, runs=512))
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)
    assert report.eta >= 0.9


def test_messages_wait_behind_the_bytes_of_full_links() -> None:
    calm, queued = run(SMALL), run(replace(SMALL, queue_s=0.1))
    all_complete(queued)
    assert queued.eta < calm.eta - 0.02
    assert queued.alpha == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 8, 16])
def test_small_swarms_come_near_the_bound(nodes: int) -> None:
    report = run(Storm(nodes=nodes, runs=256))
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)
    assert report.eta >= 0.9
    assert report.busy < 1.5 * report.nodes * report.runs, (
        "cheap where a question is answered at once"
    )


@pytest.mark.parametrize(
    ("nodes", "stream", "eta"), [(16, 0.0, 0.8), (16, 90e6, 0.65), (1, 0.0, 0.75), (1, 90e6, 0.5)]
)
@pytest.mark.parametrize("seed", [2])
def test_storage_with_a_far_first_byte_is_kept_busy(
    seed: int, nodes: int, stream: float, eta: float
) -> None:
    """25 Gbit/s, 25 ms as the median and five times that for one of a hundred: 22 runs of 4 MiB are on their way.

    Where one connection carries 90 MB/s only, they are 57. Sixteen at once reached 0.6 and 0.3 of the bound, a node
    alone with eight 0.3 and 0.14. (Seed 1's first trial is decided by chance, the next comes too late for so short
    a storm: 0.65.)
    """
    report = run(QUICK, nodes=nodes, origin_stream=stream, seed=seed)
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)
    assert report.eta >= eta


@pytest.mark.parametrize("seed", [1, 2])
def test_a_tracker_lost_where_everything_is_quick(seed: int) -> None:
    """All waited eight seconds for reads of 50 ms: 0.31 of the bound."""
    report = run(QUICK, nodes=16, no_tracker_after=0.3, seed=seed)
    all_complete(report)
    assert report.alpha <= 1.001
    assert report.t_last <= report.t_lb + 2.0


@pytest.mark.parametrize("frozen_s", [1.0, 3.0, 11.0])
def test_a_frozen_tracker_costs_little(frozen_s: float) -> None:
    """The storm's front is idle while agents still believe a tracker that grants nothing."""
    storm = Storm(nodes=8, runs=1024, run_bytes=1 << 20, queue_s=0.1, check_every=31)
    calm, frozen = run(storm), run(storm, tracker_frozen=(0.3, frozen_s))
    all_complete(frozen)
    assert frozen.alpha <= 1.01
    assert frozen.t_last <= 1.05 * calm.t_last


def test_many_nodes_with_every_invariant_checked() -> None:
    report = run(Storm(nodes=50, runs=64, check_every=7))
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)


def test_one_node_alone_without_a_tracker() -> None:
    report = run(SMALL, nodes=1, tracker=False)
    all_complete(report)
    assert report.alpha == pytest.approx(1.0)
    assert report.eta >= 0.95


@pytest.mark.parametrize(
    ("far", "eta"),
    [
        ({"origin_latency_s": 0.05, "rate": 125e6, "origin_rate": 125e6, "run_bytes": 1 << 20}, 0.85),
        ({"origin_latency_s": 0.0001, "rate": 3.1e9, "origin_rate": 3.1e9, "run_bytes": 4 << 20,
          "origin_stream": 90e6}, 0.8),
    ],
)  # fmt: skip
def test_a_node_alone_has_as_many_requests_as_its_storage_needs(
    far: dict[str, Any], eta: float
) -> None:
    """Storage 100 ms away, and near storage that limits each connection: 0.73 and 0.23 of the bound."""
    report = run(Storm(nodes=1, runs=1024, tracker=False), **far)
    all_complete(report)
    assert report.eta >= eta


def test_a_partition_of_ten_seconds() -> None:
    report = run(SMALL, partition=(8, 8))
    all_complete(report)
    assert report.alpha <= 1.07, "8 of 128 runs: half of the leases are cut off, and read again"


@pytest.mark.parametrize("nodes", [2, 8, 32])
def test_silent_storage_without_a_tracker_costs_the_reads_in_flight(
    nodes: int,
) -> None:
    """Everybody took everybody else for idle: 1.8 copies of 2, 6.1 of 8, 1.5 of 64 nodes."""
    report = run(Storm(nodes=nodes, runs=256, no_tracker_after=0.35, frozen=0.3, frozen_s=15.0))
    all_complete(report)
    assert report.alpha <= 1.15, (
        "reads that hung are begun again, each with up to a run of bytes before"
    )


def test_a_long_partition_costs_one_copy_per_side_at_most() -> None:
    report = run(SMALL, partition=(8, 8), partition_s=60.0)
    all_complete(report)
    assert report.alpha <= 2.0
    assert report.t_last < 60.0, "both sides finish on their own"


def test_nodes_that_cannot_dial_each_other_all_read_storage() -> None:
    """A firewall between all of them: four took 196 s for what is 16 s of storage, twelve were never done."""
    report = run(QUICK, nodes=8, hidden=8)
    all_complete(report)
    assert report.alpha <= 8.05
    assert report.t_last <= 8 * report.t_lb + 15.0


@pytest.mark.parametrize("apart", [(8, 4), (6, 6)])
def test_two_parts_that_only_the_tracker_and_storage_reach(apart: tuple[int, int]) -> None:
    """80 s: each part got what the other had read, 32 runs in twelve seconds."""
    report = run(
        QUICK,
        nodes=12,
        runs=512,
        partition=apart,
        partition_tracker="both",
        partition_at=0.2,
        partition_s=300.0,
    )
    all_complete(report)
    assert report.alpha <= 2.05
    assert report.t_last <= 2 * report.t_lb + 35.0


def test_a_tracker_lost_for_good() -> None:
    report = run(SMALL, no_tracker_after=0.3)
    all_complete(report)
    assert report.alpha <= 1.05
    assert report.t_last < WAIT_S + 1.5 * report.t_lb


@pytest.mark.parametrize("origin_rate", [2e6, 1e6])
def test_a_tracker_lost_for_good_before_storage_that_is_slow(origin_rate: float) -> None:
    """Decision 0027: 4.0 and 4.6 copies left it when owners were given 8 s for reads that took 20 and 40.

    (What was being read as the tracker died may be read twice: it is chance how much that is.)
    """
    storm = Storm(
        nodes=12, runs=64, run_bytes=1 << 20, rate=6e6, origin_rate=origin_rate, slow_disk=1 / 12
    )
    reports = [run(storm, no_tracker_after=0.3, seed=seed) for seed in range(1, 11)]
    for report in reports:
        all_complete(report)
        # Four leases twice, and what was on its way when reads broke off.
        assert report.alpha <= 1.1
    assert fmean(report.alpha for report in reports) <= 1.02
    assert reports[0].t_last <= 1.35 * reports[0].t_lb, (
        "owners begin as soon as such reads would have ended"
    )


def test_a_tracker_lost_for_good_and_a_node_with_it() -> None:
    report = run(SMALL, no_tracker_after=0.3, crash=1 / 16)
    all_complete(report)
    assert report.alpha <= 1.1


def test_a_tracker_that_restarts_without_memory() -> None:
    report = run(SMALL, tracker_restart=0.3)
    all_complete(report)
    assert report.alpha <= 1.02


def test_a_tracker_that_restarts_with_its_notes_waits_for_the_members() -> None:
    """One that comes later may meet it first, and knows of nobody: without notes it reads for a second."""
    storm = Storm(
        nodes=3, runs=300, run_bytes=16 << 20, rate=1.25e9, origin_rate=1.25e9, late=1 / 3
    )
    late = [replace(storm, tracker_restart=0.5, seed=seed) for seed in range(1, 7)]
    assert max(run(one).alpha for one in late) > 1.02
    assert max(run(one, notes=True).alpha for one in late) <= 1.005


def test_a_node_is_killed() -> None:
    report = run(SMALL, crash=1 / 16)
    all_complete(report)
    assert report.alive == 15
    assert report.alpha <= 1.05


def test_one_node_at_a_tenth_of_the_speed_does_not_slow_the_others() -> None:
    report = run(SMALL, slow=1 / 16)
    all_complete(report)
    assert report.alpha <= 1.05
    assert report.eta >= 0.8


@pytest.mark.parametrize(("seed", "least"), [(3, 0.85), (4, 0.85)])
def test_a_slow_node_that_holds_a_run_alone_does_not_keep_the_others_waiting(
    seed: int, least: float
) -> None:
    """0.81 and 0.75 when it sent each run to four at once."""
    report = run(Storm(nodes=16, runs=128, slow=1 / 16, seed=seed))
    all_complete(report)
    assert report.eta_median >= 0.87
    assert report.eta >= least, (
        "one that asked the slow node last waits a second before it asks again"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 11, 14])
def test_late_nodes_do_not_take_the_places_of_others(seed: int) -> None:
    """As many runs as real models have at least: with few, the last rounds weigh more than the rule."""
    fabric = Storm(nodes=16, runs=1024, rate=3e6, origin_rate=3e6, queue_s=0.1, late=0.5)
    report = run(fabric, seed=seed)
    all_complete(report)
    assert report.eta >= 0.93


@pytest.mark.slow
def test_a_tenth_of_the_nodes_at_a_tenth_of_the_speed_cost_the_others_little() -> None:
    """The middle one of three seeds: one in ten ends late by chance, by up to a tenth (docs/lab/0110)."""
    storm = Storm(nodes=32, runs=256)
    calm, reports = run(storm), [run(storm, slow=0.1, seed=seed) for seed in (1, 2, 3)]
    for report in reports:
        all_complete(report)
        assert report.alpha <= 1.04
    assert sorted(report.eta for report in reports)[1] >= 0.93 * calm.eta


@pytest.mark.slow
def test_a_lost_tracker_costs_little_of_a_storm_that_is_longer_than_its_owners_patience() -> None:
    storm = Storm(nodes=16, runs=512)
    report = run(storm, no_tracker_after=0.3)
    all_complete(report)
    assert report.alpha <= 1.02
    assert report.eta >= 0.88


def test_a_late_joiner_costs_the_origin_nothing() -> None:
    storm = Run(Storm(nodes=16, runs=128, late=1 / 16, check_every=23))
    report = storm.go()
    all_complete(report)
    assert report.alpha == pytest.approx(1.0, abs=1e-9)
    (late,) = storm.late
    assert late.finished is not None
    assert late.finished - late.started < 1.3 * report.t_lb


@pytest.mark.parametrize(("odd", "witness"), [(1, True), (1, False), (12, True)])
def test_nodes_with_an_empty_mount_get_the_model_from_the_others(
    odd: int, *, witness: bool
) -> None:
    """Without a tracker that reads storage two that agree would stop all."""
    calm = run(SMALL)
    storm = Run(replace(SMALL, odd=odd, witness=witness))
    report = storm.go()
    all_complete(report)
    assert not any(node.corrupt for node in storm.cluster.nodes.values())
    assert 0 < report.mismatched <= odd * SMALL.settings.origin_fetches
    assert report.alpha <= 1.05
    assert report.eta >= 0.85 * calm.eta


def test_an_outage_of_the_origin_is_survived() -> None:
    report = run(SMALL, outage=1.0 / SMALL.scale_s, outage_s=5.0)
    all_complete(report)
    assert report.alpha <= 1.02
    assert report.t_last < 20


@pytest.mark.parametrize(
    ("nodes", "runs", "seed", "at"), [(2, 96, 5, 0.3), (3, 256, 3, 0.1), (3, 32, 2, 0.7)]
)
def test_storage_that_freezes_for_a_moment_costs_hardly_more_than_a_read_timeout(
    nodes: int, runs: int, seed: int, at: float
) -> None:
    """One node was found slow for each of its reads, the other was barred: the last run came 95, 32 and 32 s later."""
    storm = Storm(nodes=nodes, runs=runs, seed=seed)
    calm, frozen = run(storm), run(storm, frozen=at)
    all_complete(frozen)
    assert frozen.t_last - calm.t_last < READ_TIMEOUT_S + 2
    assert frozen.t_last > calm.t_last + storm.frozen_s, "nothing was frozen"


def test_a_read_that_is_cancelled_while_storage_is_frozen_ends_at_the_timeout() -> None:
    storm = Run(Storm(nodes=1, runs=16, frozen=0.3))
    storm.cluster.world.run(0.5 * storm.storm.scale_s, lambda: False)
    (node,) = storm.cluster.nodes.values()
    reads = len(node.reads)
    assert reads > 1
    for fetch in range(1, 1 + 16):  # those that aren't are passed over
        node.reads.cancel_read(fetch)
    assert len(node.reads) == reads
    all_complete(storm.go())


def test_the_same_seed_gives_the_same_trace_with_any_hash_seed(tmp_path: Path) -> None:
    hashes = set()
    for hash_seed in ("0", "1"):
        out = tmp_path / f"{hash_seed}.json"
        command = ["storm", "--nodes", "12", "--chunks", "64", "--crash", "0.1", "--json", str(out)]
        subprocess.run(
            [sys.executable, "-m", "p2pcache.sim", *command],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        hashes.add(json.loads(out.read_text())["trace"])
    assert len(hashes) == 1
    assert run(Storm(nodes=12, runs=64, crash=0.1, seed=2)).trace not in hashes


def test_ended_uploads_leave_no_reference_cycles() -> None:
    """It is off in large storms; what knows each other would be gigabytes of 10,000 nodes."""
    storm = Run(Storm(nodes=6, runs=60, crash=0.2))
    gc.collect()
    gc.disable()
    try:
        storm.go()
        left = sum(type(one) is Upload for one in gc.get_objects())
    finally:
        gc.enable()
    waiting = sum(node.load for node in storm.cluster.nodes.values())
    assert left <= waiting + 6, "of the node that crashed, its own"
