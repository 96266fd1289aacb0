"""Stripes: sizes, and which of them a node has."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.pool.settings import LEAST_STRIPES, STRIPE_BYTES
from p2pcache.core.pool.stripes import Stripes

MiB = 1 << 20


def test_stripes_of_a_usual_model_are_runs() -> None:
    cut = Stripes([4 * MiB] * 256)
    assert (len(cut), cut.runs_each) == (256, 1)


def test_stripes_of_a_large_model_are_at_most_so_large_and_enough() -> None:
    cut = Stripes([16 * MiB] * 100_000)
    assert cut.largest == STRIPE_BYTES
    assert len(cut) >= LEAST_STRIPES
    small = Stripes([256 * 1024] * 20_000)
    assert (len(small), small.runs_each) == (5000, 4)


def test_a_whole_model_is_one_stripe_and_an_empty_one_none() -> None:
    cut = Stripes([5, 6, 7], whole=True)
    assert (list(cut.sizes), cut.had(0b111), cut.had(0b011)) == ([18], 1, 0)
    assert len(Stripes([])) == 0


@given(st.integers(1, 3 * LEAST_STRIPES), st.randoms(use_true_random=False))
def test_a_node_has_the_stripes_of_which_it_has_every_run(runs: int, dice) -> None:  # type: ignore[no-untyped-def]
    cut = Stripes([MiB] * runs)
    have = bitset.full(runs) & ~bitset.of(dice.sample(range(runs), min(runs, 5)))
    expected = [
        s for s in range(len(cut))
        if all(have >> r & 1 for r in range(s * cut.runs_each, min(runs, (s + 1) * cut.runs_each)))
    ]  # fmt: skip
    assert list(bitset.members(cut.had(have))) == expected


@given(st.sets(st.integers(0, LEAST_STRIPES)))
def test_ranges_name_the_runs_of_stripes_and_no_other(chosen: set[int]) -> None:
    cut = Stripes([MiB] * (4 * LEAST_STRIPES + 3))
    runs = [r for a, b in cut.ranges(sorted(chosen)) for r in range(a, b)]
    expected = [
        r for s in sorted(chosen)
        for r in range(s * cut.runs_each, min(cut.run_count, (s + 1) * cut.runs_each))
    ]  # fmt: skip
    assert runs == expected
