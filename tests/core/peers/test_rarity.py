"""Counts of holders, against a list of counts."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.peers.rarity import Rarity

RUNS = 40
bitsets = st.integers(0, (1 << RUNS) - 1)


@given(st.lists(bitsets, max_size=40), bitsets, st.randoms(use_true_random=False))
def test_rarity_counts_like_a_list(sets: list[int], wanted: int, dice: Random) -> None:
    rarity = Rarity()
    for have in sets:
        rarity.add_holder(have)
    gone = [s for s in sets if dice.random() < 0.5]
    for have in gone:
        rarity.remove_holder(have)
    left = Counter(sets) - Counter(gone)
    plain = Counter(r for s in left.elements() for r in bitset.members(s))
    counts = [sum((p >> r & 1) << i for i, p in enumerate(rarity.planes)) for r in range(RUNS)]
    assert counts == [plain[r] for r in range(RUNS)]
    assert rarity.held == bitset.of(plain)
    assert rarity.common == bitset.of(r for r in plain if plain[r] > 1)
    if wanted:
        fewest = min(plain[r] for r in bitset.members(wanted))
        expected = bitset.of(r for r in bitset.members(wanted) if plain[r] == fewest)
        assert rarity.rarest(wanted) == expected
    else:
        assert rarity.rarest(0) == 0
