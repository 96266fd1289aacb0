"""The keeper of a new tracker: nodes come back that kept something for the tracker before."""

import pytest

from tests.core.pool.keeper_kit import EVERY, GRACE_S, KEY, RUN_BYTES, Cluster


def test_a_new_tracker_takes_over_where_the_bytes_are_and_waits_for_who_is_away() -> None:
    old = Cluster(8)
    old.kept(2)
    new = Cluster(8, began=1000.0)
    new.haves = old.haves
    away = new.nodes.pop(1005)
    new.keep(2, older=True)
    assert not new.keeper.settled(1001.0)
    assert new.keeper.settled(1005.0)
    assert new.obey() == 0
    assert new.keeper.intents[KEY].progress.waits  # type: ignore[union-attr]
    new.nodes[1005] = away
    new.look(10)
    assert new.obey() == 0
    assert new.progress == (2, 2, 0)
    assert {n: new.ordered(n) for n in new.nodes} == {n: old.ordered(n) for n in old.nodes}


def test_a_new_tracker_takes_nothing_from_a_node_that_is_being_drained() -> None:
    old = Cluster(4)
    old.kept(1)
    new = Cluster(4, began=1000.0)
    new.haves = old.haves
    new.drained = {1000}
    new.keep(1, older=True)
    assert new.ordered(1000) == old.ordered(1000)
    new.look(GRACE_S + 1)
    assert new.ordered(1000) == old.ordered(1000)
    assert new.obey() == old.ordered(1000).bit_count()
    assert new.keeper.orders(1000) == []


def test_a_new_tracker_repairs_when_the_grace_is_over() -> None:
    old = Cluster(8)
    old.kept(2)
    new = Cluster(8, began=1000.0)
    new.haves = old.haves
    del new.nodes[1005]
    new.keep(2, older=True)
    new.look(GRACE_S + 1)
    assert new.obey() == old.ordered(1005).bit_count()
    assert new.progress == (2, 2, 0)


def test_a_new_tracker_ends_no_order_of_a_node_whose_room_has_shrunk() -> None:
    old = Cluster(4)
    old.kept(1)
    new = Cluster(4, began=1000.0, room=RUN_BYTES)
    new.haves = old.haves
    new.keep(1, older=True)
    assert {n: new.ordered(n) for n in new.nodes} == {n: old.ordered(n) for n in old.nodes}


@pytest.mark.parametrize(("copies", "selector"), [(0, "gpu=h1000"), (1, ""), (0, "")])
def test_a_new_tracker_ends_no_part_while_whole_copies_lack(copies: int, selector: str) -> None:
    """It knew the wish for whole copies only, and after 15 s all nodes let go of their parts."""
    old = Cluster(4)
    old.kept(2)
    new = Cluster(4, began=1000.0)
    new.haves = dict(old.haves)
    new.keep(copies, whole=True, selector=selector, older=True)
    new.look(5.0)
    assert new.keeper.settled(new.now)
    parts = {node: old.ordered(node) for node in old.nodes}
    assert {node: new.ordered(node) for node in new.nodes} == parts
    new.look(GRACE_S)
    assert all(parts[node] & ~new.ordered(node) == 0 for node in new.nodes)
    for _ in range(3):
        new.obey()
    if not selector:
        assert new.progress[2] == 0
        assert sum(new.ordered(node) == EVERY for node in new.nodes) == (copies or 4)
        assert sum(bool(new.ordered(node)) for node in new.nodes) == (copies or 4)


def test_what_is_on_its_way_to_a_node_stays_there_when_a_new_tracker_comes() -> None:
    new = Cluster(3, began=1000.0)
    new.haves = {1000: EVERY, 1001: EVERY >> 40}
    new.keep(0, whole=True, older=True)
    new.look(5.0)
    assert new.ordered(1001) == EVERY >> 40
