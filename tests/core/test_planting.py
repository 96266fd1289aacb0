"""What a tracker says of suppliers and roots: when there are trees, and who is told."""

import msgspec

from p2pcache.core import chunkset
from p2pcache.core import messages as m
from p2pcache.core.commands import ALL
from p2pcache.core.forest import NOBODY, STRIPES, Rank
from p2pcache.core.leases import LeaseBook
from p2pcache.core.outputs import Output, Send, Slow
from p2pcache.core.planting import LEVEL_BEHIND, Planting
from p2pcache.core.roots import DRAGS, FIRST_DRAGS
from p2pcache.core.roster import Roster
from p2pcache.core.settings import LeaseSettings, MemberSettings
from tests.core.tracking_kit import RUNS, World, X, state

LEAST = 12  # nodes from which on there are trees: fewer than in earnest, for tests in milliseconds
BEHIND = 3 * LEVEL_BEHIND  # what one of 20 nodes may lack of those that were read
MANY = 640  # runs, more than who is behind may lack


def few(trees_from: int = LEAST) -> World:
    return World(members=MemberSettings(trees_from=trees_from))


def storm(nodes: int, trees_from: int = LEAST) -> World:
    world = few(trees_from)
    for node in range(1, nodes + 1):
        world.join(node)
    world.wait(0.1)
    return world


def supplied(world: World, node: int) -> list[tuple[int, ...]]:
    """What a node was told of its suppliers, all there was of it."""
    return [said.suppliers for said in world.got(node, m.Swarm) if said.suppliers is not None]


def planting(world: World) -> Planting:
    return world.tracking.swarms[X].planting


def test_a_swarm_of_a_few_has_no_trees() -> None:
    world = storm(LEAST - 1)
    assert not any(supplied(world, node) for node in range(1, LEAST))


def test_an_operator_can_do_without_trees() -> None:
    world = storm(200, trees_from=0)
    assert not any(supplied(world, node) for node in range(1, 201))
    assert planting(world).supplied == 0
    assert planting(storm(MemberSettings().trees_from, MemberSettings().trees_from)).supplied > 0


def test_trees_of_any_size_stay_or_go() -> None:
    """Half of the least keeps them, or each one that comes or goes would plant and fell a forest."""
    for least in (1, 2, 3):
        world = storm(least, trees_from=least)
        trees = planting(world)
        assert trees.grown == (trees.forest.short <= 0)
        for node in range(1, least + 1):
            world.say(node, m.Leaving())
            world.wait(0.1)
        assert X not in world.tracking.swarms or not planting(world).grown


def test_everybody_is_told_of_suppliers_and_where_they_are() -> None:
    world = storm(20)
    forest = planting(world).forest
    for node in range(1, 21):
        said = [one for one in world.got(node, m.Swarm) if one.suppliers is not None][-1]
        assert said.suppliers == forest.suppliers(node)
        assert said.roots == forest.roots
        strangers = {one for one in said.suppliers if one != NOBODY}
        assert {member.node for member in said.joined} == strangers == set(said.neighbours)
    assert sum(forest.suppliers(node).count(NOBODY) for node in range(1, 21)) == STRIPES


def test_who_is_told_nothing_new_hears_nothing() -> None:
    world = storm(20)
    world.forget_mail()
    world.wait(1.0, alive=range(1, 21))
    assert not any(supplied(world, node) for node in range(1, 21))
    world.join(21)
    world.wait(0.1)
    assert len([node for node in range(1, 22) if supplied(world, node)]) <= 2


def test_who_leaves_is_replaced_at_once() -> None:
    world = storm(20)
    root = planting(world).forest.roots[0]
    world.forget_mail()
    world.take(world.tracking.disconnected(root, world.now))
    world.wait(0.1)
    roots = planting(world).forest.roots
    assert root not in roots, "it may come back, but a stripe doesn't wait for that"
    heard = [node for node in range(1, 21) if node != root]
    told = {node: world.got(node, m.Swarm)[-1].roots for node in heard if supplied(world, node)}
    assert set(told) == set(heard), "the new root concerns everybody: without a tracker it reads"
    assert set(told.values()) == {roots}


def test_who_comes_back_is_told_again() -> None:
    world = storm(20)
    world.take(world.tracking.disconnected(7, world.now))
    world.forget_mail()
    world.announce(7, state(credit=1))
    world.wait(0.1)
    assert supplied(world, 7)[-1] == planting(world).forest.suppliers(7)


def test_without_racks_only() -> None:
    world = few()
    for node in range(1, 21):
        world.announce(node, rack=f"rack{node % 2}")
        world.say(node, m.Enter(state(credit=1)))
    world.wait(0.5)
    assert not any(supplied(world, node)[-1:] not in ([], [()]) for node in range(1, 21))


def test_who_wants_a_part_or_pauses_is_in_no_tree() -> None:
    world = storm(20)
    part = chunkset.to_bytes(0b11, RUNS)
    world.say(3, m.LeaseReport(X, 1, credit=1, wanted=part))
    world.say(4, m.Heartbeat(swarms=(state(credit=0),)))
    world.wait(0.1)
    for node in (3, 4):
        assert node not in planting(world).forest
        assert supplied(world, node)[-1] == ()
    assert NOBODY not in {*planting(world).forest.roots}


