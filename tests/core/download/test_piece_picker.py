"""Choices of a run and of a neighbour, against plain models."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset
from p2pcache.core.download import piece_picker
from p2pcache.core.peers.peer import Peer
from p2pcache.core.peers.rarity import Rarity

RUNS = 40
bitsets = st.integers(0, (1 << RUNS) - 1)


@given(bitsets.filter(bool), bitsets, bitsets, st.integers(0, 1000))
def test_an_offered_run_is_chosen(offered: int, urgent: int, window: int, seed: int) -> None:
    run = piece_picker.choose_run(offered, urgent, window, Rarity(), Random(seed))
    assert offered >> run & 1
    if offered & urgent:
        assert run == bitset.first(offered & urgent)
    else:
        assert window >> run & 1 or not offered & window


@given(
    st.lists(
        st.tuples(bitsets, st.integers(0, 3), st.booleans(), st.booleans()),
        max_size=12,
    ),
    bitsets.filter(bool),
    st.integers(0, 1000),
)
def test_a_peer_choice_is_the_least_burdened_that_may_be_asked(
    rows: list[tuple[int, int, bool, bool]], wanted: int, seed: int
) -> None:
    peers = []
    for node, (have, asked, rests, delivers) in enumerate(rows):
        peer = Peer(node, have, 0.0)
        peer.in_flight, peer.delivers = asked, delivers
        peer.rest_until = 20.0 if rests else 0.0
        peers.append(peer)
    chosen, _ = piece_picker.choose_peer(peers, wanted, 10.0, 2, Random(seed))
    able = [
        p
        for p in peers
        if p.have & wanted and p.rest_until <= 10.0 and p.in_flight < (2 if p.delivers else 1)
    ]
    if able:
        assert chosen in able
        assert chosen.in_flight == min(p.in_flight for p in able)
    else:
        assert chosen is None


def test_dice_are_fair_over_equal_peers_and_runs() -> None:
    dice = Random(1)
    peers = [Peer(n, 1, 0.0) for n in range(4)]
    chosen: Counter[int] = Counter()
    for _ in range(4000):
        peer, _ = piece_picker.choose_peer(peers, 1, 0.0, 2, dice)
        assert peer is not None
        chosen[peer.node] += 1
    assert all(900 < chosen[n] < 1100 for n in range(4))
    runs = Counter(piece_picker.any_of(0b10110001, dice) for _ in range(4000))
    assert set(runs) == {0, 4, 5, 7}
    assert all(900 < n < 1100 for n in runs.values())
