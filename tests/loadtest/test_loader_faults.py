"""A short form of `make loader-faults`: a few loads of each kind."""

import os

import pytest

from loadtest.loader_faults import KINDS, run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_loads_under_faults_give_the_right_bytes_or_a_clear_error(kind: str) -> None:
    if kind == "full" and os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    loads = 1 if kind in ("liar", "slow") else 2
    (tally,) = run([kind], loads, seed=7).values()
    assert not tally.broken
    assert tally.right + tally.errors.total() == loads