def test_who_has_all_goes_on_supplying() -> None:
    world = storm(20)
    world.say(5, m.Heartbeat(swarms=(state(chunkset.full(RUNS)),)))
    world.wait(0.1)
    assert 5 in planting(world).forest
    world.join(30, have=chunkset.full(RUNS), credit=0)
    assert 30 not in planting(world).forest, (
        "what comes by trees is new, and it has no use for that"
    )


def test_who_is_behind_supplies_nobody() -> None:
    have: dict[int, int] = {}
    book = LeaseBook(run_count=MANY, settings=LeaseSettings(), seed=1, have=have)
    world = storm(20)
    trees = Planting(world.tracking.swarms[X].roster, book, LEAST)
    for node in range(1, 21):
        trees.seen(node, pulls=True)
    book.ends["done"] = BEHIND + 1
    trees.seen(1, pulls=True)
    ranks = {node: trees.forest.trees[0].rank(node) for node in (1, 2)}
    assert ranks[1] is Rank.SPARE
    assert ranks[2] is not Rank.SPARE
    book.ends["done"] = 3
    trees.seen(1, pulls=True)
    assert trees.forest.trees[0].rank(1) is not Rank.SPARE
    trees.check()


def many_runs(nodes: int) -> tuple[Planting, LeaseBook, Roster]:
    """Trees of these nodes, for a model of many runs, without a tracker's other rooms."""
    roster = Roster(X, MANY, 1)
    book = LeaseBook(run_count=MANY, settings=LeaseSettings(), seed=1, have=roster.have)
    trees = Planting(roster, book, LEAST)
    for node in range(1, nodes + 1):
        roster.enter(m.Member(node, f"10.0.0.{node}:1"))
        trees.seen(node, pulls=True)
    trees.step(0.0, [])
    return trees, book, roster


def is_spare(trees: Planting, node: int) -> bool:
    return trees.forest.trees[0].rank(node) is Rank.SPARE


def one_supplier(trees: Planting, node: int) -> int:
    """Who supplies a node and several others."""
    suppliers = (one for one in trees.forest.suppliers(node) if one != NOBODY)
    return max(suppliers, key=lambda one: len(trees.forest.beside(node, one)))


def found_slow(nodes: int, node: int) -> tuple[Planting, LeaseBook, Roster]:
    """The same, and one that supplies a node finds it slow, which has nothing of what the others have."""
    trees, book, roster = many_runs(nodes)
    for other in {*range(1, nodes + 1)} - {node}:
        roster.update(other, chunkset.full(20))
    trees.accused(one_supplier(trees, node), (node,))
    return trees, book, roster


def test_who_is_found_slow_and_has_far_less_supplies_nobody() -> None:
    """500 simulated nodes, a tenth slow: the last of the others had 0.85 of the bound, 0.92 so."""
    trees, _, _ = found_slow(20, 9)
    out: list[Output] = []
    trees.step(0.0, out)
    asked = {one.node for one in out if isinstance(one, Send)}
    supplier = one_supplier(trees, 9)
    assert asked == {9, supplier, *trees.forest.beside(9, supplier)}, "what one finds may be chance"
    assert not is_spare(trees, 9)
    trees.seen(9, pulls=True)
    assert is_spare(trees, 9)
    assert trees.slow == [9]
    assert not any(is_spare(trees, node) for node in range(1, 21) if node != 9)
    out.clear()
    trees.step(0.0, out)
    trees.step(0.0, out)
    assert out.count(Slow(9, X)) == 1, "people are told once"
    assert 9 not in {one for node in range(1, 21) for one in trees.forest.suppliers(node)}
    trees.check()


def test_nobody_else_finds_a_node_slow() -> None:
    trees, _, roster = many_runs(20)
    for stranger in {*range(1, 21)} - {*trees.forest.suppliers(9)}:
        roster.update(stranger, chunkset.full(20))
        trees.accused(stranger, (9, 777, stranger))
    out: list[Output] = []
    trees.step(0.0, out)
    assert not any(isinstance(one, Send) and isinstance(one.message, m.Poll) for one in out)


def test_who_was_found_slow_hands_on_again_when_it_kept_up() -> None:
    trees, book, roster = found_slow(20, 9)
    trees.seen(9, pulls=True)
    assert is_spare(trees, 9), "so soon anybody has what was read"
    book.ends["done"] = 2 * BEHIND
    trees.seen(9, pulls=True)
    assert is_spare(trees, 9), "it lacks it all"
    roster.update(9, chunkset.full(2 * BEHIND))
    trees.seen(9, pulls=True)
    assert not is_spare(trees, 9)
    trees.check()


def test_who_goes_and_comes_back_is_slow_no_more() -> None:
    trees, _, _ = found_slow(20, 9)
    trees.seen(9, pulls=True)
    trees.left(9)
    trees.seen(9, pulls=True)
    assert not is_spare(trees, 9)
    trees.check()


