"""A set of ints that can be drawn from at random in constant time, the same way in every process."""

import random
from collections.abc import Iterable, Iterator


class Bag:
    """Members in a list (for the dice), their places in a dict (for removal).

    Invariant: `_place[_items[i]] == i` for each i, and nothing else is in `_place`.
    """

    __slots__ = ("_items", "_place")

    def __init__(self, members: Iterable[int] = ()) -> None:
        self._items: list[int] = []
        self._place: dict[int, int] = {}
        for member in members:
            self.add(member)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, member: int) -> bool:
        return member in self._place

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def add(self, member: int) -> None:
        """Put a member in; no effect if it is there."""
        if member not in self._place:
            self._place[member] = len(self._items)
            self._items.append(member)

    def discard(self, member: int) -> None:
        """Take a member out; no effect if it isn't there."""
        place = self._place.pop(member, None)
        if place is None:
            return
        last = self._items.pop()
        if last != member:
            self._items[place] = last
            self._place[last] = place

    def draw(self, rng: random.Random, count: int) -> list[int]:
        """Up to `count` different members in random order."""
        return rng.sample(self._items, min(count, len(self._items)))

    def check(self) -> None:
        """Assert the invariant."""
        assert len(self._items) == len(self._place)
        assert all(self._place[member] == i for i, member in enumerate(self._items))
