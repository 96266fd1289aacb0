"""Which nodes those that supply them find slow, and which of these are. Pure.

A supplier names whom an upload takes far longer than usual (`core.uploads`). On quiet links that is a slow node. Where
connections share full links it happens to one upload of a hundred whoever takes it: of 16 real nodes half were taken
for slow after 7 s. So who is named is asked what it has, and so are those that this supplier supplies as well: who is
slow has far less than they have.

Each of them is a witness, and so is the supplier; their median counts, so that one alone may lie. (With
two suppliers that name it instead the slow ones nearest to the roots were found last, because others that supply them
waited for slow nodes themselves: decision 0041.)
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median_high

_WITNESSES = 3  # at least
_LATELY = 64  # runs that were read meanwhile: longer than a run takes down the tree, and each of them to be sure
# Slow is who lacks so many runs of those that the witnesses have, or so many and half of them at a storm's start.
_MOST_LACKED = 16
_FIRST_LACKED = 2
_AGAIN = 4  # runs that were read until who isn't slow, but still named, is asked again


class Suspects:
    """The nodes that were named, and what became of it.

    Invariants (`check`): nobody is slow and still asked; nobody is due before `_ask_from`.
    """

    def __init__(self) -> None:
        """Nobody was named."""
        self.slow: dict[int, int] = {}  # found slow when so many runs had been read
        self._witnesses: dict[int, dict[int, int]] = {}  # node -> of whom, when so many were
        self._ask_at: dict[int, float] = {}  # ... and when that many are, it is asked what it has
        self._ask_from = math.inf  # nobody sooner: each message comes by here
        # Node -> runs that it lacked when it came, of those that had been read.
        self._missed: dict[int, int] = {}

    def came(self, node: int, missed: int) -> None:
        """A node is new, and lacks so many of the runs that were read before: it isn't slow for that."""
        if missed > 0:
            self._missed[node] = missed

    def named(self, node: int, witnesses: Sequence[int], done: int) -> None:
        """A supplier finds a node slow, now that so many runs were read; it and whom else it supplies are witnesses."""
        if node not in self.slow:
            self._witnesses.setdefault(node, {}).update(dict.fromkeys(witnesses, done))
            self._ask_from = min(self._ask_from, self._ask_at.setdefault(node, done))

    def to_ask(self, done: int) -> list[int]:
        """Who is to be asked what it has now, the witnesses first; who was named is there once, until `heard`."""
        if done < self._ask_from:
            return []
        nodes = [node for node, at in self._ask_at.items() if at <= done]
        self._ask_at.update(dict.fromkeys(nodes, math.inf))
        self._ask_from = min(self._ask_at.values(), default=math.inf)
        witnesses = (one for node in nodes for one in self._lately(node, done))
        return list(dict.fromkeys((*witnesses, *nodes)))

    def heard(self, node: int, have: Mapping[int, int], done: int) -> bool:
        """A node says what it has; returns whether it is slow, if it wasn't before.

        `have` is what each member has (bits).
        """
        if self._ask_at.pop(node, None) is None:
            return False
        witnesses = [one for one in self._lately(node, done) if one in have]
        if len(witnesses) >= _WITNESSES:
            theirs = median_high(have[one].bit_count() for one in witnesses)
            lacked = theirs - have[node].bit_count() - self._missed.get(node, 0)
            if lacked > min(_MOST_LACKED, _FIRST_LACKED + theirs // 2):
                self.found(node, done)
                return True
            self._ask_at[node] = done + _AGAIN
            self._ask_from = min(self._ask_from, done + _AGAIN)
        return False

    def found(self, node: int, done: int) -> None:
        """A node is slow, now that so many runs were read."""
        self.slow[node] = done
        self._ask_at.pop(node, None)

    def kept_up(self, node: int, done: int, tolerated: float) -> None:
        """A node has what was read; if that was more than so many runs since it was found slow, it isn't."""
        if done - self.slow.get(node, done) > tolerated:
            self._acquit(node)

    def left(self, node: int) -> None:
        """A node is gone."""
        self._acquit(node)
        self._missed.pop(node, None)

    def _acquit(self, node: int) -> None:
        for table in (self.slow, self._witnesses, self._ask_at):
            table.pop(node, None)

    def _lately(self, node: int, done: int) -> list[int]:
        return [one for one, at in self._witnesses.get(node, {}).items() if done - at <= _LATELY]

    def check(self) -> None:
        """Assert the invariants."""
        assert not self.slow.keys() & self._ask_at.keys()
        assert self._ask_at.keys() <= self._witnesses.keys()
        assert self._ask_from <= min(self._ask_at.values(), default=math.inf)
