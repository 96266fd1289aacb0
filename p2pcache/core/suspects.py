"""Which nodes those that supply them find slow, and which of these are. Pure.

A supplier names whom an upload takes far longer than usual (`core.uploads`). On quiet links that is a slow node. Where
connections share full links it happens to one upload of a hundred whoever takes it: of 16 real nodes half were taken
for slow after 7 s. So who is named by two is asked what it has: who is slow has far less than those that name it.
"""

import math
from collections.abc import Mapping

_ACCUSERS = 2  # of a node's four suppliers; one alone may lie
_LATELY = 64  # runs that were read meanwhile: longer than a run takes down the tree, and each of them to be sure
# Slow is who lacks so many runs of those that its accusers have, or so many and half of them at a storm's start.
_MOST_LACKED = 16
_FIRST_LACKED = 2
_AGAIN = 4  # runs that were read until who isn't slow, but still named, is asked again


class Suspects:
    """The nodes that were named, and what became of it.

    Invariant (`check`): nobody is slow and still asked.
    """

    def __init__(self) -> None:
        """Nobody was named."""
        self.slow: dict[int, int] = {}  # found slow when so many runs had been read
        self._accusers: dict[int, dict[int, int]] = {}  # node -> who named it, when so many were
        self._ask_at: dict[int, float] = {}  # ... and when that many are, it is asked what it has

    def named(self, node: int, supplier: int, done: int) -> None:
        """A supplier finds a node slow, now that so many runs were read."""
        if node not in self.slow:
            self._accusers.setdefault(node, {})[supplier] = done
            if len(self._lately(node, done)) >= _ACCUSERS:
                self._ask_at.setdefault(node, done)

    def to_ask(self, done: int) -> list[int]:
        """Who is to be asked what it has now; each is named once, until `heard`."""
        nodes = [node for node, at in self._ask_at.items() if at <= done]
        self._ask_at.update(dict.fromkeys(nodes, math.inf))
        return nodes

    def heard(self, node: int, have: Mapping[int, int], done: int) -> bool:
        """A node says what it has; returns whether it is slow, if it wasn't before.

        `have` is what each member has (bits).
        """
        if self._ask_at.pop(node, None) is None:
            return False
        accusers = [one for one in self._lately(node, done) if one in have]
        if len(accusers) >= _ACCUSERS:
            theirs = max(have[one].bit_count() for one in accusers)
            lacked = theirs - have[node].bit_count()
            if lacked > min(_MOST_LACKED, _FIRST_LACKED + theirs // 2):
                self.slow[node] = done
                return True
            self._ask_at[node] = done + _AGAIN
        return False

    def kept_up(self, node: int, done: int, tolerated: float) -> None:
        """A node has what was read; if that was more than so many runs since it was found slow, it isn't."""
        if done - self.slow.get(node, done) > tolerated:
            self.forget(node)

    def forget(self, node: int) -> None:
        """Nothing is known of a node (any more)."""
        for table in (self.slow, self._accusers, self._ask_at):
            table.pop(node, None)

    def _lately(self, node: int, done: int) -> list[int]:
        return [one for one, at in self._accusers.get(node, {}).items() if done - at <= _LATELY]

    def check(self) -> None:
        """Assert the invariant."""
        assert not self.slow.keys() & self._ask_at.keys()
        assert self._ask_at.keys() | self.slow.keys() <= self._accusers.keys()
