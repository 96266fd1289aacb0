"""Whether the origin's bytes are wrong for all nodes, or the storage of one node is the odd one.

The word of one node stops no other: an empty mount, another bucket or a bad cable looks to that node like a model that
was changed. So a second reader is asked: the tracker itself where it can read the origin, otherwise the node that is
granted the run next. If two bearers read the same run wrong, no more leases of the model are granted. If one reads it
right, the storage of the others is odd.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from p2pcache.core import bitset
from p2pcache.core.leases.settings import STOP_S
from p2pcache.core.swarm.commands import ALL
from p2pcache.ids import NodeId, RunIndex, RunSet


class WitnessReport(IntEnum):
    """What the tracker found when it read a run itself."""

    NONE = 0  # it couldn't: it has no origin, or this doesn't answer
    RIGHT = 1
    WRONG = 2


class OddReason(IntEnum):
    """Why one node gets no leases (`messages.Stop.odd`); 0 would be: no node does."""

    OTHERS_READ_IT = 1
    NOBODY_ELSE_READS = 2


@dataclass(slots=True)
class DoubtedRun:
    """A run that a node read wrong."""

    since: float
    accusers: dict[NodeId, int] = field(default_factory=dict)  # how often each read it wrong
    right: set[NodeId] = field(default_factory=set)  # bearers that read it right
    witness: WitnessReport | None = None  # None: the tracker is reading it


@dataclass(slots=True)
class OddStorage:
    """A node whose own storage is odd, or whose word no other can confirm."""

    run: RunIndex
    reason: OddReason
    wanted: RunSet = ALL
    told: bool = False


def by_id(node: NodeId) -> NodeId:
    """The bearer of a node id where members share one key: each node is its own witness."""
    return node


def witnesses_but(
    node: NodeId, nodes: Iterable[NodeId], bearer: Callable[[NodeId], NodeId], most: int
) -> int:
    """How many bearers there are beside that of a node.

    Args:
        node: whose bearer doesn't count.
        nodes: all that could be witnesses.
        bearer: maps a node id to what it stands for.
        most: counting ends here.
    """
    found: set[NodeId] = set()
    for one in nodes:
        if bearer(one) != bearer(node):
            found.add(bearer(one))
            if len(found) >= most:
                break
    return len(found)


class OriginIntegrity:
    """Which nodes read which runs wrong, and what follows.

    Invariants: `doubted` is exactly the runs of `_doubts`; a node in `odd` gets no lease until its pull ends.
    """

    def __init__(self, bearers_to_stop: int) -> None:
        """No run is doubted.

        Args:
            bearers_to_stop: how many must read a run wrong before leases stop.
        """
        self.bearer: Callable[[NodeId], NodeId] = by_id
        self.stopped: RunIndex | None = None  # the run whose origin bytes are wrong for all
        self.odd: dict[NodeId, OddStorage] = {}
        self.doubted: RunSet = 0
        self._bearers_to_stop = bearers_to_stop
        self._stopped_at = 0.0
        self._doubts: dict[RunIndex, DoubtedRun] = {}

    def on_wrong_read(self, node: NodeId, run: RunIndex, now: float) -> bool:
        """A node read a run wrong; returns whether the tracker should read it, too."""
        if node in self.odd:
            return False
        doubt = self._doubts.get(run)
        # What was found of a run is found anew after a while: mounts are mended, and disks rot.
        fresh = doubt is None or (doubt.witness is not None and now >= doubt.since + STOP_S)
        if doubt is None or fresh:
            doubt = self._doubts[run] = DoubtedRun(now)
            self.doubted |= 1 << run
        doubt.accusers[node] = doubt.accusers.get(node, 0) + 1
        return fresh

    def on_witness_report(self, run: RunIndex, report: WitnessReport) -> None:
        """The tracker has read a run."""
        if run in self._doubts:
            self._doubts[run].witness = report

    def on_right_read(self, node: NodeId, run: RunIndex) -> None:
        """A node read a doubted run from the origin, and the bytes matched."""
        doubt = self._doubts[run]
        doubt.accusers.pop(node, None)  # its storage was mended meanwhile
        doubt.right.add(self.bearer(node))

    def accusers(self, run: RunIndex) -> list[NodeId]:
        """Nodes that read this run wrong."""
        return list(self._doubts[run].accusers) if run in self._doubts else []

    def judge(self, run: RunIndex, readers: Iterable[NodeId], now: float) -> list[NodeId]:
        """Decide what follows for a doubted run.

        Args:
            run: which.
            readers: the nodes that work on leases.
            now: seconds.

        Returns:
            Nodes whose storage is odd from now on. `stopped` is set if the model's bytes are wrong.
        """
        doubt = self._doubts.get(run)
        if doubt is None or self.stopped is not None:
            return []
        bearers = {self.bearer(node) for node in doubt.accusers}
        if doubt.witness is WitnessReport.RIGHT or doubt.right - bearers:
            return self._call_odd(doubt, run, OddReason.OTHERS_READ_IT)
        if doubt.witness is None:
            return []
        if len(bearers) + (doubt.witness is WitnessReport.WRONG) >= self._bearers_to_stop:
            self.stopped, self._stopped_at = run, now
            return []
        tried_twice = sum(doubt.accusers.values()) > 1
        if tried_twice and all(self.bearer(one) in bearers for one in readers):
            return self._call_odd(doubt, run, OddReason.NOBODY_ELSE_READS)
        return []

    def acquit(self, node: NodeId) -> None:
        """A node's pull is over, or the node is another process: it may read again."""
        self.odd.pop(node, None)

    def hopeless(self, free: RunSet) -> list[NodeId]:
        """Nodes of odd storage that wait for some of these runs, which no other reads; each is named once."""
        found = [n for n, odd in self.odd.items() if not odd.told and odd.wanted & free]
        for node in found:
            self.odd[node].told = True
        return found

    def resume(self, now: float, *, wanted: bool) -> bool:
        """Whether leases flow (again): a stop ends when no node wants any and a while has passed."""
        # The origin may have been repaired; two wrong reads more tell if it wasn't.
        if self.stopped is not None and not wanted and now >= self._stopped_at + STOP_S:
            self.stopped = None
            self._doubts.clear()
            self.doubted = 0
        return self.stopped is None

    def check(self) -> None:
        """Assert the invariants."""
        assert bitset.of(self._doubts) == self.doubted

    def _call_odd(self, doubt: DoubtedRun, run: RunIndex, reason: OddReason) -> list[NodeId]:
        fresh = [node for node in doubt.accusers if node not in self.odd]
        self.odd |= {node: OddStorage(run, reason) for node in fresh}
        if reason is OddReason.OTHERS_READ_IT:
            doubt.accusers.clear()  # a mended node isn't odd again for what the next one reads
        return fresh
