"""States of swarms that members told of in long lists and that the tracker has yet to take in.

A member with thousands of models tells of all of them in one message. The tracker takes in a few at once and does other
work between, so that nobody waits for one member's list. Members take turns.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from p2pcache.core.protocol.messages import SwarmState
from p2pcache.ids import NodeId


@dataclass(slots=True)
class WaitingState:
    """What a member told of one swarm."""

    said: SwarmState
    announced: bool  # in its announcement; else in a heartbeat


class WaitingStates:
    """The states that wait, by member and digest.

    Invariant: no member has an empty list.
    """

    def __init__(self) -> None:
        """None waits."""
        self.lists: OrderedDict[NodeId, dict[str, WaitingState]] = OrderedDict()

    def add(self, node: NodeId, states: Iterable[SwarmState], *, announced: bool) -> None:
        """A member told of these; a later state of a swarm takes the place of an earlier one.

        Args:
            node: the member.
            states: in the order in which they are to be taken in.
            announced: they are from an announcement.
        """
        told = self.lists.get(node, {})
        for said in states:
            before = told.pop(said.digest, None)
            first = announced or (before is not None and before.announced)
            told[said.digest] = WaitingState(said, first)
        if told:
            self.lists[node] = told

    def pick(self, node: NodeId, digest: str) -> WaitingState | None:
        """What waits of one member and swarm, out of turn: it waits no longer."""
        told = self.lists.get(node)
        if told is None or digest not in told:
            return None
        waiting = told.pop(digest)
        if not told:
            del self.lists[node]
        return waiting

    def pick_in_turn(self, count: int) -> Iterator[tuple[NodeId, WaitingState]]:
        """The next ones, of one member after the other; they wait no longer.

        Args:
            count: how many at most.
        """
        for _ in range(count):
            if not self.lists:
                return
            node, told = self.lists.popitem(last=False)
            waiting = told.pop(next(iter(told)))
            if told:
                self.lists[node] = told
            yield node, waiting

    def forget(self, node: NodeId) -> None:
        """A member is gone, or tells of all its swarms anew."""
        self.lists.pop(node, None)

    def check(self) -> None:
        """Assert the invariant."""
        assert all(self.lists.values())
