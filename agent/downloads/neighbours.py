"""Members of one swarm as this node knows them: their addresses, and the neighbours to dial."""

from collections.abc import Mapping

from p2pcache.agent.context import AgentContext
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm.events import Members
from p2pcache.ids import NodeId, RunSet

MAX_CALLERS = 256  # whose addresses are kept until they are written down


class Neighbours:
    """The tracker's member list of one swarm, and the members that are neighbours. `PeerNet` knows what each has."""

    def __init__(self, context: AgentContext, digest: str) -> None:
        self.members: dict[NodeId, m.Member] = {}
        self.joined: set[NodeId] = set()  # the neighbours that we may request from
        self.dialled = False  # a node has dialled us
        self.callers: dict[NodeId, str] = {}  # addresses of such nodes, until they are written down
        self._node = context.node
        self._place = context.settings.site, context.settings.rack
        self._digest = digest
        self._net = context.net
        self._to_dial: list[NodeId] = []  # neighbours that the tracker chose, best first
        self._left: set[NodeId] = set()  # the tracker says so, and they are still connected

    @property
    def ids(self) -> tuple[NodeId, ...]:
        """Node ids of all members, ourselves included, ascending."""
        return tuple(sorted(self.members))

    def members_event(self) -> Members:
        """All members by rack and site, for the scheduler."""
        return placed(self._node, self._place, self.members)

    def on_members(self, message: m.Swarm) -> Members:
        """Take the tracker's list, or its delta; return the event for the scheduler."""
        if message.full:
            self.members = {}
            self._to_dial = []
        self.members.update({member.node: member for member in message.joined})
        self._left.difference_update(self.members)
        for node in message.left:
            self.members.pop(node, None)
            if not self._net.forget_heard(self._digest, node):
                self._left.add(node)
        self._to_dial += [node for node in message.neighbours if node not in self._to_dial]
        return self.members_event()

    def dial_missing(self) -> None:
        """Dial every neighbour that we can't request from yet. To dial one twice is harmless."""
        for node in self._to_dial:
            if node not in self.joined:
                self.dial(node)

    def dial(self, node: NodeId) -> bool:
        """Dial one member; False: its address isn't known, or it is this node."""
        member = self.members.get(node)
        if member is None or node == self._node:
            return False
        self._net.dial(self._digest, node, member.address)
        return True

    def on_joined(self, node: NodeId) -> None:
        """We may request from a node."""
        self.joined.add(node)
        self._left.discard(node)

    def on_caller(self, node: NodeId, address: str) -> None:
        """A node has dialled us; `address`: where it listens, as it says itself."""
        self._left.discard(node)
        self.dialled = True
        if node in self.callers or len(self.callers) < MAX_CALLERS:
            self.callers[node] = address

    def runs_elsewhere(self) -> RunSet:
        """Runs that at least one other node is known to have."""
        runs: RunSet = 0
        for node, have in self._net.heard(self._digest).items():
            if node not in self._left:
                runs |= have
        return runs


def placed(node: NodeId, place: tuple[str, str], members: Mapping[NodeId, m.Member]) -> Members:
    """The members by rack and site.

    Args:
        node: our id.
        place: our site and rack; they win over those of the list.
        members: the tracker's list.
    """
    sites: dict[str, list[NodeId]] = {place[0]: []}
    racks: dict[tuple[str, str], list[NodeId]] = {place: []}
    for one in sorted({node, *members}):
        site, rack = place if one == node else (members[one].site, members[one].rack)
        sites.setdefault(site, []).append(one)
        racks.setdefault((site, rack), []).append(one)
    our_rack, our_site = tuple(racks.pop(place)), tuple(sites.pop(place[0]))
    others = tuple(tuple(rack) for (site, _), rack in racks.items() if site == place[0])
    ids = tuple(sorted(members))
    return Members(ids, our_rack, our_site, others, tuple(map(tuple, sites.values())))
