"""States of swarms that members told of in long lists and that the tracker has yet to take in.

A member with thousands of models tells of all of them in one message. The tracker takes in a few at once and does other
work between, so that nobody waits for one member's list. Members take turns.
"""

from collections.abc import Iterable
from typing import NamedTuple

from p2pcache.core.protocol.messages import SwarmState
from p2pcache.ids import NodeId


class WaitingState(NamedTuple):
    """What a member told of one swarm."""

    said: SwarmState
    announced: bool  # in its announcement; else in a heartbeat


class WaitingStates:
    """The states that wait, by member and digest; the member whose turn it is comes first."""

    def __init__(self) -> None:
        """None waits."""
        self.lists: dict[NodeId, dict[str, WaitingState]] = {}

    def add(self, node: NodeId, states: Iterable[SwarmState], *, announced: bool) -> None:
        """A member told of these; a later state of a swarm takes the place of an earlier one, and its turn is later."""
        for said in states:
            before = self.pick(node, said.digest)
            first = announced or (before is not None and before.announced)
            self.lists.setdefault(node, {})[said.digest] = WaitingState(said, first)

    def pick(self, node: NodeId, digest: str = "") -> WaitingState | None:
        """What waits of a member, in the swarm that is named or else the one it told of first: it waits no longer."""
        told = self.lists.get(node, {})
        waiting = told.pop(digest or next(iter(told), ""), None)
        if not told:
            self.lists.pop(node, None)
        return waiting

    def next_member(self) -> NodeId:
        """The member whose turn it is; it comes last from now on."""
        node = next(iter(self.lists))
        self.lists[node] = self.lists.pop(node)
        return node

    def forget(self, node: NodeId) -> None:
        """A member is gone, or tells of all its swarms anew."""
        self.lists.pop(node, None)
