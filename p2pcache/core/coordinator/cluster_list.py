"""The list of a small cluster's nodes, which all of them have.

Pulls also begin while no tracker is active. Nodes with equal lists agree then who reads what. In a large cluster each
newcomer would cost a message to everybody, so nodes have no list there, and such pulls wait for the next tracker.
"""

from collections.abc import Iterable, Mapping

from p2pcache.core.coordinator.settings import MOST_LISTED
from p2pcache.core.membership.outputs import Output, Send
from p2pcache.core.membership.registry import Node
from p2pcache.core.protocol.messages import EVERYBODY, Member, Swarm
from p2pcache.ids import NodeId


class ClusterList:
    """The nodes as they were told to each of them.

    Invariant: each node of `_told` was sent all the others; the others were sent nothing, or an empty list.
    """

    def __init__(self, out: list[Output], most: int = MOST_LISTED) -> None:
        """Nobody was told. Messages are appended to `out`; `most`: nodes of a cluster that is small."""
        self._out = out
        self._most = most
        self._told: dict[NodeId, Member] = {}

    def tell_all(self, node: NodeId, nodes: Mapping[NodeId, Node]) -> None:
        """A node announced itself: tell it of all nodes, and them of it."""
        if len(nodes) > self._most:
            self._send(self._told, Swarm(EVERYBODY, 0, full=True))
            self._told = {}
            return
        all_nodes = {one: record.member for one, record in nodes.items()}
        fresh = sorted(all_nodes.keys() - self._told.keys() | {node})
        self._send(fresh, Swarm(EVERYBODY, 0, full=True, joined=tuple(all_nodes.values())))
        if all_nodes != self._told:
            news = Swarm(EVERYBODY, 0, full=False, joined=tuple(all_nodes[n] for n in fresh))
            self._send(sorted(all_nodes.keys() - fresh), news)
        self._told = all_nodes

    def on_left(self, node: NodeId) -> None:
        """A node is no member any more."""
        if self._told.pop(node, None) is not None:
            self._send(self._told, Swarm(EVERYBODY, 0, full=False, left=(node,)))

    def _send(self, nodes: Iterable[NodeId], message: Swarm) -> None:
        self._out += [Send(node, message) for node in nodes]
