"""The keeper: orders over time, as nodes come, fall silent, are drained and come back."""

import pytest

from p2pcache.core import bitset
from p2pcache.core.pool.intent import Key, PoolNode, Wish
from p2pcache.core.pool.keeper import Keeper
from p2pcache.core.pool.selector import Selector, Traits
from p2pcache.core.pool.settings import LACKING_S
from p2pcache.core.protocol.keep_orders import FAILED, NO_SPACE, Kept
from p2pcache.ids import NodeId, RunSet

KEY: Key = ("team", "llama", "v1")
DIGEST = "5a" * 32
RUNS = 128
RUN_BYTES = 4 << 20
EVERY = bitset.full(RUNS)
GRACE_S = 60.0
GiB = 1 << 30


class Cluster:
    """A keeper, its nodes, and what they have. Every node obeys at once when it is told to."""

    def __init__(self, nodes: int, *, began: float = 0.0, racks: int = 4, room: int = 100 * GiB) -> None:  # fmt: skip
        self.keeper = Keeper(began, grace_s=GRACE_S, settle_s=5.0)
        self.now = began
        self.nodes = {
            1000 + i: PoolNode(Traits(f"n{i}", "eu", f"r{i % racks}", "cache", ()), room)
            for i in range(nodes)
        }
        self.haves: dict[NodeId, RunSet] = {}
        self.drained: set[NodeId] = set()
        self.keeper.on_nodes(self.nodes, self.now)

    def keep(
        self, copies: int = 1, *, whole: bool = False, selector: str = "", older: bool = False
    ) -> None:
        wish = Wish(DIGEST, copies, whole, Selector.parse(selector), older)
        self.keeper.on_wish(KEY, wish, [RUN_BYTES] * RUNS)
        self.look()

    def look(self, after_s: float = 0.0) -> set[NodeId]:
        self.now += after_s
        self.keeper.on_nodes(self.nodes, self.now, drained=self.drained)
        here = {node: have for node, have in self.haves.items() if node in self.nodes}
        changed = self.keeper.review(KEY, here, self.now)
        self.keeper.check()
        return changed

    def ordered(self, node: NodeId) -> RunSet:
        orders = self.keeper.orders(node)
        if any(order.whole for order in orders):
            return EVERY
        return bitset.of(r for o in orders for a, b in o.ranges for r in range(a, b))

    def obey(self) -> int:
        """All nodes have what they are ordered to, and nothing else; returns the runs that moved."""
        moved = 0
        for node in self.nodes:
            wanted = self.ordered(node)
            moved += (wanted & ~self.haves.get(node, 0)).bit_count()
            self.haves[node] = wanted
        self.look()
        return moved

    def kept(self, copies: int = 1) -> None:
        """Begin with a model that is kept already."""
        self.keep(copies)
        self.obey()
        assert self.progress == (copies, copies, 0)

    @property
    def progress(self) -> tuple[int, int, int]:
        found = self.keeper.progress(KEY)
        assert found is not None
        return found.copies, found.target, found.missing_bytes


def test_copies_are_ordered_and_progress_is_told() -> None:
    cluster = Cluster(8)
    cluster.keep(2)
    assert cluster.progress == (0, 2, 2 * RUNS * RUN_BYTES)
    assert cluster.keeper.restless(KEY)
    assert cluster.obey() == 2 * RUNS
    assert cluster.progress == (2, 2, 0)
    assert not cluster.keeper.restless(KEY)
    assert cluster.look() == set()


def test_a_node_that_starts_again_changes_nothing_and_one_that_is_gone_is_replaced_once() -> None:
    cluster = Cluster(8)
    cluster.kept(2)
    gone = cluster.nodes.pop(1003)
    lost = cluster.haves[1003].bit_count()
    assert cluster.look(GRACE_S / 2) == set()
    cluster.nodes[1003] = gone
    assert cluster.look(1) == set()
    del cluster.nodes[1003]
    assert cluster.look(1) == set()
    assert cluster.progress[0] == 1
    assert cluster.look(GRACE_S) != set()
    assert cluster.obey() == lost
    assert cluster.progress == (2, 2, 0)
    assert cluster.keeper.orders(1003) == []


def test_a_node_that_comes_back_late_gets_its_parts_without_a_byte() -> None:
    cluster = Cluster(8)
    cluster.kept(2)
    gone = cluster.nodes.pop(1003)
    cluster.look()
    cluster.look(GRACE_S)
    cluster.obey()
    cluster.nodes[1003] = gone
    cluster.look()
    assert cluster.ordered(1003) & ~cluster.haves[1003] == 0
    assert cluster.ordered(1003)
    assert cluster.obey() == 0
    assert cluster.progress == (2, 2, 0)


