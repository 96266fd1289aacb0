"""Peers that were told BUSY, and when they are called again."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from p2pcache.ids import NodeId

Item = TypeVar("Item", bound=Hashable)


class Refusals(Generic[Item]):
    """One refused request for each peer that was turned away and hasn't been admitted since, the oldest first.

    A called peer's answer takes a round trip, and the peer whose upload has just ended may ask sooner. So calls keep
    places (`keeps`).
    """

    def __init__(self) -> None:
        """Nobody was turned away."""
        self._refused: dict[NodeId, Item] = {}
        self._called: dict[NodeId, None] = {}  # called last, and not heard of since

    def refuse(self, peer: NodeId, item: Item) -> None:
        """A request is answered BUSY because all places are taken. A peer's first refusal counts."""
        self._refused.setdefault(peer, item)
        self._called.pop(peer, None)

    def withdraw(self, peer: NodeId) -> None:
        """A peer was admitted, or is gone."""
        self._refused.pop(peer, None)
        self._called.pop(peer, None)

    def are_there_others(self, peer: NodeId) -> bool:
        """Whether anybody but this peer was turned away."""
        return len(self._refused) > (peer in self._refused)

    def recall(self, places: int) -> list[Item]:
        """Refused requests whose peers should hear that so many places are free, the oldest first; each is named once.

        Calling more peers than there are places would turn most of them away again.
        """
        if places <= 0 or not self._refused:
            return []
        peers = list(self._refused)[:places]
        self._called = dict.fromkeys(peers)
        return [self._refused.pop(peer) for peer in peers]

    def keeps(self, peer: NodeId, places: int) -> bool:
        """Whether the free places are kept for others, who were called, when this peer asks for one.

        Each call keeps a place from one request.
        """
        if peer in self._called or len(self._called) < places:
            return False
        del self._called[next(iter(self._called))]  # it may have no use for the place
        return True
