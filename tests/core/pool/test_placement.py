"""Placement: each stripe K times, on different nodes, in different racks, as nodes weigh; and little moves."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.core.pool.placement import Placement, shares_of
from p2pcache.core.pool.spots import Spot
from p2pcache.core.pool.stripes import Stripes
from p2pcache.ids import NodeId
from tests.core.pool.pool_kit import PLENTY, had_after, moved, racks_of, rooms_of

KiB = 1024


def spots_of(
    count: int, racks: int = 1, seed: int = 1, weights: tuple[float, ...] = (1.0,)
) -> dict[NodeId, Spot]:
    dice = random.Random(seed)
    return {
        dice.getrandbits(63): Spot("eu", f"r{i % racks}", weights[i % len(weights)])
        for i in range(count)
    }


def placed(spots: dict[NodeId, Spot], runs: int, copies: int) -> Placement:
    placement = Placement(Stripes([4 * KiB] * runs), 77, rooms_of(spots))
    placement.settle(copies, spots, {})
    placement.check()
    return placement


pools = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(0, 10_000))


@settings(max_examples=40)
@given(pools, st.integers(1, 120), st.integers(1, 3), st.sampled_from([(1.0,), (1.0, 2.0), (1.0, 8.0)]))  # fmt: skip
def test_each_stripe_has_its_copies_and_each_node_its_share(
    pool: tuple[int, int, int], runs: int, copies: int, weights: tuple[float, ...]
) -> None:
    count, racks, seed = pool
    spots = spots_of(count, racks, seed, weights)
    placement = placed(spots, runs, copies)
    wanted = min(copies, count)
    assert {len(targets) for targets in placement.targets} == {wanted}
    total = placement.stripes.total_bytes
    shares = shares_of(spots, wanted * total, total)
    for node in spots:
        limit = 1.1 * shares[node] + placement.stripes.largest
        assert placement.loads.get(node, 0) <= limit or wanted > 1  # then other racks count more


def test_eight_nodes_have_shares_within_a_tenth() -> None:
    placement = placed(spots_of(8, 8), 256, 1)
    share = placement.stripes.total_bytes / 8
    assert all(0.85 * share < load < 1.1 * share for load in placement.loads.values())


def test_copies_lie_in_different_racks_and_sites() -> None:
    spots = spots_of(24, 6)
    placement = placed(spots, 400, 3)
    assert all(len(racks_of(spots, targets)) == 3 for targets in placement.targets)
    sites = {n: s._replace(site=("eu", "us")[i % 2], rack="r") for i, (n, s) in enumerate(spots.items())}  # fmt: skip
    placement = placed(sites, 400, 2)
    assert all(len(racks_of(sites, targets)) == 2 for targets in placement.targets)


def test_weights_are_shares() -> None:
    spots = spots_of(10, 1, weights=(1.0, 3.0))
    placement = placed(spots, 2000, 1)
    heavy = sum(placement.loads[n] for n, s in spots.items() if s.weight == 3.0)
    assert abs(heavy / placement.stripes.total_bytes - 0.75) < 0.03


def test_room_is_a_limit_that_is_never_passed() -> None:
    spots = spots_of(4)
    rooms = rooms_of(spots, 10 * 4 * KiB)
    placement = Placement(Stripes([4 * KiB] * 100), 1, rooms)
    placement.settle(1, spots, {})
    assert all(load == 10 * 4 * KiB for load in placement.loads.values())
    assert sum(not targets for targets in placement.targets) == 60
    placement.leave()
    assert not rooms.taken


@settings(max_examples=40)
@given(pools, st.integers(2, 3), st.integers(0, 10_000))
def test_a_loss_moves_only_what_was_lost(
    pool: tuple[int, int, int], copies: int, seed: int
) -> None:
    count, racks, _ = pool
    spots = spots_of(count + 4, racks, seed)
    placement = placed(spots, 300, copies)
    before, gone = list(placement.targets), random.Random(seed).choice(list(spots))
    lost = placement.loads.get(gone, 0)
    left = {n: s for n, s in spots.items() if n != gone}
    have = {n: h for n, h in had_after(placement).items() if n != gone}
    placement.settle(copies, left, have)
    placement.check()
    assert {len(targets) for targets in placement.targets} == {copies}
    assert lost <= moved(placement.stripes, before, placement.targets) <= 1.2 * lost + 4 * KiB


@settings(max_examples=40)
@given(pools, st.integers(1, 3))
def test_a_join_moves_the_share_of_the_new_node(pool: tuple[int, int, int], copies: int) -> None:
    count, racks, seed = pool
    spots = spots_of(count + 3, racks, seed)
    placement = placed(spots, 300, copies)
    before = list(placement.targets)
    more = {**spots, 4711: Spot("eu", "new", 1.0)}
    placement.rooms.total[4711] = PLENTY
    placement.settle(copies, more, had_after(placement))
    placement.check()
    share = copies * placement.stripes.total_bytes / len(more)
    assert moved(placement.stripes, before, placement.targets) <= 1.5 * share + 4 * KiB
    assert placement.loads.get(4711, 0) >= 0.5 * share


@settings(max_examples=30)
@given(pools, st.integers(1, 3))
def test_a_placement_that_begins_anew_finds_everything_where_it_is(
    pool: tuple[int, int, int], copies: int
) -> None:
    count, racks, seed = pool
    spots = spots_of(count + copies, racks, seed)
    placement = placed(spots, 200, copies)
    again = Placement(placement.stripes, 77, rooms_of(spots))
    again.settle(copies, spots, had_after(placement), may_copy=False)
    assert moved(placement.stripes, placement.targets, again.targets) == 0
    assert {len(targets) for targets in again.targets} == {copies}


def test_settling_again_changes_nothing() -> None:
    spots = spots_of(30, 5)
    placement = placed(spots, 900, 2)
    before = list(placement.targets)
    placement.settle(2, spots, had_after(placement))
    assert placement.targets == before


def test_a_node_that_comes_back_gets_its_places_without_a_byte() -> None:
    spots = spots_of(9, 3)
    placement = placed(spots, 500, 2)
    had = had_after(placement)
    gone = next(iter(spots))
    placement.settle(2, {n: s for n, s in spots.items() if n != gone}, had)
    before, there = list(placement.targets), had_after(placement)
    there[gone] = had[gone]
    placement.settle(2, spots, there)
    assert placement.loads[gone] > 0.7 * 2 * placement.stripes.total_bytes / 9
    for stripe, (old, new) in enumerate(zip(before, placement.targets, strict=True)):
        assert set(new) - set(old) <= {gone}
        assert gone not in set(new) - set(old) or had[gone] >> stripe & 1


def test_what_one_node_pulled_is_spread() -> None:
    spots = spots_of(8)
    placement = Placement(Stripes([4 * KiB] * 256), 3, rooms_of(spots))
    one = next(iter(spots))
    placement.settle(1, spots, {one: (1 << 256) - 1})
    share = placement.stripes.total_bytes / 8
    assert all(0.75 * share < load < 1.25 * share for load in placement.loads.values())


def test_nodes_that_are_away_keep_their_places_and_get_none() -> None:
    spots = spots_of(6)
    placement = placed(spots, 200, 1)
    one = next(iter(spots))
    load = placement.loads[one]
    away = {n: s._replace(present=n != one) for n, s in spots.items()}
    placement.settle(2, away, had_after(placement))
    assert placement.loads[one] == load
    assert {len(targets) for targets in placement.targets} == {2}
