"""Storms where new runs come down trees: near the bound, and not far from it when something fails."""

import pytest

from p2pcache.core.forest import STRIPES
from p2pcache.core.settings import MemberSettings
from p2pcache.sim.report import Report
from p2pcache.sim.scenarios import START_SPREAD_S, Run, Storm, run

# Trees from a dozen nodes on: what may go wrong there is the same as in a swarm of many, and quicker.
FEW = MemberSettings(trees_from=12)
SOME = Storm(nodes=24, runs=256, members=FEW)


def all_complete(report: Report) -> None:
    assert report.complete == report.alive


def test_a_storm_of_many_ends_a_few_hops_after_storage() -> None:
    """Before there were trees: 0.900, and 38,000 questions for 25,000 runs."""
    report = run(Storm(nodes=100, runs=256, members=FEW))
    all_complete(report)
    assert report.alpha == pytest.approx(1.0)
    assert report.eta >= 0.93
    assert report.requests < 100 * 256 * 1.2


def test_a_calm_storm_ends_a_few_hops_after_storage() -> None:
    """Without trees: 0.900."""
    report = run(SOME)
    all_complete(report)
    assert report.alpha == pytest.approx(1.0)
    assert report.eta >= 0.95
    assert report.requests < 24 * 256 * 1.2


def test_the_first_runs_are_read_by_the_roots_of_their_stripes() -> None:
    """One node read two of them, and a stripe of which another node is the root was a hop late to the end (0040)."""
    storm = Run(SOME)
    storm.cluster.world.run(2 * START_SPREAD_S, lambda: False)
    mind = storm.cluster.tracker.mind
    assert mind is not None
    (swarm,) = mind.swarms.values()
    stories = [swarm.book.story(run) for run in range(STRIPES)]
    readers = [int(story[0].split()[-1], 16) for story in stories]
    assert readers == list(swarm.planting.forest.roots)


@pytest.mark.parametrize(
    ("name", "storm", "eta", "alpha"),
    [
        ("slow", Storm(nodes=24, runs=256, slow=0.1), 0.86, 1.01),
        ("crash", Storm(nodes=24, runs=256, crash=0.1), 0.92, 1.01),
        ("late", Storm(nodes=24, runs=256, late=0.5), 0.88, 1.01),
        ("no tracker", Storm(nodes=24, runs=256, no_tracker_after=0.3), 0.88, 1.005),
        ("hidden", Storm(nodes=24, runs=256, hidden=1), 0.85, 1.02),
        # Seeds 1 to 8: 0.807 to 0.900; in the mesh 0.846 to 0.920.
        ("two hidden", Storm(nodes=24, runs=256, hidden=2), 0.80, 1.02),
        ("liars", Storm(nodes=24, runs=256, liars=2), 0.80, 1.02),
        ("frozen", Storm(nodes=24, runs=256, frozen=0.4), 0.50, 1.05),
    ],
)
def test_what_trees_do_not_bring_neighbours_do(
    name: str, storm: Storm, eta: float, alpha: float
) -> None:
    report = run(storm, members=FEW, check_every=50)
    all_complete(report)
    assert report.eta >= eta, name
    assert report.alpha <= alpha, name
    if report.eta_late is not None:
        assert report.eta_late >= 1 / 1.15


def test_slow_nodes_keep_nobody_waiting_for_long() -> None:
    """A supplier tells of them at once (0036, 0038); before, they were found by what they lacked: 0.826."""
    report = run(Storm(nodes=100, runs=256, slow=0.1, seed=2, members=FEW))
    all_complete(report)
    assert report.alpha == pytest.approx(1.0)
    assert report.eta >= 0.85


def test_a_root_that_is_slow_from_the_start_costs_a_moment() -> None:
    """The first nodes to come are the roots. One at a tenth of the speed kept its stripe for 80 run times."""
    reports = [run(SOME, nodes=20, slow=0.05, seed=seed) for seed in (1, 4)]
    for report in reports:
        all_complete(report)
    assert min(report.eta for report in reports) >= 0.80


def test_a_tracker_that_restarts_plants_other_trees() -> None:
    report = run(SOME, tracker_restart=0.4, check_every=50)
    all_complete(report)
    assert report.alpha <= 1.01
    assert report.eta >= 0.80


def test_where_most_nodes_cannot_be_dialled_there_are_no_trees() -> None:
    """Trees leave what is short to a few; neighbours share it."""
    report = run(SOME, nodes=16, hidden=6)
    all_complete(report)
    assert report.eta >= 0.35


def test_a_decision_is_the_same_twice() -> None:
    first, second = (run(SOME, nodes=16, runs=96, crash=0.1, slow=0.1) for _ in range(2))
    assert first.trace == second.trace