def test_a_drained_node_keeps_its_orders_until_others_have_its_parts() -> None:
    cluster = Cluster(6)
    cluster.kept(1)
    parts = cluster.ordered(1000)
    cluster.drained = {1000}
    cluster.look()
    assert cluster.ordered(1000) == parts
    assert cluster.progress[0] == 0  # what is on its way out doesn't count
    one = next(bitset.members(parts))
    taker = next(n for n in cluster.nodes if n != 1000 and cluster.ordered(n) >> one & 1)
    cluster.haves[taker] |= 1 << one
    cluster.look()
    assert cluster.ordered(1000) == parts & ~(1 << one)
    assert cluster.obey() == parts.bit_count() - 1
    assert cluster.keeper.orders(1000) == []
    assert cluster.keeper.kept_bytes(1000) == 0


def test_a_drained_node_that_is_away_isn_t_waited_for() -> None:
    """Its parts moved only when the grace was over: who drains a dead node knows that it doesn't come back."""
    cluster = Cluster(6)
    cluster.kept(2)
    parts = cluster.ordered(1000)
    del cluster.nodes[1000]
    cluster.look()
    assert cluster.obey() == 0
    cluster.drained = {1000}
    cluster.look(1.0)
    assert cluster.keeper.kept_bytes(1000) == parts.bit_count() * RUN_BYTES, (
        "until others have them"
    )
    assert cluster.obey() == parts.bit_count()
    assert cluster.progress == (2, 2, 0)
    assert cluster.keeper.kept_bytes(1000) == 0


def test_a_node_that_only_reconnects_while_it_is_drained_still_keeps_its_parts() -> None:
    """It let go of them at once, and others read them from storage."""
    cluster = Cluster(6)
    cluster.kept(1)
    parts, said = cluster.ordered(1000), cluster.nodes[1000]
    cluster.drained = {1000}
    cluster.look()
    del cluster.nodes[1000]
    cluster.look(1.0)
    cluster.nodes[1000] = said
    cluster.look(1.0)
    assert cluster.ordered(1000) == parts
    del cluster.nodes[1000]
    cluster.look()
    cluster.look(GRACE_S)
    assert cluster.keeper.kept_bytes(1000) == 0, "it doesn't come back"


def test_a_drain_that_is_taken_back_moves_nothing() -> None:
    cluster = Cluster(6)
    cluster.kept(1)
    parts = cluster.ordered(1000)
    cluster.drained = {1000}
    cluster.look()
    cluster.drained = set()
    cluster.look()
    assert (cluster.ordered(1000) & parts).bit_count() > 0.8 * parts.bit_count()
    assert cluster.obey() <= 0.2 * parts.bit_count()


def test_the_last_node_that_is_drained_keeps_all_until_another_has_it() -> None:
    """By a wish for all nodes that are chosen it was drained at once, and nobody had the model any more."""
    cluster = Cluster(2)
    cluster.keep(0, whole=True, selector="node=n0")
    cluster.obey()
    said = cluster.nodes[1000]
    cluster.drained = {1000}
    cluster.look()
    assert cluster.ordered(1000) == EVERY
    assert cluster.keeper.kept_bytes(1000)
    new = Cluster(2, began=1000.0)  # another tracker, which knows only who has what
    new.nodes, new.haves, new.drained = dict(cluster.nodes), dict(cluster.haves), {1000}
    new.keep(0, whole=True, selector="node=n0", older=True)
    assert new.ordered(1000) == EVERY
    new.look(GRACE_S)
    assert new.ordered(1000) == EVERY
    other = cluster.nodes[1001]
    cluster.nodes[1001] = other._replace(traits=said.traits)
    cluster.look()
    cluster.obey()
    assert (cluster.ordered(1000), cluster.ordered(1001)) == (0, EVERY)


def test_a_wish_that_chooses_no_node_ends_no_copy() -> None:
    """A label that nobody has, by a slip of the keyboard."""
    cluster = Cluster(2)
    cluster.kept(1)
    for copies, whole in ((0, True), (1, False)):
        cluster.keep(copies, whole=whole, selector="gpu=h1000")
        cluster.obey()
        assert cluster.ordered(1000) | cluster.ordered(1001) == EVERY
    cluster.keep(1)
    assert cluster.obey() == 0


