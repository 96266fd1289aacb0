"""What each neighbour is still to be told. The agent and the simulator run this same code."""

import math
from collections.abc import Iterable

from p2pcache.core.peers.settings import LAST_RUNS
from p2pcache.core.swarm.commands import Announce
from p2pcache.core.upload.settings import FULL
from p2pcache.ids import NodeId, RunSet

Batches = list[tuple[NodeId, RunSet]]


class HaveQueue:
    """Runs that wait, by neighbour, until there is more to tell it.

    Each message wakes the neighbour up, and of a run that several others have it has heard before. So such a run waits
    for a rarer one, for a request to that neighbour, or for `Announce.wait_s` at most. If our last batch said that we
    are full, it goes as soon as a slot is free: until then the neighbour doesn't ask us anyway. A neighbour that lacks
    few runs is told at once: it may wait for this one.
    """

    def __init__(self, run_count: int) -> None:
        """Nobody is to be told anything; `run_count`: of the model."""
        self._run_count = run_count
        self._waiting: dict[NodeId, RunSet] = {}
        self._told_full: set[NodeId] = set()
        self.due_at = math.inf  # when `due` is to be called

    def tell_or_keep(
        self, one: Announce, neighbours: Iterable[tuple[NodeId, RunSet]], load: int, now: float
    ) -> Batches:
        """Runs are proved; returns the batches that go now and tell this load.

        `neighbours` are all that are connected, and what each is known to have.
        """
        rare = one.runs & ~one.common if one.wait_s else one.runs
        batches: Batches = []
        waiting, self._waiting = self._waiting, {}
        for node, known in neighbours:
            if runs := (waiting.get(node, 0) | one.runs) & ~known:
                if runs & rare or self._run_count - known.bit_count() <= LAST_RUNS:
                    batches.append((node, runs))
                else:
                    self._waiting[node] = runs
        self._arm(now + one.wait_s)
        return self._sent(batches, load)

    def due(self, neighbours: Iterable[tuple[NodeId, RunSet]], load: int) -> Batches:
        """Everything that waits, since the first of it has waited long enough."""
        waiting, self._waiting, self.due_at = self._waiting, {}, math.inf
        told = [(node, waiting.get(node, 0) & ~known) for node, known in neighbours]
        return self._sent([one for one in told if one[1]], load)

    def on_room(self, neighbours: Iterable[tuple[NodeId, RunSet]], load: int) -> Batches:
        """An upload ended: what waits for neighbours that were told that we are full, if we aren't any more."""
        if load >= FULL:
            return []
        told = [
            (node, self.take_waiting(node, known))
            for node, known in neighbours
            if node in self._told_full
        ]
        return self._sent([one for one in told if one[1]], load)

    @property
    def waits_for_room(self) -> bool:
        """Whether something waits for a neighbour that was told that we are full."""
        return not self._told_full.isdisjoint(self._waiting)

    def take_waiting(self, node: NodeId, known: RunSet) -> RunSet:
        """What waits for one neighbour, which is told it now."""
        runs = self._waiting.pop(node, 0) & ~known
        self._arm(self.due_at)
        return runs

    def _arm(self, due_at: float) -> None:
        self.due_at = min(self.due_at, due_at) if self._waiting else math.inf

    def _sent(self, batches: Batches, load: int) -> Batches:
        nodes = {node for node, _ in batches}
        self._told_full = self._told_full | nodes if load >= FULL else self._told_full - nodes
        return batches
