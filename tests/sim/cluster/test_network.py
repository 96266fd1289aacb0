"""The fluid network: fair, exact, never over capacity."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pcache.sim.cluster.network import Network
from p2pcache.sim.cluster.world import World
from p2pcache.sim.report import lower_bound


class Ends:
    """When named flows ended."""

    def __init__(self, world: World) -> None:
        self.at: dict[str, float] = {}
        self._world = world

    def mark(self, name: str) -> None:
        self.at[name] = self._world.now


def drain(world: World) -> None:
    world.run(1e9, lambda: False)


def test_one_flow_takes_its_size_over_the_narrower_link() -> None:
    world = World(1)
    net = Network(world, 0.01)
    ends = Ends(world)
    net.start([net.link(100.0), net.link(40.0)], 80.0, ends.mark, "a")
    drain(world)
    assert ends.at == {"a": pytest.approx(2.0)}


def test_two_flows_share_a_link_and_the_last_one_takes_it_all() -> None:
    world = World(1)
    net = Network(world, 0.01)
    up = net.link(100.0)
    ends = Ends(world)
    for name, size in (("a", 50.0), ("b", 100.0)):
        net.start([up, net.link(100.0)], size, ends.mark, name)
    drain(world)
    assert ends.at["a"] == pytest.approx(1.0, rel=0.02)
    assert ends.at["b"] == pytest.approx(1.5, rel=0.02)
    assert up.carried == pytest.approx(150.0)


def test_a_rate_that_one_flow_cannot_use_goes_to_the_others() -> None:
    world = World(1)
    net = Network(world, 0.01)
    up = net.link(100.0)
    ends = Ends(world)
    net.start([up, net.link(10.0)], 10.0, ends.mark, "narrow")
    net.start([up, net.link(100.0)], 90.0, ends.mark, "wide")
    drain(world)
    assert ends.at["narrow"] == pytest.approx(1.0, rel=0.03)
    assert ends.at["wide"] == pytest.approx(1.0, rel=0.03)


def test_a_partition_stops_flows_and_a_cancelled_one_never_ends() -> None:
    world = World(1)
    net = Network(world, 0.01)
    up, down = net.link(10.0), net.link(10.0)
    ends = Ends(world)
    net.start([up, down], 10.0, ends.mark, "cut")
    gone = net.start([net.link(10.0), net.link(10.0)], 10.0, ends.mark, "gone")

    left: list[float] = []

    def side(number: int) -> None:
        up.side, down.side = 1, number
        net.rewired()

    world.at(0.5, side, 2)
    world.at(0.6, lambda: left.append(net.end_flow(gone)))
    world.at(5.5, side, 1)
    drain(world)
    assert ends.at == {"cut": pytest.approx(6.0, rel=0.01)}
    assert left == [pytest.approx(4.0)], "what had flowed stays counted"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 3), st.floats(1, 100), st.floats(0, 3, width=16)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_bytes_are_kept_and_no_link_carries_more_than_it_can(
    plan: list[tuple[int, int, float, float]],
) -> None:
    world = World(1)
    net = Network(world, 0.05)
    ups = [net.link(10.0 + 5 * i) for i in range(4)]
    downs = [net.link(12.0 + 3 * i) for i in range(4)]
    ends = Ends(world)

    def start(number: int, up: int, down: int, size: float) -> None:
        net.start([ups[up], downs[down]], size, ends.mark, str(number))

    for number, (up, down, size, at) in enumerate(plan):
        world.at(at, start, number, up, down, size)
    drain(world)
    assert len(ends.at) == len(plan)
    total = sum(size for _, _, size, _ in plan)
    assert sum(link.carried for link in ups) == pytest.approx(total)
    assert sum(link.carried for link in downs) == pytest.approx(total)
    first = min(at for *_, at in plan)
    for link in ups + downs:
        assert link.carried <= link.rate * (max(ends.at.values()) - first) * 1.01 + 1e-6


def test_the_lower_bound() -> None:
    assert lower_bound(100.0, 10.0, [10.0], 1.0) == pytest.approx(10.0)
    assert lower_bound(100.0, 10.0, [10.0] * 8, 1.0) == pytest.approx(10.3)
    assert lower_bound(100.0, 1.0, [10.0] * 8, 1.0) == pytest.approx(100.3)
    assert lower_bound(100.0, 10.0, [10.0, 5.0], 1.0) == pytest.approx(20.1)


def fair_rates(capacities: list[float], paths: list[list[int]]) -> list[float]:
    """Max-min fair rates by the textbook: fill all evenly until a link is full, fix its flows, go on."""
    rates = [0.0] * len(paths)
    left = list(capacities)
    free = set(range(len(paths)))
    while free:
        users = {i: sum(i in paths[f] for f in free) for i in range(len(left))}
        step = min(left[i] / n for i, n in users.items() if n)
        for flow in free:
            rates[flow] += step
            for i in paths[flow]:
                left[i] -= step
        full = {i for i, n in users.items() if n and left[i] <= 1e-9 * capacities[i]}
        free -= {flow for flow in free if full & set(paths[flow])}
    return rates


@pytest.mark.parametrize("seed", range(5))
def test_rates_are_near_max_min_fair(seed: int) -> None:
    dice = Random(seed)
    world = World(1)
    net = Network(world, 1.0)
    capacities = [dice.choice((10.0, 50.0, 100.0)) for _ in range(40)]
    links = [net.link(rate) for rate in capacities]
    paths = [[dice.randrange(20), 20 + dice.randrange(20)] for _ in range(200)]
    for path in paths:
        net.start([links[i] for i in path], 1e9, lambda: None)
    net.rewired()
    world.run(1.0, lambda: False)
    got = [0.0] * len(links)
    net.rewired()
    for i, link in enumerate(links):
        got[i] = link.carried
        assert got[i] <= capacities[i] * 1.001
    fair = fair_rates(capacities, paths)
    assert sum(got) / 2 >= 0.97 * sum(fair)
    for i in range(len(links)):
        share = sum(rate for rate, path in zip(fair, paths, strict=True) if i in path)
        assert got[i] == pytest.approx(share, abs=0.15 * capacities[i])
