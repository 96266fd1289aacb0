"""Peers that were told BUSY: when they are called again, and which peers make room for them."""

from collections.abc import Hashable
from itertools import takewhile
from typing import Generic, NamedTuple, TypeVar

from p2pcache.core.mechanisms import ALL_ON, Mechanisms
from p2pcache.core.upload.settings import ROUNDS
from p2pcache.ids import NodeId

Item = TypeVar("Item", bound=Hashable)


class Refusal(NamedTuple, Generic[Item]):
    """A request that was answered BUSY."""

    item: Item
    at: int  # uploads that had ended by then


class Refusals(Generic[Item]):
    """One refusal for each peer that was turned away and hasn't been admitted since, the oldest first.

    A served peer asks for its next run before the last one has ended, so it would keep its slot for ever. Two rules
    make it **yield** the slot, which means that its next request is answered BUSY:

    1. while slots are closed, a peer yields to every other one that was turned away;
    2. while all are open, one served peer yields for each peer that was turned away two rounds ago. A round is an
       upload for each slot. Yielding sooner would cost a call and a new question for each upload.

    Invariant (`check`): peers that yield by the second rule are being served.
    """

    def __init__(self, slots: int, on: Mechanisms = ALL_ON) -> None:
        """Nobody was turned away.

        Args:
            slots: uploads of one round.
            on: the rules in force.
        """
        self._on = on
        self._round = slots
        self._ends = 0  # uploads so far
        self._refused: dict[NodeId, Refusal[Item]] = {}
        self._yielding: set[NodeId] = set()

    def refuse(self, peer: NodeId, item: Item) -> None:
        """A request is answered BUSY because all places are taken. A peer's first refusal counts."""
        self._refused.setdefault(peer, Refusal(item, self._ends))

    def withdraw(self, peer: NodeId) -> None:
        """A peer was admitted, or is gone."""
        self._refused.pop(peer, None)

    def on_upload_ended(self, peer: NodeId) -> None:
        """An upload is over: its receiver has made room, if it was to yield."""
        self._ends += 1
        self._yielding.discard(peer)

    def recall(self, places: int) -> list[Item]:
        """Refused requests whose peers should hear that there is room now, the oldest first; each is named once.

        Args:
            places: that are free. Calling more peers than that would turn most of them away again.
        """
        if not self._refused:
            return []
        return [self._refused.pop(peer).item for peer in list(self._refused)[: max(0, places)]]

    def yields(self, peer: NodeId, *, served: bool, all_open: bool) -> bool:
        """Whether a peer's next request is to be answered BUSY for the sake of one that was turned away.

        Args:
            peer: that asks.
            served: whether an upload to it is active.
            all_open: whether all slots are open.
        """
        if not all_open:
            return self._on.yield_closed and bool(self._refused.keys() - {peer})
        if not served or not self._on.yield_rounds:
            return False
        if peer not in self._yielding:
            before = self._ends - ROUNDS * self._round
            waiting = takewhile(lambda one: one.at <= before, self._refused.values())
            if sum(1 for _ in waiting) <= len(self._yielding):
                return False
            self._yielding.add(peer)
        return True

    def check(self, served: set[NodeId]) -> None:
        """Assert the invariant; `served` are the peers with an active upload."""
        assert self._yielding <= served
