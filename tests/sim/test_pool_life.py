"""Models that are kept while nodes are lost and come: nothing is lost that had a survivor, and little moves."""

import pytest

from p2pcache.sim.__main__ import main
from p2pcache.sim.pool_life import Life, live

LIVES = [
    Life(nodes=60, models=6, racks=6, usual_bytes=2e9),
    Life(nodes=24, models=4, racks=5, copies=3, lost=0.1, usual_bytes=1e9, seed=2),
]


@pytest.mark.parametrize("life", LIVES)
def test_a_loss_is_repaired_from_survivors_and_a_join_moves_a_share(life: Life) -> None:
    found = live(life)
    assert found.lost_bytes > 0
    assert found.short == 0
    assert found.from_storage == found.orphans
    assert 1.0 <= found.moved <= 1.2
    assert found.joined <= 1.5
    assert found.spread < 1.25


def test_the_command_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "--nodes", "8", "--models", "1", "--racks", "4", "--lost", "0.2"]) == 0
    assert "moved / lost" in capsys.readouterr().out
