"""A swarm's member list, who is dialled, and which runs others have too."""

from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.agent.downloads import neighbours
from p2pcache.agent.downloads.neighbours import Neighbours, placed
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm.events import Members

OUR = 1
DIGEST = "d" * 64


class Net:
    """What a `PeerNet` is asked for."""

    def __init__(self) -> None:
        self.dialled: list[tuple[int, str]] = []
        self.runs: dict[int, int] = {}
        self.connected: set[int] = set()

    def dial(self, digest: str, node: int, address: str) -> None:
        assert digest == DIGEST
        self.dialled.append((node, address))

    def heard(self, digest: str) -> dict[int, int]:
        assert digest == DIGEST
        return self.runs

    def forget_heard(self, digest: str, node: int) -> bool:
        if node in self.connected:
            return False
        self.runs.pop(node, None)
        return True


def made() -> tuple[Neighbours, Net]:
    net = Net()
    context: Any = SimpleNamespace(node=OUR, net=net, settings=SimpleNamespace(site="s", rack="r"))
    return Neighbours(context, DIGEST), net


def listed(
    *nodes: int, left: tuple[int, ...] = (), dial: tuple[int, ...] = (), full: bool = False
) -> m.Swarm:
    members = tuple(m.Member(node, f"h{node}:1", site="s", rack="r") for node in nodes)
    return m.Swarm(DIGEST, 1, full=full, joined=members, left=left, neighbours=dial)


def test_a_delta_adds_and_removes_and_a_full_list_replaces() -> None:
    swarm, _ = made()
    assert swarm.on_members(listed(3, OUR, 2, full=True)).nodes == (1, 2, 3)
    assert swarm.on_members(listed(4, left=(2,))).nodes == (1, 3, 4)
    assert swarm.ids == (1, 3, 4)
    assert swarm.on_members(listed(OUR, 5, full=True)).nodes == (1, 5)


def test_chosen_neighbours_are_dialled_until_they_let_us_request() -> None:
    swarm, net = made()
    swarm.on_members(listed(OUR, 2, 3, 4, dial=(3, 2, OUR, 77), full=True))
    swarm.dial_missing()
    assert net.dialled == [(3, "h3:1"), (2, "h2:1")], "neither ourselves nor an unknown address"
    swarm.on_joined(3)
    net.dialled.clear()
    swarm.on_members(listed(dial=(2, 4)))
    swarm.dial_missing()
    assert net.dialled == [(2, "h2:1"), (4, "h4:1")]
    swarm.on_members(listed(OUR, 4, dial=(4,), full=True))
    net.dialled.clear()
    swarm.dial_missing()
    assert net.dialled == [(4, "h4:1")], "a full list forgets whom an older one named"
    assert not swarm.dial(OUR)
    assert not swarm.dial(2)


def test_runs_of_a_node_that_left_do_not_count_even_while_it_is_connected() -> None:
    swarm, net = made()
    swarm.on_members(listed(OUR, 2, 3, full=True))
    net.runs = {2: 0b01, 3: 0b10}
    assert swarm.runs_elsewhere() == 0b11
    net.connected = {3}
    swarm.on_members(listed(left=(2, 3)))
    assert swarm.runs_elsewhere() == 0
    assert net.runs == {3: 0b10}, "it goes on telling, so what it has stays known"
    swarm.on_members(listed(3))
    assert swarm.runs_elsewhere() == 0b10


@pytest.mark.parametrize("comes", ["joined", "caller"])
def test_a_node_that_left_and_comes_back_counts(comes: str) -> None:
    """The tracker tells a complete node of no newcomers, so the connection has to."""
    swarm, net = made()
    net.runs, net.connected = {3: 0b10}, {3}
    swarm.on_members(listed(left=(3,)))
    assert swarm.runs_elsewhere() == 0
    swarm.on_joined(3) if comes == "joined" else swarm.on_caller(3, "h3:1")
    assert swarm.runs_elsewhere() == 0b10


def test_few_callers_addresses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MAX_CALLERS", 3)
    swarm, _ = made()
    for node in range(10, 20):
        swarm.on_caller(node, f"h{node}:1")
    swarm.on_caller(11, "moved:1")
    assert swarm.callers == {10: "h10:1", 11: "moved:1", 12: "h12:1"}


def test_our_own_place_wins_over_the_lists() -> None:
    members = {node: m.Member(node, "h:1", site=site, rack=rack) for node, site, rack in
               [(OUR, "old", "old"), (2, "s", "r"), (3, "s", "q"), (4, "t", "r")]}  # fmt: skip
    assert placed(OUR, ("s", "r"), members) == Members(
        nodes=(1, 2, 3, 4), rack=(1, 2), site=(1, 2, 3), racks=((3,),), sites=((4,),)
    )
    alone = placed(OUR, ("s", "r"), {})
    assert (alone.nodes, alone.rack, alone.site) == ((), (OUR,), (OUR,))


def test_a_node_that_was_dialled_stays_so_when_the_addresses_are_written_down() -> None:
    swarm, _ = made()
    assert not swarm.dialled
    swarm.on_caller(2, "h2:1")
    swarm.callers.clear()
    assert swarm.dialled
