"""The swarm's member list as each simulated node knows it: equal lists are one object.

Each agent holds the whole list. In one process with 10,000 nodes these would be 10,000 times 10,000 entries.
"""

from dataclasses import dataclass

from p2pcache.core.protocol import messages as m
from p2pcache.ids import NodeId


@dataclass(frozen=True, slots=True)
class MemberList:
    """The ids of a swarm's members."""

    ids: frozenset[NodeId]
    listed: tuple[NodeId, ...]  # the same, ascending
    racks: dict[str, tuple[NodeId, ...]]  # the same, by rack


NOBODY = MemberList(frozenset(), (), {})


class MemberLists:
    """All lists that some node knows, each once."""

    def __init__(self) -> None:
        self._lists: dict[frozenset[NodeId], MemberList] = {}
        self.rack_of: dict[NodeId, str] = {}  # of every node that ever started

    def after(self, known: MemberList, message: m.Swarm, node: NodeId) -> MemberList:
        """The list after a message of the tracker.

        Args:
            known: the list before.
            message: the whole list, or a delta.
            node: that receives it.
        """
        joined = {member.node for member in message.joined}
        if not message.full and not message.left and joined <= known.ids:
            return known
        before: frozenset[NodeId] = frozenset() if message.full and joined else known.ids
        ids = (before | joined).difference(message.left) | {node}
        found = self._lists.get(ids)
        if found is None:
            found = self._lists[ids] = self._list(ids)
        return found

    def _list(self, ids: frozenset[NodeId]) -> MemberList:
        racks: dict[str, list[NodeId]] = {}
        for node in (listed := sorted(ids)):
            racks.setdefault(self.rack_of[node], []).append(node)
        return MemberList(ids, tuple(listed), {name: tuple(rack) for name, rack in racks.items()})