def test_a_member_tells_whom_it_finds_slow() -> None:
    world = storm(20)
    trees = planting(world)
    have = chunkset.to_bytes(chunkset.full(20), RUNS)
    said = m.SwarmState(X, RUNS, have, credit=1, slow=(9,))
    supplier = one_supplier(trees, 9)
    world.say(supplier, m.Heartbeat(swarms=(said,)))
    for other in (9, *trees.forest.beside(9, supplier)):
        assert len(world.got(other, m.Poll)) == 1
        if other != 9:
            world.say(other, m.Heartbeat(swarms=(msgspec.structs.replace(said, slow=()),)))
    world.say(9, m.Heartbeat(swarms=(state(credit=1),)))
    assert is_spare(trees, 9)


def test_where_anybody_would_have_no_supplier_there_are_no_trees() -> None:
    """80 simulated nodes, 2 and 4 of them hidden: those few had 0.81 to 0.85 of the bound, 0.86 to 0.89 in the mesh."""
    world = storm(20)
    trees, hiding = planting(world), world.tracking.swarms[X].book.readers.hiding
    for node, grown in ((3, True), (4, False)):
        hiding.hide(node, world.now)
        trees.reviewed(node)
        trees.step(world.now, [])
        assert trees.grown == grown


class Readers:
    """Trees of 20 nodes whose roots read; each read takes a second, but for those of the first root."""

    def __init__(self) -> None:
        self.trees, self.book, self.roster = many_runs(20)
        for node in range(1, 21):
            self.book.want(node, 8, ALL)
        self.slow = self.trees.forest.roots[0]
        self.out: list[Output] = []
        self.now = 0.0

    def read(self, until: float, slow_s: float) -> float:
        """Until this time, or the stripe has another root; returns when that was."""
        while self.now < until and self.book.roots.nodes[0] == self.slow:
            for runs in self.book.grants(self.now).values():
                assert len(runs) <= 2
            self.now += 0.5
            for run, lease in list(self.book.leases.items()):
                if self.now >= lease.since + (slow_s if lease.node == self.slow else 1.0):
                    self.roster.update(lease.node, 1 << run)
                    self.book.claim(lease.node, 1 << run, self.now)
            self.trees.step(self.now, self.out)
        return self.now


def test_a_root_that_stands_still_hands_its_stripe_over() -> None:
    storm = Readers()
    assert storm.read(3.0, slow_s=1.0) == 3.0
    assert 3.0 + DRAGS < storm.read(60.0, slow_s=60.0) <= 4.0 + DRAGS, "with the others' next end"
    assert is_spare(storm.trees, storm.slow), "nobody waits for it"
    assert {one.node for one in storm.out if isinstance(one, Send)} == set(range(1, 21))
    storm.trees.check()


def test_a_root_whose_first_read_is_slow_hands_its_stripe_over() -> None:
    """1,000 simulated nodes, one of the first roots slow: its stripe stood still for 32 runs, 0.873 for 0.916."""
    storm = Readers()
    assert storm.read(60.0, slow_s=10.0) == FIRST_DRAGS + 0.5
    assert is_spare(storm.trees, storm.slow)
    assert not storm.trees.slow, "nobody is told: its first packets may have been lost"
    storm = Readers()
    assert storm.read(6.0, slow_s=FIRST_DRAGS) == 6.0, "as slow as that anybody is by chance"


def test_a_root_whose_first_read_was_slow_is_slow_if_it_falls_behind() -> None:
    storm = Readers()
    storm.read(60.0, slow_s=10.0)
    storm.book.ends["done"] = BEHIND + 1
    for _ in range(2):
        storm.trees.seen(storm.slow, pulls=True)
        storm.trees.step(storm.now, storm.out)
    assert storm.trees.slow == [storm.slow]
    assert storm.out.count(Slow(storm.slow, X)) == 1
    storm.trees.check()


def test_a_root_whose_first_read_was_slow_hands_on_again_if_it_keeps_up() -> None:
    storm = Readers()
    storm.read(60.0, slow_s=10.0)
    storm.trees.seen(storm.slow, pulls=True)
    assert is_spare(storm.trees, storm.slow), "so soon anybody keeps up"
    storm.book.ends["done"] = 2 * BEHIND
    storm.roster.update(storm.slow, chunkset.full(2 * BEHIND))
    storm.trees.seen(storm.slow, pulls=True)
    assert not is_spare(storm.trees, storm.slow)
    assert not storm.trees.slow
    storm.trees.check()


def test_who_supplies_others_is_asked_early_whether_it_keeps_up() -> None:
    """A slow node kept what it should hand on until its heartbeat, for five of 22 seconds."""
    world = storm(20)
    book = world.tracking.swarms[X].book
    world.forget_mail()
    world.wait(0.1)
    assert not any(world.got(node, m.Poll) for node in range(1, 21))
    book.ends["done"] = 2 * BEHIND
    world.wait(0.1)
    assert all(len(world.got(node, m.Poll)) == 1 for node in range(1, 21))
    world.wait(0.1)
    assert all(len(world.got(node, m.Poll)) == 1 for node in range(1, 21)), "once"
