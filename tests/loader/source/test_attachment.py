"""What an attachment tells its agent."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.loader.source.attachment import _run_ranges


@given(st.sets(st.integers(0, 200)))
def test_run_ranges_are_the_set_in_order(runs: set[int]) -> None:
    bits = sum(1 << run for run in runs)
    pairs = list(_run_ranges(bits))
    assert {run for start, end in pairs for run in range(start, end)} == runs
    assert all(a[1] < b[0] for a, b in itertools.pairwise(pairs))