def test_a_join_gets_its_share_and_the_old_nodes_keep_theirs_until_it_has_it() -> None:
    cluster = Cluster(7)
    cluster.kept(1)
    before = {node: cluster.ordered(node) for node in cluster.nodes}
    cluster.nodes[2000] = PoolNode(Traits("new", "eu", "r9"), 100 * GiB)
    cluster.look()
    assert 0.5 * RUNS / 8 <= cluster.ordered(2000).bit_count() <= 1.5 * RUNS / 8
    assert {node: cluster.ordered(node) for node in before} == before
    assert cluster.progress[0] == 1
    cluster.obey()
    assert cluster.progress == (1, 1, 0)
    assert sum(cluster.ordered(node).bit_count() for node in cluster.nodes) == RUNS


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
    assert new.keeper.progress(KEY).waits  # type: ignore[union-attr]
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


def test_new_intents_wait_for_nothing() -> None:
    cluster = Cluster(3, began=50.0)
    assert cluster.keeper.settled(50.0)
    cluster.keep(1)
    assert cluster.obey() == RUNS


def test_whole_copies_lie_on_single_nodes_in_different_racks() -> None:
    cluster = Cluster(8)
    cluster.keep(2, whole=True)
    nodes = [node for node in cluster.nodes if cluster.ordered(node)]
    assert len({cluster.nodes[node].traits.rack for node in nodes}) == len(nodes) == 2
    assert all(cluster.keeper.orders(node)[0].whole for node in nodes)
    assert cluster.obey() == 2 * RUNS
    assert cluster.progress == (2, 2, 0)


def test_all_means_every_node_that_is_chosen_also_those_that_come() -> None:
    cluster = Cluster(6, racks=3)
    cluster.keep(0, whole=True, selector="rack=r0,rack=r1")
    assert sum(bool(cluster.ordered(node)) for node in cluster.nodes) == 4
    cluster.nodes[2000] = PoolNode(Traits("new", "eu", "r1"), 100 * GiB)
    cluster.nodes[2001] = PoolNode(Traits("other", "eu", "r2"), 100 * GiB)
    cluster.look()
    assert cluster.ordered(2000)
    assert not cluster.ordered(2001)


def test_clients_keep_nothing_unless_they_are_named() -> None:
    cluster = Cluster(3)
    cluster.nodes[1000] = PoolNode(Traits("laptop", role="client"), 100 * GiB)
    cluster.keep(3)
    assert cluster.progress[1] == 3
    assert not cluster.ordered(1000)
    cluster.keep(0, whole=True, selector="role=client")
    assert cluster.ordered(1000) == EVERY


def test_more_copies_and_fewer() -> None:
    cluster = Cluster(5)
    cluster.kept(1)
    cluster.keep(3)
    assert cluster.obey() == 2 * RUNS
    cluster.keep(1)
    assert sum(cluster.ordered(node).bit_count() for node in cluster.nodes) == RUNS
    assert cluster.obey() == 0
    assert cluster.keeper.on_wish(KEY, None)
    assert all(not cluster.keeper.orders(node) for node in cluster.nodes)
    cluster.keeper.check()


