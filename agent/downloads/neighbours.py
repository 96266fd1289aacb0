"""Whom a swarm knows on this node: members, the neighbours to dial, and what others have."""

from collections.abc import Mapping

from p2pcache.agent.context import Parts
from p2pcache.core.protocol import messages as m
from p2pcache.core.swarm.events import Members


class Neighbours:
    """The tracker's member list of one swarm, and what we heard of each member's have-set."""

    def __init__(self, parts: Parts, digest: str) -> None:
        self.members: dict[int, m.Member] = {}
        self.joined: dict[int, int] = {}  # those that we may request from -> what they have
        self.callers: dict[int, str] = {}  # who came to us, and where it can be dialled
        self._node = parts.node
        self._place = parts.settings.site, parts.settings.rack
        self._digest = digest
        self._net = parts.net
        self._wanted: list[int] = []  # whom the tracker told us to dial, best first
        self._others: dict[int, int] = {}  # everybody's have-set, joined or not

    @property
    def ids(self) -> tuple[int, ...]:
        """Node ids of all members, ourselves included, ascending."""
        return tuple(sorted(self.members))

    def members_event(self) -> Members:
        """All members by rack and site, for the scheduler."""
        return placed(self._node, self._place, self.members)

    def on_members(self, message: m.Swarm) -> Members:
        """Take the tracker's list, or its delta; returns what the scheduler should know of it."""
        if message.full:
            self.members = {}
            self._wanted = []
        self.members.update({member.node: member for member in message.joined})
        for node in message.left:
            self.members.pop(node, None)
            self._others.pop(node, None)
        self._wanted += [node for node in message.neighbours if node not in self._wanted]
        return self.members_event()

    def dial_missing(self) -> None:
        """Dial every neighbour that we can't request from (dialling twice is harmless)."""
        for node in self._wanted:
            if node not in self.joined:
                self.dial(node)

    def dial(self, node: int) -> bool:
        """Dial one member; False if nobody told us its address."""
        member = self.members.get(node)
        if member is None or node == self._node:
            return False
        self._net.dial(self._digest, node, member.address)
        return True

    def on_has(self, node: int, runs: int) -> None:
        """We heard that a node has more."""
        self._others[node] = self._others.get(node, 0) | runs
        if node in self.joined:
            self.joined[node] |= runs

    def on_caller(self, node: int, address: str, runs: int) -> None:
        """A node came to us; where it listens is what it says."""
        self.callers[node] = address
        self.on_has(node, runs)

    def runs_elsewhere(self) -> int:
        """Runs known to lie on any other node (bits)."""
        bits = 0
        for have in self._others.values():
            bits |= have
        return bits


def placed(node: int, place: tuple[str, str], members: Mapping[int, m.Member]) -> Members:
    """The members by rack and site.

    Args:
        node: we.
        place: our site and rack, whatever the list says of us.
        members: the list.
    """
    sites: dict[str, list[int]] = {place[0]: []}
    racks: dict[tuple[str, str], list[int]] = {place: []}
    for one in sorted({node, *members}):
        site, rack = place if one == node else (members[one].site, members[one].rack)
        sites.setdefault(site, []).append(one)
        racks.setdefault((site, rack), []).append(one)
    our_rack, our_site = tuple(racks.pop(place)), tuple(sites.pop(place[0]))
    others = tuple(tuple(rack) for (site, _), rack in racks.items() if site == place[0])
    ids = tuple(sorted(members))
    return Members(ids, our_rack, our_site, others, tuple(map(tuple, sites.values())))
