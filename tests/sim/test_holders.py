"""Storms with holders that deliver nothing, or wrong bytes: a little later, and storage is read once."""

from dataclasses import replace

import pytest

from p2pcache.sim.scenarios import Run, Storm, run

CALM = Storm(nodes=8, runs=96, check_every=7)
LIAR = Storm(nodes=16, runs=128, check_every=23, liars=1)
LATER_S = 22.0


def ends(storm: Storm, calm: Storm = CALM) -> float:
    """Run both; the storm's alpha."""
    usual, report = Run(calm).go(), Run(storm).go()
    assert report.complete == report.alive
    assert report.t_last < usual.t_last + LATER_S
    return report.alpha


@pytest.mark.parametrize("kind", ["hung", "dripping", "busy"])
@pytest.mark.parametrize("nodes", [1, 8])
def test_holders_of_everything_that_deliver_nothing(kind: str, nodes: int) -> None:
    calm = replace(CALM, nodes=nodes)
    for count in (1, 2):
        alpha = ends(replace(calm, **{kind: count}), calm)  # type: ignore[arg-type]
        assert alpha == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("kind", ["hung", "dripping", "busy"])
def test_readers_of_storage_that_deliver_nothing(kind: str) -> None:
    assert ends(replace(CALM, reading=True, **{kind: 1})) < 1.2  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [{"racks": 2}, {"parts": 4}, {"no_tracker_after": 0.3}])
def test_silent_holders_in_racks_with_parts_and_without_a_tracker(place: dict[str, object]) -> None:
    calm = replace(CALM, **place)  # type: ignore[arg-type]
    assert ends(replace(calm, hung=1), calm) == pytest.approx(1.0, abs=0.02)


def test_all_nodes_find_a_liar_and_keep_no_wrong_byte() -> None:
    report = run(LIAR)
    assert report.complete == report.alive
    assert report.alpha <= 1.05
    assert 0 < report.mismatched <= 8 * report.nodes  # a few are in flight when it is found out


def test_a_liar_that_pulls_is_served_and_reads_no_copy_of_its_own() -> None:
    """Refused by all, a real one read storage for itself: 1.2 to 1.7 copies left it."""
    report = run(LIAR, reading=True)
    assert report.complete == report.alive
    assert report.alpha <= 1.02, "a few of its leases at most"
    assert report.mismatched > 0