def test_a_full_node_gets_no_more_and_what_it_lacks_goes_elsewhere() -> None:
    cluster = Cluster(4)
    cluster.keep(1)
    share = cluster.ordered(1001)
    half = bitset.lowest(share, share.bit_count() // 2)
    cluster.haves[1001] = half
    said = Kept(DIGEST, half.bit_count(), share.bit_count(), NO_SPACE, "full")
    assert cluster.keeper.on_report(1001, said, cluster.now)
    assert not cluster.keeper.on_report(1001, said, cluster.now)
    strange = Kept("00" * 32, 0, 1, NO_SPACE)
    assert not cluster.keeper.on_report(1001, strange, cluster.now), "nobody asked for that"
    cluster.look()
    assert cluster.ordered(1001) == half
    cluster.obey()
    assert cluster.keeper.progress(KEY).refusals == {1001: said}  # type: ignore[union-attr]
    union = 0
    for node in cluster.nodes:
        union |= cluster.ordered(node)
    assert union == EVERY


def test_a_full_node_is_asked_again_soon_where_nobody_else_takes_its_part() -> None:
    """A small edge disk whose old version was open: it was asked after ten minutes."""
    cluster = Cluster(3)
    cluster.keep(0, whole=True, selector="node=n1")
    cluster.keeper.on_report(1001, Kept(DIGEST, 0, RUNS, NO_SPACE, "full"), cluster.now)
    cluster.look()
    assert not cluster.ordered(1001)
    cluster.look(after_s=LACKING_S - 1)
    assert not cluster.ordered(1001)
    cluster.look(after_s=1)
    assert cluster.ordered(1001) == EVERY


def test_a_node_that_fails_keeps_its_orders() -> None:
    cluster = Cluster(4)
    cluster.keep(1)
    before = cluster.ordered(1001)
    assert not cluster.keeper.on_report(1001, Kept(DIGEST, 0, 9, FAILED, "?"), cluster.now)
    cluster.look()
    assert cluster.ordered(1001) == before


def test_without_room_copies_lack_a_place() -> None:
    cluster = Cluster(2, room=RUNS * RUN_BYTES // 4)
    cluster.keep(1)
    found = cluster.keeper.progress(KEY)
    assert found is not None
    assert found.missing_places == RUNS // 2
    cluster.obey()
    assert cluster.progress == (0, 1, RUNS * RUN_BYTES // 2)


def test_rooms_that_breathe_move_nothing() -> None:
    cluster = Cluster(6)
    cluster.kept(2)
    for node, said in cluster.nodes.items():
        cluster.nodes[node] = said._replace(room_bytes=said.room_bytes * (90 + node % 20) // 100)
    assert not cluster.keeper.on_nodes(cluster.nodes, cluster.now), "no review is due"
    assert cluster.look() == set()


def test_a_model_that_moved_on_is_another_model() -> None:
    cluster = Cluster(4)
    cluster.kept(1)
    cluster.keeper.on_wish(KEY, Wish("77" * 32, 1), [RUN_BYTES] * 7)
    cluster.keeper.review(KEY, {}, cluster.now)
    cluster.keeper.check()
    both = {o.manifest_digest for n in cluster.nodes for o in cluster.keeper.orders(n)}
    assert both == {DIGEST, "77" * 32}, "the old one stays until the new one is there"
    everything = {node: bitset.full(7) for node in cluster.nodes}
    changed = cluster.keeper.review(KEY, everything, cluster.now)
    assert changed == set(cluster.nodes)
    cluster.keeper.check()
    left = {o.manifest_digest for n in cluster.nodes for o in cluster.keeper.orders(n)}
    assert left == {"77" * 32}


def test_on_a_small_disk_the_old_version_makes_way_for_the_new_one() -> None:
    cluster = Cluster(3, room=RUNS * RUN_BYTES * 3 // 2)
    cluster.nodes[1001] = cluster.nodes[1001]._replace(room_bytes=100 * GiB)
    cluster.keep(0, whole=True)
    cluster.obey()
    new = "77" * 32
    cluster.keeper.on_wish(KEY, Wish(new, 0, whole=True), [RUN_BYTES] * RUNS)
    changed = cluster.keeper.review(KEY, {}, cluster.now)
    cluster.keeper.check()
    assert changed == set(cluster.nodes)
    ordered = {n: {o.manifest_digest for o in cluster.keeper.orders(n)} for n in cluster.nodes}
    assert ordered == {1000: {new}, 1001: {DIGEST, new}, 1002: {new}}


def test_what_would_not_fit_in_its_place_ends_no_old_version() -> None:
    cluster = Cluster(2, room=RUNS * RUN_BYTES)
    cluster.keep(0, whole=True)
    cluster.obey()
    cluster.keeper.on_wish(KEY, Wish("77" * 32, 0, whole=True), [RUN_BYTES] * (2 * RUNS))
    cluster.keeper.review(KEY, {}, cluster.now)
    cluster.keeper.check()
    ordered = {o.manifest_digest for n in cluster.nodes for o in cluster.keeper.orders(n)}
    assert ordered == {DIGEST}


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


def test_the_only_copy_on_a_drained_node_that_comes_back_late_stays_until_others_have_it() -> None:
    cluster = Cluster(4)
    cluster.kept(1)
    parts, said = cluster.ordered(1000), cluster.nodes.pop(1000)
    cluster.drained = {1000}
    cluster.look()
    cluster.look(GRACE_S + 1)
    cluster.nodes[1000] = said
    cluster.look()
    assert cluster.ordered(1000) == parts
    cluster.obey()
    assert cluster.ordered(1000) == 0


def test_a_drained_node_of_which_others_complain_keeps_its_orders() -> None:
    cluster = Cluster(4)
    cluster.kept(1)
    parts = cluster.ordered(1000)
    cluster.drained = {1000}
    cluster.look()
    others = {node: have for node, have in cluster.haves.items() if node != 1000}
    cluster.keeper.review(KEY, others, cluster.now, [1000])
    assert cluster.ordered(1000) == parts
    cluster.keeper.review(KEY, others, cluster.now)
    assert cluster.ordered(1000) == 0
