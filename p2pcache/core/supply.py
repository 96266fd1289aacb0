"""Which new runs a node leaves to its suppliers, and what these don't bring in time. Pure.

The tracker names a supplier for each stripe (`core.forest`). What a supplier is about to bring isn't asked of
others: they give it to those below them. Once a run is late, or its supplier is of no use, anybody may bring it.
"""

import functools
import math
from collections import deque
from collections.abc import Sequence

from p2pcache.core import chunkset
from p2pcache.core.forest import STRIPES, levels, stripes
from p2pcache.core.peers import Peer, PeerBook
from p2pcache.core.runbook import RunBook

_SLACK = 1.5  # as many runs as are on their way down the tree, times this, aren't late yet
_READ = 8  # ... and so many, which are read at once
# At the end, with no more missing than one for each supplier, a node asks anybody. (All did when the last eight runs
# were about: deep in a tree most still had many coming in order, and took the uplinks of those who brought them.)
_FEW = STRIPES
# Neighbours that have a run, up to which it is rare when it is late for that reason. It is in no tree, so who has
# it is busy with what is new. 300 nodes that start within a fifth of a storm, trees from the 250th on: a dozen runs
# that were read just before were with one node each until the end, 0.850 for 0.887 (decision 0041).
_RARE = 1
# Times what a run takes to come down, after which it is late though nothing newer has come
_PATIENT = 3.0
_FIRST_LOOK_S = 0.25  # between looks, until it is known what a hop takes
_LEAST_LOOK_S = 0.005  # where runs are quick: a look costs some microseconds
# Looks in a row that found runs late which their supplier lacks, until it isn't waited for
_MISSED = 2


class Supply:
    """Suppliers by stripe, and the runs that are late.

    Invariants (`check`): `suppliers` has one for each stripe, or is empty; what is late was held by somebody.
    """

    def __init__(self, mine: RunBook, book: PeerBook, now: float) -> None:
        """Nobody supplies us.

        Args:
            mine: what we have and lack.
            book: the neighbours, suppliers among them.
            now: seconds.
        """
        self._mine = mine
        self._book = book
        self.suppliers: tuple[int, ...] = ()
        self._hops = 1  # that a run takes from its root to us, at most
        count = mine.full.bit_length()
        self._stripes = stripes(count)
        # Runs from here on: when one is about all others are being read.
        self._last_ones = max(0, count - _READ)
        self._seen: deque[int] = deque()  # what was held at each look, the oldest first
        self._late = 0  # runs (bits)
        self.rare = 0  # of them those that hardly any neighbour has though they are known for long
        self._missed = [0] * STRIPES
        self._look_at = now

    def told(self, suppliers: Sequence[int], members: int) -> None:
        """These are our suppliers now (none at all: an empty list), in a swarm of so many."""
        fit = len(suppliers) == STRIPES and any(suppliers)
        self.suppliers = tuple(suppliers) if fit else ()
        self.rare = 0
        self._missed = [0] * STRIPES
        self.grown(members)

    def grown(self, members: int) -> None:
        """The swarm has so many members."""
        self._hops = levels(members)

    def of(self, peer: Peer) -> int:
        """Runs (bits) of the stripes that this neighbour supplies us with, whether it has them or not."""
        runs = 0
        for stripe, node in enumerate(self.suppliers):
            if node == peer.node:
                runs |= self._stripes[stripe]
        return runs

    @property
    def reserved(self) -> int:
        """Runs (bits) that suppliers will bring, and that nobody else is to be asked for."""
        runs = 0
        peers = self._book.peers
        for stripe, node in enumerate(self.suppliers):
            peer = peers.get(node)
            fit = peer is not None and not peer.slow and not peer.stalls
            if fit and self._missed[stripe] < _MISSED:
                runs |= self._stripes[stripe]
        return runs & ~(self._late | self._mine.demanded) if runs else 0

    def brought(self, peer: Peer, news: int, now: float) -> bool:
        """A neighbour has these missing runs since now; returns whether it is time for a look."""
        for stripe, node in enumerate(self.suppliers):
            if node == peer.node and news & self._stripes[stripe] & ~self._late:
                self._missed[stripe] = 0
        if news >> self._last_ones:
            self._look_at = (
                now  # each is a look from now on: what others have had for a hop or two is late
            )
        return now >= self._look_at

    def look(self, now: float, hop_s: float) -> float:
        """See what is late by now; returns when to look again.

        Args:
            now: seconds.
            hop_s: what a run takes from one node to the next, usually; inf: not known.
        """
        if not self.suppliers:
            return math.inf
        if now >= self._look_at:
            self._look_at = now + (max(_LEAST_LOOK_S, hop_s) if hop_s < math.inf else _FIRST_LOOK_S)
            held = self._book.rarity.held
            late = chunkset.full(self._newest(held))
            self._seen.append(held)
            # Looks come too often to say what is old, once the last runs are about.
            about = (held | self._mine.have) >> self._last_ones
            self.rare = 0
            if len(self._seen) > _PATIENT * self._hops:
                late |= self._seen[0]
                if not about:
                    self.rare = self._mine.missing & ~self._book.rarity.at_least(_RARE + 1)
                    # All the time: what a liar claimed at first is new when somebody has it.
                    self.rare &= functools.reduce(int.__and__, self._seen)
                self._seen.popleft()
            if about and self._mine.missing.bit_count() <= _FEW:
                late = held  # nothing new will come: who has handed on the last one is idle, however far above us
            late &= held  # who held them may have lied, and be gone
            self._judge(late & ~self._late)
            self._late = late
        return self._look_at

    def _newest(self, held: int) -> int:
        """The run above which there are as many held ones as may be on their way; leases go out in order."""
        on_their_way = int(_SLACK * STRIPES * self._hops) + _READ
        low, high = 0, held.bit_length()
        while low < high:
            middle = (low + high) // 2
            if (held >> middle).bit_count() > on_their_way:
                low = middle + 1
            else:
                high = middle
        return low

    def _judge(self, late: int) -> None:
        """These runs (bits) are late since this look: whose fault is it?"""
        missing = late & self._mine.missing
        for stripe, node in enumerate(self.suppliers):
            peer = self._book.peers.get(node)
            if peer is not None and missing & self._stripes[stripe] & ~peer.have:
                self._missed[stripe] += 1

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.suppliers) in {0, STRIPES}
        assert len(self._missed) == STRIPES
