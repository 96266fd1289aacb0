"""Members of one swarm as this node knows them: their addresses, their run sets, the neighbours to dial."""

from collections.abc import Mapping

from p2pcache.agent.context import AgentContext
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm.events import Members
from p2pcache.ids import NodeId, RunSet

MAX_HEARD = 2048  # nodes whose run sets are kept, far more than a node has neighbours
MAX_CALLERS = 256  # whose addresses are kept until they are written down


class Neighbours:
    """The tracker's member list of one swarm, and the run set of each member as far as it is known."""

    def __init__(self, context: AgentContext, digest: str) -> None:
        self.members: dict[NodeId, m.Member] = {}
        self.joined: dict[NodeId, RunSet] = {}  # what the neighbours that we may request from have
        self.callers: dict[NodeId, str] = {}  # addresses of nodes that have dialled us
        self._node = context.node
        self._place = context.settings.site, context.settings.rack
        self._digest = digest
        self._net = context.net
        self._to_dial: list[NodeId] = []  # neighbours that the tracker chose, best first
        self._have: dict[NodeId, RunSet] = {}  # of every node that we heard of, joined or not

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
        for node in message.left:
            self.members.pop(node, None)
            self._have.pop(node, None)
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

    def on_has(self, node: NodeId, runs: RunSet) -> None:
        """A node has these runs, too."""
        if node in self._have or len(self._have) < MAX_HEARD:
            self._have[node] = self._have.get(node, 0) | runs
        if node in self.joined:
            self.joined[node] |= runs

    def on_caller(self, node: NodeId, address: str, runs: RunSet) -> None:
        """A node has dialled us; `address`: where it listens, as it says itself."""
        if node in self.callers or len(self.callers) < MAX_CALLERS:
            self.callers[node] = address
        self.on_has(node, runs)

    def runs_elsewhere(self) -> RunSet:
        """Runs that at least one other node is known to have."""
        runs: RunSet = 0
        for have in self._have.values():
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
