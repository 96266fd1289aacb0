"""The list of a small cluster's nodes, which all of them have.

Pulls begin also while no tracker is active, of models of which it told nobody. Nodes with equal lists agree then who
reads what. In a large cluster each newcomer would cost a message to everybody, so nodes have no list there, and such
pulls wait for the next tracker.
"""

from collections.abc import Mapping

from p2pcache.core.coordinator.settings import MOST_LISTED
from p2pcache.core.membership.outputs import Output, Send
from p2pcache.core.membership.registry import Node
from p2pcache.core.protocol.messages import EVERYBODY, Member, Swarm
from p2pcache.ids import NodeId


class ClusterList:
    """The nodes as they were told to each of them.

    Invariant: each node of `_told` was sent all the others; the others were sent nothing, or an empty list.
    """

    def __init__(self, most: int = MOST_LISTED) -> None:
        """Nobody was told. `most`: nodes of a cluster that is small."""
        self._most = most
        self._told: dict[NodeId, Member] = {}

    def tell_all(self, node: NodeId, nodes: Mapping[NodeId, Node], out: list[Output]) -> None:
        """A node announced itself: tell it of all others, and them of it.

        Args:
            node: its id.
            nodes: all of the cluster, it among them.
            out: outputs are appended.
        """
        all_nodes = {one: record.member for one, record in nodes.items()}
        if len(all_nodes) > self._most:
            void = Swarm(EVERYBODY, 0, full=True)
            out += [Send(other, void) for other in self._told]
            self._told.clear()
            return
        fresh = all_nodes.keys() - self._told.keys() | {node}
        full = Swarm(EVERYBODY, 0, full=True, joined=tuple(all_nodes.values()))
        out += [Send(one, full) for one in sorted(fresh)]
        if all_nodes != self._told:
            news = Swarm(
                EVERYBODY, 0, full=False, joined=tuple(all_nodes[n] for n in sorted(fresh))
            )
            out += [Send(one, news) for one in sorted(all_nodes.keys() - fresh)]
        self._told = all_nodes

    def on_left(self, node: NodeId, out: list[Output]) -> None:
        """A node is no member any more."""
        if self._told.pop(node, None) is not None:
            gone = Swarm(EVERYBODY, 0, full=False, left=(node,))
            out += [Send(other, gone) for other in self._told]
