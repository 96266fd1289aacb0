"""A set to draw from at random."""

import random
from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.membership.sampled_set import SampledSet


def of(members: Iterable[int]) -> SampledSet:
    sampled = SampledSet()
    for member in members:
        sampled.add(member)
    return sampled


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60)


@given(steps)
def test_it_holds_what_a_set_holds(script: list[tuple[bool, int]]) -> None:
    model: set[int] = set()
    sampled = SampledSet()
    for add, member in script:
        (sampled.add if add else sampled.discard)(member)
        (model.add if add else model.discard)(member)
        sampled.check()
        assert sorted(sampled) == sorted(model)
        assert len(sampled) == len(model)
        assert all((one in sampled) == (one in model) for one in range(10))


@given(steps, st.integers(0, 12), st.integers(0, 5))
def test_a_draw_has_different_members_only(
    script: list[tuple[bool, int]], count: int, seed: int
) -> None:
    sampled = of(range(5))
    for add, member in script:
        (sampled.add if add else sampled.discard)(member)
    drawn = sampled.draw(random.Random(seed), count)
    assert len(drawn) == len(set(drawn)) == min(count, len(sampled))
    assert set(drawn) <= set(sampled)


def test_each_member_is_drawn_alike_after_removals() -> None:
    sampled = of(range(20))
    for gone in range(0, 20, 2):
        sampled.discard(gone)
    dice = random.Random(1)
    draws = 5000
    counts = Counter(one for _ in range(draws) for one in sampled.draw(dice, 1))
    assert sorted(counts) == list(range(1, 20, 2))
    assert all(abs(count - draws / 10) < draws / 40 for count in counts.values())


def test_the_same_history_and_seed_draw_the_same() -> None:
    def drawn() -> list[int]:
        sampled = of([9, 1, 5])
        sampled.discard(9)
        sampled.add(7)
        return sampled.draw(random.Random(3), 3)

    assert drawn() == drawn()
    assert set(drawn()) == {1, 5, 7}
