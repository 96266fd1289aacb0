"""The keeper: what becomes of the parts of nodes that are drained."""

from p2pcache.core import bitset
from tests.core.pool.keeper_kit import EVERY, GRACE_S, KEY, RUN_BYTES, Cluster


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
    """Its parts moved only when the grace was over: an operator drains a dead node since it doesn't come back."""
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
