"""Who takes part in the trees of one swarm, and who is told of it. Pure."""

from collections.abc import Sequence

from p2pcache.core.forest import STRIPES, Forest, Rank, levels, stripes
from p2pcache.core.leases import LeaseBook
from p2pcache.core.messages import Poll
from p2pcache.core.outputs import Output, Send, Slow
from p2pcache.core.roster import Roster
from p2pcache.core.suspects import Suspects

# Runs that a node lacks of those that were read, for each level of the trees, and is no worse than others: six hops.
# 1,000 nodes, 1,024 runs, a tenth slow: with 64 in all, some that had bad luck early starved, 0.845 for 0.925.
LEVEL_BEHIND = 24
BEHIND = 1 / 16  # ... or so much of the model: it came late, or is slow
# Who supplies others is asked what it has when so many times what a slow node may lack was read, and each time that
# doubles: heartbeats would tell too late, and what a slow one kept from those below it they hardly make up for.
_ASKED_AFTER = 1.5
_ASKED_AT_ONCE = 64  # ... so many nodes
_ASKED_PAUSE_S = 0.05  # ... and then the next ones: 10,000 take as long as their heartbeats
_MOST_ACCUSED = 16  # names of one message that are looked at; a node supplies four at a time
MOST_TOLD = 256  # in one step, or a new root would hold the tracker for long
Told = tuple[tuple[int, ...], tuple[int, ...]]
"""Suppliers and roots as a node knows them."""
NOTHING: Told = ((), ())


