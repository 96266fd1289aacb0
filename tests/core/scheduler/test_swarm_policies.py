"""The small pure policies of a swarm, each against a plain model of what it promises."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core import bitset, rendezvous
from p2pcache.core.download import piece_picker
from p2pcache.core.origin.owners import OriginOwners, patience
from p2pcache.core.peers.peer_book import Peer, PeerBook
from p2pcache.core.peers.rarity import Rarity
from p2pcache.core.racks.bridges import Boundaries
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm.run_states import RunBook

SETTINGS = SwarmSettings()
PATIENCE_S = SETTINGS.owner_patience_s
RUNS = 40
bitsets = st.integers(0, (1 << RUNS) - 1)


@given(st.lists(bitsets, max_size=40), bitsets, st.randoms(use_true_random=False))
def test_rarity_counts_like_a_list(sets: list[int], wanted: int, dice: Random) -> None:
    rarity = Rarity()
    for have in sets:
        rarity.add(have)
    gone = [s for s in sets if dice.random() < 0.5]
    for have in gone:
        rarity.remove(have)
    left = Counter(sets) - Counter(gone)
    plain = Counter(r for s in left.elements() for r in bitset.members(s))
    assert [rarity.count(r) for r in range(RUNS)] == [plain[r] for r in range(RUNS)]
    assert rarity.held == bitset.of(plain)
    for holders in range(1, len(sets) + 2):
        many = [run for run, count in plain.items() if count >= holders]
        assert rarity.at_least(holders) == bitset.of(many)
    if wanted:
        fewest = min(plain[r] for r in bitset.members(wanted))
        expected = bitset.of(r for r in bitset.members(wanted) if plain[r] == fewest)
        assert rarity.rarest(wanted) == expected
    else:
        assert rarity.rarest(0) == 0


@given(bitsets, bitsets, bitsets, st.integers(0, 1000))
def test_a_choice_is_wanted_and_offered(have: int, asked: int, offered: int, seed: int) -> None:
    mine = RunBook(RUNS, have)
    mine.asked = asked & mine.missing
    window = mine.window(8)
    run = piece_picker.choose_run(mine, offered, Rarity(), window, Random(seed))
    wanted = offered & mine.free
    if wanted:
        assert wanted >> run & 1
        assert window >> run & 1 or not wanted & window
    else:
        assert run == -1


@given(
    st.lists(
        st.tuples(bitsets, st.integers(0, 3), st.integers(0, 8), st.booleans(), st.booleans()),
        max_size=12,
    ),
    bitsets.filter(bool),
    st.integers(0, 1000),
)
def test_a_peer_choice_is_the_least_burdened_that_may_be_asked(
    rows: list[tuple[int, int, int, bool, bool]], wanted: int, seed: int
) -> None:
    peers = []
    for node, (have, asked, load, rests, slow) in enumerate(rows):
        peer = Peer(node, have, 0.0)
        peer.asked, peer.load, peer.slow = asked, load, slow
        peer.rest_until = 20.0 if rests else 0.0
        peers.append(peer)
    choice = piece_picker.choose_peer(peers, wanted, 10.0, 2, Random(seed))
    quick = [p for p in peers if not p.slow]
    elsewhere = bitset.of(r for p in quick for r in bitset.members(p.have))
    able = [
        p
        for p in peers
        if p.have & wanted
        and p.rest_until <= 10.0
        and p.asked < (1 if p.slow else 2)
        and (not p.slow or p.have & wanted & ~elsewhere)
    ]
    if able:
        best = min((p.asked, p.load) for p in able)
        assert choice.peer in able
        assert (choice.peer.asked, choice.peer.load) == best
    else:
        assert choice.peer is None


def test_dice_are_fair_over_equal_peers_and_runs() -> None:
    dice = Random(1)
    peers = [Peer(n, 1, 0.0) for n in range(4)]
    chosen: Counter[int] = Counter()
    for _ in range(4000):
        peer = piece_picker.choose_peer(peers, 1, 0.0, 2, dice).peer
        assert peer is not None
        chosen[peer.node] += 1
    assert all(900 < chosen[n] < 1100 for n in range(4))
    runs = Counter(piece_picker.any_of(0b10110001, dice) for _ in range(4000))
    assert set(runs) == {0, 4, 5, 7}
    assert all(900 < n < 1100 for n in runs.values())


@given(st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=20), st.integers(0, 10**6))
def test_rendezvous_is_one_order_for_all(nodes: set[int], run: int) -> None:
    order = rendezvous.order(run, nodes)
    assert sorted(order) == sorted(nodes)
    assert rendezvous.owner(run, nodes) == order[0]
    assert rendezvous.order(run, sorted(nodes, reverse=True)) == order
    survivors = nodes - {order[0]}
    assert rendezvous.order(run, survivors) == order[1:], "only the dead node's runs move"


def test_rendezvous_is_the_same_in_every_process_and_fair() -> None:
    assert [rendezvous.weight(n, r) for n, r in ((1, 0), (1, 1), (2**62, 7))] == [
        0xE4D971771B652C20,
        0xBEEB8DA1658EEC67,
        0x95B04985A6E5D6A3,
    ]
    shares = Counter(rendezvous.owner(run, range(10)) for run in range(10_000))
    assert all(850 < n < 1150 for n in shares.values())


def test_rendezvous_of_nobody_is_nobody() -> None:
    assert rendezvous.owner(3, ()) is None
    owners = OriginOwners(1, SETTINGS)
    assert owners.plan([1, 2], (), 100.0, 5.0, PATIENCE_S).read == []


@given(st.integers(1, 8), st.integers(0, 31))
def test_each_run_has_one_reader_however_the_members_look_at_it(count: int, run: int) -> None:
    nodes = range(1, count + 1)
    readers = []
    for node in nodes:
        owners = OriginOwners(node, SETTINGS)
        owners.on_members(nodes)
        readers += owners.plan([run], set(nodes) - {node}, 0.0, 0.0, PATIENCE_S).read
    assert readers == [run]


def test_a_dead_owner_is_dialled_once_and_then_replaced() -> None:
    nodes = (1, 2)
    run = next(r for r in range(100) if rendezvous.owner(r, nodes) == 2)
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    plan = owners.plan([run], (), 0.0, 0.0, PATIENCE_S)
    assert (plan.read, plan.dial) == ([], [])  # it may well come through a neighbour
    assert plan.wake_at <= SETTINGS.stuck_after_s
    assert owners.plan([run], (), 0.0, SETTINGS.stuck_after_s, PATIENCE_S).dial == [2]
    assert owners.plan([run], (), 0.0, SETTINGS.stuck_after_s + 1, PATIENCE_S).dial == []
    owners.on_peer_failed(2)
    assert owners.plan([run], (), 0.0, 6.0, PATIENCE_S).read == [run]
    owners.on_peer_joined(2)
    assert owners.plan([run], (2,), 0.0, 7.0, PATIENCE_S).read == []


def test_an_owner_that_lets_everybody_wait_loses_all_its_runs() -> None:
    nodes = (1, 2)
    theirs = [r for r in range(100) if rendezvous.owner(r, nodes) == 2][:20]
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    assert owners.plan(theirs, {2}, 0.0, 0.0, PATIENCE_S).read == []
    assert owners.plan(theirs, {2}, 1.0, PATIENCE_S, PATIENCE_S).read == [], (
        "something came from somebody lately"
    )
    assert owners.plan(theirs, {2}, PATIENCE_S, PATIENCE_S, PATIENCE_S).read == theirs
    owners.on_members(nodes)
    owners.on_peer_failed(2)
    assert owners.plan(theirs, {2}, 0.0, PATIENCE_S, PATIENCE_S).read == theirs, (
        "a liar owns nothing"
    )


def many_owners() -> tuple[OriginOwners, list[int]]:
    """One that owns none of these runs, which eight others should read; they are waited for."""
    nodes = tuple(range(1, 10))
    owners = OriginOwners(1, SETTINGS)
    owners.on_members(nodes)
    theirs = [run for run in range(60) if rendezvous.owner(run, nodes) != 1]
    owners.plan(theirs, nodes, 0.0, 0.0, PATIENCE_S)
    return owners, theirs


def test_while_nothing_comes_from_anybody_one_owner_at_a_time_is_passed_over() -> None:
    """Storage was silent for 15 s: each of 8 nodes passed over all others and read everything, 6 copies."""
    owners, theirs = many_owners()
    before = len(owners.live)
    for rounds in (1, 2, 3):
        now = rounds * PATIENCE_S + 0.1
        owners.plan(theirs, owners.live, now, now, PATIENCE_S)
        assert len(owners.live) == before - rounds
        owners.plan(theirs, owners.live, now, now + 1.0, PATIENCE_S)
        assert len(owners.live) == before - rounds, "who comes next in order has its own time"


def test_when_the_next_in_order_gets_something_all_other_idle_owners_are_passed_over() -> None:
    owners, theirs = many_owners()
    owners.plan(theirs, owners.live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    left = len(owners.live)
    came = PATIENCE_S + 1.0
    owners.plan(theirs, owners.live, 0.0, came, PATIENCE_S)
    assert len(owners.live) == left, "others may follow"
    soon = PATIENCE_S / 4
    owners.plan(theirs, owners.live, soon, came + soon, PATIENCE_S)
    assert len(owners.live) <= 2


def test_an_owner_that_brings_its_own_run_was_not_idle_once() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    own = next(run for run in theirs if rendezvous.owner(run, live) == idle)
    other = next(run for run in theirs if rendezvous.owner(run, live) != idle)
    owners.on_new_runs(idle, 1 << other)
    assert idle not in owners.live, "somebody else has read that"
    owners.on_new_runs(idle, 1 << own)
    assert owners.live == live
    owners.plan(theirs, live, 0.0, PATIENCE_S, PATIENCE_S)
    for later in (3, 9):  # again, and by now somebody else as well
        owners.plan(theirs, live, later * PATIENCE_S, later * PATIENCE_S, PATIENCE_S)
    owners.on_peer_failed(idle)
    owners.on_new_runs(idle, 1 << own)
    assert idle not in owners.live, "the second time it is so"


def test_an_idle_owner_that_lies_does_not_get_its_place_back() -> None:
    owners, theirs = many_owners()
    live = owners.live
    owners.plan(theirs, live, PATIENCE_S, PATIENCE_S, PATIENCE_S)
    (idle,) = set(live) - set(owners.live)
    owners.on_peer_failed(idle)
    owners.on_new_runs(
        idle, 1 << next(run for run in theirs if rendezvous.owner(run, live) == idle)
    )
    assert idle not in owners.live


def test_owners_have_the_time_that_reads_take_which_share_an_uplink() -> None:
    assert patience(SETTINGS, 40, 0.0) == PATIENCE_S, "it isn't known"
    assert patience(SETTINGS, 40, 0.05) == PATIENCE_S
    assert patience(SETTINGS, 40, 0.5) == 40.0
    assert patience(SETTINGS, 3, 0.5) == PATIENCE_S


def test_neighbours_are_members_even_if_the_tracker_had_no_time_to_say_so() -> None:
    readers = []
    for node in (1, 2, 3):
        owners = OriginOwners(node, SETTINGS)
        owners.on_members({1, node})  # each was told another list
        for other in {1, 2, 3} - {node}:
            owners.on_peer_joined(other)
        readers += owners.plan(range(32), {1, 2, 3}, 0.0, 0.0, PATIENCE_S).read
    assert sorted(readers) == list(range(32))
    owners = OriginOwners(1, SETTINGS)
    owners.on_peer_joined(2)
    assert owners.plan([0, 1, 2], {2}, 0.0, 0.0, PATIENCE_S).read == [], (
        "never told anything: reads nothing"
    )


def test_a_slow_peer_is_found_out_and_gets_another_chance() -> None:
    book = PeerBook(SETTINGS, Boundaries(1, RUNS))
    for node in range(4):
        peer = book.join(node, 1, 0.0)
        assert peer is not None
        peer.owes(0.0)
        peer.paid(100 if node == 3 else 1000, 1.0)
    book.review(1.0)
    assert [p.slow for p in book.peers.values()] == [False, False, False, True]
    assert sum(p.slow for p in book.peers.values()) == 1
    book.check()
    book.review(1.0 + SETTINGS.slow_retry_s * 1.1)
    assert not any(p.slow for p in book.peers.values())


def test_a_peer_that_owes_and_sends_nothing_becomes_slow_by_that_alone() -> None:
    book = PeerBook(SETTINGS, Boundaries(1, RUNS))
    for node in range(4):
        book.join(node, 1, 0.0)
    for peer in book.peers.values():
        peer.owes(0.0)
    for second in range(1, 10):
        for peer in book.peers.values():
            if peer.node != 3 or second < 3:
                peer.paid(1000, float(second))
                peer.owes(float(second))
        book.review(float(second))
        slow = [p.node for p in book.peers.values() if p.slow]
        assert slow == ([3] if second > 6 else []), second


def book_of(*haves: int, runs: int = 1000) -> PeerBook:
    book = PeerBook(SETTINGS, Boundaries(1, runs))
    for number, have in enumerate(haves):
        book.join(2 + number, have, 0.0)
    return book


def test_who_lacks_what_most_neighbours_have_asks_for_more() -> None:
    one = SETTINGS.outstanding
    old = bitset.full(3 * one)
    book = book_of(*[old] * 6, 0, 0)
    assert book.lag_requests(bitset.full(one - 1)) == 0
    assert book.lag_requests(bitset.full(one)) == 1
    assert book.lag_requests(bitset.full(2 * one)) == 2
    assert book.lag_requests(bitset.full(3 * one)) == 2, "and no more than that"
    assert book.lag_requests(0) == 0
    assert book_of(*[old] * 5, 0, 0, 0).lag_requests(old) == 0, "it is new to many"
    assert book_of().lag_requests(old) == 0
    new = bitset.full(5 * one) & ~old
    assert book_of(*[old] * 7, old | new).lag_requests(new | bitset.full(one)) == 0, (
        "all lack that much"
    )


def test_who_lacks_very_much_asks_for_no_more_than_the_others() -> None:
    """It came late or has a slow link: more for it is less for all who came in time."""
    runs = 9 * SETTINGS.outstanding
    book = book_of(*[bitset.full(runs)] * 8)
    assert book.lag_requests(bitset.full(runs)) == 0
    assert book.lag_requests(bitset.full(SETTINGS.outstanding)) == 1
