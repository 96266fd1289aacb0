"""Whether the origin's bytes are wrong for everybody, or one node's own storage is the odd one. Pure.

One node's word stops nobody but itself: an empty mount, another bucket or a bad cable look to that node like a model
that was changed. So a second reader is asked: the tracker itself where it can read the origin, else whoever is
granted the run next. Two bearers that read the same run wrong stop the model; one who reads it right, and the
others are odd.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from p2pcache.core import bitset
from p2pcache.core.swarm.commands import ALL

# After wrong origin bytes; restarting pods must not turn into an endless refetch. What was found of a run is found
# anew after as long: mounts are mended, and disks rot.
STOP_S = 30.0


class WitnessReport(IntEnum):
    """What the tracker found when it read a run itself."""

    NONE = 0  # it couldn't: it has no origin, or this doesn't answer
    RIGHT = 1
    WRONG = 2


class OddReason(IntEnum):
    """Why a node alone gets no leases (`messages.Stop.odd`); 0 would be: nobody does."""

    OTHERS_READ_IT = 1
    NOBODY_ELSE_READS = 2


@dataclass(slots=True)
class Doubt:
    """A run that somebody read wrong."""

    since: float
    said: dict[int, int] = field(default_factory=dict)  # node -> its wrong reads, told by it
    right: set[int] = field(default_factory=set)  # bearers that read it right
    word: WitnessReport | None = None  # the tracker's; None: it is asked


@dataclass(slots=True)
class Odd:
    """A node whose own storage is odd, or whom nobody can confirm."""

    run: int
    why: OddReason
    wanted: int = ALL  # bits
    told: bool = False


def by_id(node: int) -> int:
    """Each node its own witness: all that can be said where members share a key."""
    return node


def witnesses_but(node: int, nodes: Iterable[int], bearer: Callable[[int], int], most: int) -> int:
    """How many bearers there are beside this node's, counted up to so many."""
    found: set[int] = set()
    for one in nodes:
        if bearer(one) != bearer(node):
            found.add(bearer(one))
            if len(found) >= most:
                break
    return len(found)


class OriginIntegrity:
    """Who read which runs wrong, and what follows for whom.

    Invariants: `doubted` is exactly the runs (bits) of `_doubts`; who is in `odd` gets no lease until its pull ends.
    """

    def __init__(self, bearers_to_stop: int) -> None:
        """Nobody has read anything; so many bearers must agree."""
        self.bearer: Callable[[int], int] = by_id  # whose a node id is
        self.stopped: int | None = None  # the run whose origin bytes are wrong for all
        self.odd: dict[int, Odd] = {}
        self.doubted = 0
        self._bearers_to_stop = bearers_to_stop
        self._stopped_at = 0.0
        self._doubts: dict[int, Doubt] = {}

    def said(self, node: int, run: int, now: float) -> bool:
        """A node read a run wrong; returns whether the tracker should read it, too."""
        if node in self.odd:
            return False
        doubt = self._doubts.get(run)
        fresh = doubt is None or (doubt.word is not None and now >= doubt.since + STOP_S)
        if doubt is None or fresh:
            doubt = self._doubts[run] = Doubt(now)
            self.doubted |= 1 << run
        doubt.said[node] = doubt.said.get(node, 0) + 1
        return fresh

    def heard(self, run: int, word: WitnessReport) -> None:
        """What the tracker found of a run."""
        if run in self._doubts:
            self._doubts[run].word = word

    def read_right(self, node: int, run: int) -> None:
        """A node read a doubted run from the origin, and it matched."""
        doubt = self._doubts[run]
        doubt.said.pop(node, None)  # its storage was mended meanwhile
        doubt.right.add(self.bearer(node))

    def accusers(self, run: int) -> list[int]:
        """Nodes that read this run wrong."""
        return list(self._doubts[run].said) if run in self._doubts else []

    def judge(self, run: int, readers: Iterable[int], now: float) -> list[int]:
        """See what is to be made of a doubted run; `readers`: the nodes that work on leases.

        Returns:
            Nodes whose word doesn't count from now on. `stopped` is set if the model's bytes are wrong.
        """
        doubt = self._doubts.get(run)
        if doubt is None or self.stopped is not None:
            return []
        who = {self.bearer(node) for node in doubt.said}
        if doubt.word is WitnessReport.RIGHT or doubt.right - who:
            return self._set_aside(doubt, run, OddReason.OTHERS_READ_IT)
        if doubt.word is None:
            return []
        if len(who) + (doubt.word is WitnessReport.WRONG) >= self._bearers_to_stop:
            self.stopped, self._stopped_at = run, now
        elif sum(doubt.said.values()) > 1 and all(self.bearer(one) in who for one in readers):
            return self._set_aside(doubt, run, OddReason.NOBODY_ELSE_READS)
        return []

    def pardon(self, node: int) -> None:
        """Its pull is over, or it is another process: the next one may try."""
        self.odd.pop(node, None)

    def hopeless(self, free: int) -> list[int]:
        """Odd nodes that wait for some of these runs (bits), which nobody else reads; each is named once."""
        found = [n for n, odd in self.odd.items() if not odd.told and odd.wanted & free]
        for node in found:
            self.odd[node].told = True
        return found

    def resume(self, now: float, *, wanted: bool) -> bool:
        """Whether leases flow (again): a stop ends once nobody wants and a while has passed."""
        # The origin may have been repaired; two wrong reads more tell if it wasn't.
        if self.stopped is not None and not wanted and now >= self._stopped_at + STOP_S:
            self.stopped = None
            self._doubts.clear()
            self.doubted = 0
        return self.stopped is None

    def check(self) -> None:
        """Assert the invariants."""
        assert bitset.of(self._doubts) == self.doubted

    def _set_aside(self, doubt: Doubt, run: int, why: OddReason) -> list[int]:
        fresh = [node for node in doubt.said if node not in self.odd]
        self.odd |= {node: Odd(run, why) for node in fresh}
        if why is OddReason.OTHERS_READ_IT:
            doubt.said.clear()  # who is mended isn't odd again for what the next one reads
        return fresh