class Planting:
    """The forest of one swarm, as its roster and readers change.

    In it are those that pull the whole model. Who can't be dialled or is slow supplies nobody. Without trees are
    swarms of a few nodes, those in several racks (`core.seats` brings them what is new), and nodes that want parts.

    Invariant (`check`): all in the forest are members.
    """

    def __init__(self, roster: Roster, book: LeaseBook, trees_from: int) -> None:
        """Nobody is there yet; `trees_from`: as in `MemberSettings`."""
        self._roster = roster
        self._book = book
        self._trees_from = trees_from
        self.forest = Forest()
        self.grown = False  # there are trees
        self._roots: tuple[int, ...] = ()
        self._told: dict[int, Told] = {}
        self._behind: set[int] = set()  # in the forest, but of little use to others
        # Were roots, and kept their whole stripe waiting: they hand nothing on until they are seen to keep up.
        self._dragging: dict[int, int] = {}  # since so many runs had been read
        # Who is slow has no supplier: nobody waits for it until it kept up.
        self._suspects = Suspects()
        self._found_slow: list[int] = []  # since the last step
        self._basis = (0, 0)  # of what was planted: changes of the forest, racks
        self._untold: set[int] = set()  # their suppliers may have changed
        self._to_ask: list[int] = []  # what they have
        self._may_ask = 0  # so many at once, until ...
        self._ask_at = 0.0  # ... (seconds) it may be more
        self._ask_after = 0.0  # runs that were read

    def seen(self, node: int, *, pulls: bool) -> None:
        """A member says what it has, and whether it pulls all that it lacks."""
        roster = self._roster
        complete = node in roster.complete
        if roster.is_shunned(node) or not (pulls or complete):
            self.left(node)
        elif node in self.forest or not complete:
            if node not in self.forest:
                self._suspects.came(node, self._done - roster.have[node].bit_count())
            tolerated = self._tolerated
            if self._lacks(node) > tolerated:
                self._behind.add(node)
                if self._dragging.pop(node, None) is not None:
                    self._suspects.found(node, self._done)
                    self._found_slow.append(node)
            else:
                self._behind.discard(node)
                if self._done - self._dragging.get(node, self._done) > _ASKED_AFTER * tolerated:
                    del self._dragging[node]
                self._suspects.kept_up(node, self._done, _ASKED_AFTER * tolerated)
            if self._suspects.heard(node, roster.have, self._done):
                self._found_slow.append(node)
            self._enter(node)

    def accused(self, supplier: int, nodes: Sequence[int]) -> None:
        """A member says which of those that it supplies take it far slower than the others."""
        for node in set(nodes[:_MOST_ACCUSED]) if self.grown else ():
            if node in self.forest and supplier in self.forest.suppliers(node):
                beside = self.forest.beside(node, supplier)
                self._suspects.named(node, (supplier, *beside), self._done)

    @property
    def _done(self) -> int:
        """How many runs were read so far."""
        return self._book.ends["done"]

    @property
    def _tolerated(self) -> float:
        return max(LEVEL_BEHIND * levels(len(self.forest)), self._roster.run_count * BEHIND)

    def _lacks(self, node: int) -> float:
        """How many runs a node is behind: in the stripe that it has most of, or one bad supplier would look like it."""
        have = self._roster.have[node]
        most = max((have & runs).bit_count() for runs in stripes(self._roster.run_count))
        return float(self._done - STRIPES * most)

    def reviewed(self, node: int) -> None:
        """Something else is thought of a node."""
        if node in self.forest:
            self._enter(node)

    def _enter(self, node: int) -> None:
        fit = self._book.readers.hiding.is_reached(node)
        spare = node in self._behind or node in self._dragging or node in self._suspects.slow
        rank = Rank.SPARE if spare else Rank.INNER if fit else Rank.LEAF
        self.forest.enter(node, rank)

    def left(self, node: int) -> None:
        """A member is gone, or wants nothing more that is new."""
        if node in self.forest:
            self.forest.leave(node)
            self._behind.discard(node)
            self._dragging.pop(node, None)
            self._suspects.left(node)
            self._untold.add(node)

    def welcomed(self, node: int) -> None:
        """A member knows nothing (any more) of what it was told."""
        self._told.pop(node, None)
        self._untold.add(node)

    def step(self, now: float, out: list[Output]) -> None:
        """Tell all whose suppliers have changed."""
        forest, roster = self.forest, self._roster
        for root in self._book.roots.dragging(now):
            self._dragging[root] = self._done
            self._enter(root)
        basis = (forest.changes, len(roster.places))
        if basis != self._basis:
            self._basis = basis
            self._plant()
        for node in sorted(self._untold)[:MOST_TOLD]:
            self._untold.discard(node)
            self._tell(node, out)
        self._ask(now, out)
        out += [Slow(node, roster.digest) for node in self._found_slow]
        self._found_slow.clear()

    def _plant(self) -> None:
        """See whether there are trees, and whose place is another one."""
        forest, roster = self.forest, self._roster
        least = max(1, self._trees_from // 2) if self.grown else self._trees_from
        # Where anybody is left to nobody (several can't be dialled) there are no trees: neighbours share what is short
        # evenly, trees leave it to a few, who would be last by far.
        grown = len(forest) >= least > 0 and forest.short <= 0 and len(roster.places) < 2
        roots = forest.roots if grown else ()
        self._untold |= forest.moved()
        if grown != self.grown or roots != self._roots:
            self.grown, self._roots = grown, roots
            self._book.roots.planted(roots)
            self._untold.update(forest)

    def _ask(self, now: float, out: list[Output]) -> None:
        """Have suspects, and those that supply others, say what they have; so many at a time, the suspects first."""
        self._to_ask[:0] = self._suspects.to_ask(self._done)
        if self.grown and self._done >= max(self._ask_after, _ASKED_AFTER * self._tolerated):
            self._ask_after = 2.0 * self._done
            self._to_ask += sorted(self.forest.inner)
        if self._to_ask and now >= self._ask_at:
            self._ask_at, self._may_ask = now + _ASKED_PAUSE_S, _ASKED_AT_ONCE
        nodes = self._to_ask[: self._may_ask]
        del self._to_ask[: self._may_ask]
        self._may_ask -= len(nodes)
        out += [Send(node, Poll(self._roster.digest)) for node in nodes if node in self.forest]

    def _tell(self, node: int, out: list[Output]) -> None:
        suppliers = self.forest.suppliers(node) if self.grown and node in self.forest else ()
        said = (suppliers, self._roots) if suppliers else NOTHING
        before = self._told.pop(node, NOTHING)
        if suppliers:
            self._told[node] = said
        if said != before and node in self._roster and node not in self._roster.complete:
            out.append(Send(node, self._roster.supply(*said)))

    @property
    def supplied(self) -> int:
        """How many nodes know of suppliers; 0: there are no trees."""
        return len(self._told)

    @property
    def slow(self) -> list[int]:
        """Nodes that those who supply them find slow."""
        return sorted(self._suspects.slow)

    def next_wakeup(self) -> float | None:
        """When `step` has something to do next; 0.0: at once."""
        if self._untold:
            return 0.0
        return self._ask_at if self._to_ask else None

    def check(self) -> None:
        """Assert the invariant."""
        self.forest.check()
        self._suspects.check()
        assert all(node in self._roster for node in self.forest)
        assert self._told.keys() <= set(self.forest) | self._untold
