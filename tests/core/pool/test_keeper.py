"""The keeper: orders over time, as nodes come, fall silent and come back."""

from p2pcache.core import bitset
from p2pcache.core.pool.intent import PoolNode, Wish
from p2pcache.core.pool.selector import Traits
from p2pcache.core.pool.settings import LACKING_S
from p2pcache.core.protocol.keep_orders import FAILED, NO_SPACE, Kept
from tests.core.pool.keeper_kit import DIGEST, EVERY, GRACE_S, KEY, RUN_BYTES, RUNS, Cluster, GiB


def test_copies_are_ordered_and_progress_is_told() -> None:
    cluster = Cluster(8)
    cluster.keep(2)
    assert cluster.progress == (0, 2, 2 * RUNS * RUN_BYTES)
    assert cluster.keeper.intents[KEY].is_restless
    assert cluster.obey() == 2 * RUNS
    assert cluster.progress == (2, 2, 0)
    assert not cluster.keeper.intents[KEY].is_restless
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
    said = Kept(DIGEST, NO_SPACE, "full")
    assert cluster.keeper.on_report(1001, said, cluster.now)
    assert not cluster.keeper.on_report(1001, said, cluster.now)
    strange = Kept("00" * 32, NO_SPACE)
    assert not cluster.keeper.on_report(1001, strange, cluster.now), "nobody asked for that"
    cluster.look()
    assert cluster.ordered(1001) == half
    cluster.obey()
    assert cluster.keeper.intents[KEY].progress.refusals == {1001: said}  # type: ignore[union-attr]
    union = 0
    for node in cluster.nodes:
        union |= cluster.ordered(node)
    assert union == EVERY


def test_a_full_node_is_asked_again_soon_where_nobody_else_takes_its_part() -> None:
    """A small edge disk whose old version was open: it was asked after ten minutes."""
    cluster = Cluster(3)
    cluster.keep(0, whole=True, selector="node=n1")
    cluster.keeper.on_report(1001, Kept(DIGEST, NO_SPACE, "full"), cluster.now)
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
    assert not cluster.keeper.on_report(1001, Kept(DIGEST, FAILED, "?"), cluster.now)
    cluster.look()
    assert cluster.ordered(1001) == before


def test_without_room_copies_lack_a_place() -> None:
    cluster = Cluster(2, room=RUNS * RUN_BYTES // 4)
    cluster.keep(1)
    found = cluster.keeper.intents[KEY].progress
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


def test_the_old_version_makes_no_way_where_only_another_node_lacks_a_place() -> None:
    cluster = Cluster(3, room=RUNS * RUN_BYTES * 5 // 2)
    cluster.keep(0, whole=True)
    cluster.obey()
    del cluster.nodes[1002]
    cluster.keeper.on_nodes(cluster.nodes, cluster.now)
    new = "77" * 32
    cluster.keeper.on_wish(KEY, Wish(new, 0, whole=True), [RUN_BYTES] * RUNS)
    cluster.keeper.review(KEY, {}, cluster.now)
    cluster.keeper.check()
    ordered = {n: {o.manifest_digest for o in cluster.keeper.orders(n)} for n in cluster.nodes}
    assert ordered == {1000: {DIGEST, new}, 1001: {DIGEST, new}}


def test_what_would_not_fit_in_its_place_ends_no_old_version() -> None:
    cluster = Cluster(2, room=RUNS * RUN_BYTES)
    cluster.keep(0, whole=True)
    cluster.obey()
    cluster.keeper.on_wish(KEY, Wish("77" * 32, 0, whole=True), [RUN_BYTES] * (2 * RUNS))
    cluster.keeper.review(KEY, {}, cluster.now)
    cluster.keeper.check()
    ordered = {o.manifest_digest for n in cluster.nodes for o in cluster.keeper.orders(n)}
    assert ordered == {DIGEST}


def test_a_node_that_is_away_lacks_no_room_for_a_wish_for_all_nodes() -> None:
    cluster = Cluster(2)
    del cluster.nodes[1001]
    cluster.keeper.on_nodes(cluster.nodes, cluster.now)
    cluster.keep(0, whole=True)
    cluster.obey()
    assert cluster.progress == (1, 2, RUNS * RUN_BYTES)  # it comes back, mostly
    assert cluster.missing_places == 0  # room isn't what lacks
    cluster.keeper.on_report(1000, Kept(DIGEST, NO_SPACE), cluster.now)
    cluster.haves.clear()
    cluster.look()
    assert cluster.missing_places == 1
    cluster.look(GRACE_S)
    assert cluster.progress == (0, 1, RUNS * RUN_BYTES)
