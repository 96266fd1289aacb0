"""A set of ints from which members are drawn at random in constant time, alike in every process."""

import random
from collections.abc import Iterator


class SampledSet:
    """Members in a list, from which the dice draw, and the place of each, for removal.

    Invariant: `_position[_items[i]] == i` for each i, and nothing else is in `_position`.
    """

    __slots__ = ("_items", "_position")

    def __init__(self) -> None:
        self._items: list[int] = []
        self._position: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, member: int) -> bool:
        return member in self._position

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def add(self, member: int) -> None:
        """Add a member; no effect if it is there."""
        if member not in self._position:
            self._position[member] = len(self._items)
            self._items.append(member)

    def discard(self, member: int) -> None:
        """Remove a member; no effect if it isn't there."""
        position = self._position.pop(member, None)
        if position is not None and (last := self._items.pop()) != member:
            self._items[position] = last
            self._position[last] = position

    def draw(self, rng: random.Random, count: int) -> list[int]:
        """Up to `count` different members in random order."""
        return rng.sample(self._items, min(count, len(self._items)))

    def check(self) -> None:
        """Assert the invariant."""
        assert self._position == {member: i for i, member in enumerate(self._items)}
