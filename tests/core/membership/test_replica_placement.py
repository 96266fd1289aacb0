"""Which nodes are told to fetch a model: far apart, where there is room, the same ones for the same dice."""

import random
import time

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.replica_placement import choose
from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import World, X, state

SIZE = 100
places = st.tuples(st.sampled_from("AB"), st.sampled_from(["r1", "r2", "r3"]))
nodes = st.builds(lambda place, free: (place, free), places, st.integers(0, 300))


def node(number: int, place: tuple[str, str] = ("", ""), free: int = 1000) -> Node:
    site, rack = place
    member = m.Member(number, f"10.0.0.{number}:7401", rack, site)
    return Node(member, m.Announce("", "1"), 0.0, beat=m.Heartbeat(free_bytes=free))


def dice(seed: int = 1) -> random.Random:
    return random.Random(seed)


def test_most_free_space_first_and_who_has_too_little_last() -> None:
    some = {1: node(1, free=50), 2: node(2, free=300), 3: node(3, free=200)}
    assert choose(some, [], 3, SIZE, dice()) == [2, 3, 1]
    assert choose(some, [], 2, 250, dice()) == [2, 3]


def test_copies_lie_far_apart() -> None:
    some = {
        n: node(n, place, free)
        for n, place, free in (
            (1, ("A", "r1"), 900), (2, ("A", "r1"), 800), (3, ("A", "r2"), 200), (4, ("B", "r1"), 150),
        )
    }  # fmt: skip
    assert choose(some, [], 4, SIZE, dice()) == [1, 4, 3, 2]
    assert choose(some, [node(9, ("A", "r1"))], 2, SIZE, dice()) == [4, 3]


def test_nodes_that_are_alike_are_chosen_by_dice() -> None:
    some = {n: node(n) for n in range(50)}
    first = {choose(some, [], 1, SIZE, dice(seed))[0] for seed in range(100)}
    assert len(first) > 20


def test_copies_on_all_of_many_racks_are_placed_at_once() -> None:
    """With a look at all racks for each copy the time grew by the square."""
    some = {n: node(n, (str(n % 2), str(n))) for n in range(10_000)}
    began = time.thread_time()
    assert len(choose(some, [], 10_000, SIZE, dice())) == 10_000
    assert time.thread_time() - began < 3.0


@given(
    st.lists(nodes, max_size=12),
    st.lists(places, max_size=4),
    st.integers(-1, 14),
    st.integers(0, 9),
)
def test_the_choice(
    told: list[tuple[tuple[str, str], int]], held: list[tuple[str, str]], count: int, seed: int
) -> None:
    some = {n: node(n, place, free) for n, (place, free) in enumerate(told)}
    holders = [node(100, place) for place in held]
    chosen = choose(some, holders, count, SIZE, dice(seed))
    assert chosen == choose(dict(reversed(some.items())), holders, count, SIZE, dice(seed))
    assert len(chosen) == len(set(chosen)) == max(0, min(count, len(some)))
    assert set(chosen) <= some.keys()
    copies = [(h.member.site, h.member.rack) for h in holders]
    left = dict(some)
    for number in chosen:  # each was the best of the remaining ones, by a slow search
        best = min(_rank(record, copies) for record in left.values())
        record = left.pop(number)
        assert _rank(record, copies) == best
        copies.append((record.member.site, record.member.rack))


def _rank(record: Node, copies: list[tuple[str, str]]) -> tuple[bool, int, int, int]:
    place = (record.member.site, record.member.rack)
    in_site = sum(site == place[0] for site, _ in copies)
    return record.beat.free_bytes < SIZE, in_site, copies.count(place), -record.beat.free_bytes


def test_the_tracker_knows_who_has_it_who_gets_it_and_who_can_be_told() -> None:
    world = World()
    full = (1 << 32) - 1
    for number in (1, 2, 3):
        world.join(number, have=full if number == 1 else 0)
    world.say(4, m.Announce("10.0.0.4:7401", "1", warms=True))
    world.announce(5)
    pulling = msgspec.structs.replace(state(), pulled=True)
    world.say(3, m.Heartbeat(swarms=(pulling,)))
    spread = world.tracking.replica_placement(X)
    assert spread.complete == {1}
    assert set(spread.holders) == {1, 3}
    assert (set(spread.others), spread.older) == ({4}, 2)
    world.tracking.on_warming(2, X)
    world.tracking.on_warming(5, X)  # it isn't in the swarm
    assert set(world.tracking.replica_placement(X).holders) == {1, 2, 3}
    world.say(3, m.Heartbeat(swarms=(state(),)))
    assert set(world.tracking.replica_placement(X).holders) == {1, 2}
    assert not world.tracking.replica_placement("ef" * 32).holders
    world.tracking.check()
