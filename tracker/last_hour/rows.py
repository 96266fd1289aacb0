"""Rows about nodes: those of the last hour, a limited number, of which one node has its share at most."""

from collections import deque
from typing import NamedTuple

from p2pcache.ids import NodeId

KEPT_S = 3600.0


class _Row(NamedTuple):
    at: float
    node: NodeId
    data: bytes


class HourRows:
    """Rows, numbered from 1 on.

    Invariants: `_rows` has at most `most` rows, the oldest first; `_of` has all and only their numbers, by node.
    """

    def __init__(self, most: int, most_each: int) -> None:
        """No row yet.

        Args:
            most: rows.
            most_each: rows about one node: what it does often pushes out its own rows, not those of others.
        """
        self.last = 0  # number of the last row
        self._most = most
        self._most_each = most_each
        self._rows: dict[int, _Row] = {}
        self._of: dict[NodeId, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, node: NodeId, data: bytes, now: float) -> None:
        """Something happened to a node.

        Args:
            node: its id.
            data: the row, encoded: it is sent often and never changes.
            now: seconds.
        """
        self.last += 1
        self._rows[self.last] = _Row(now, node, data)
        own = self._of.setdefault(node, deque())
        own.append(self.last)
        if len(own) > self._most_each:
            del self._rows[own.popleft()]
        if len(self._rows) > self._most:
            self._drop_oldest()

    def after(self, number: int, now: float) -> list[bytes]:
        """The rows of the last hour with higher numbers, the newest first."""
        while self._rows and next(iter(self._rows.values())).at < now - KEPT_S:
            self._drop_oldest()
        found = []
        for one in reversed(self._rows):
            if one <= number:
                break
            found.append(self._rows[one].data)
        return found

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._rows) <= self._most
        assert list(self._rows) == sorted(self._rows)
        assert {n: node for node, own in self._of.items() for n in own} == {
            number: row.node for number, row in self._rows.items()
        }
        assert all(0 < len(own) <= self._most_each for own in self._of.values())

    def _drop_oldest(self) -> None:
        number = next(iter(self._rows))
        node = self._rows.pop(number).node
        own = self._of[node]
        own.popleft()  # its oldest, since numbers rise
        if not own:
            del self._of[node]
