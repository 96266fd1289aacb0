"""Storms with holders that deliver nothing: a little later, and storage is read once."""

from dataclasses import replace

import pytest

from p2pcache.sim.scenarios import Run, Storm

CALM = Storm(nodes=8, runs=96, check_every=7)
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
