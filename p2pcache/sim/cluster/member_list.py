"""The swarm's member list as each simulated node knows it: equal lists are one object.

Every agent holds the whole list. On 10,000 machines that is 400 kB each; in one process it would be
10,000 times 10,000 entries.
"""

from dataclasses import dataclass

from p2pcache.core.protocol import messages as m


@dataclass(frozen=True, slots=True)
class MemberList:
    """Node ids."""

    ids: frozenset[int]
    listed: tuple[int, ...]  # the same, ascending
    racks: dict[str, tuple[int, ...]]  # the same, by rack


NOBODY = MemberList(frozenset(), (), {})


class MemberLists:
    """All lists that are known to anybody, each once."""

    def __init__(self) -> None:
        self._lists: dict[frozenset[int], MemberList] = {}
        self.rack_of: dict[int, str] = {}  # every node that ever was, as it tells the tracker

    def after(self, known: MemberList, message: m.Swarm, node: int) -> MemberList:
        """What `node` knows when this message has come: the tracker's list, or its delta."""
        joined = {member.node for member in message.joined}
        if not message.full and not message.left and joined <= known.ids:
            return known
        before: frozenset[int] = frozenset() if message.full and joined else known.ids
        ids = (before | joined).difference(message.left) | {node}
        found = self._lists.get(ids)
        if found is None:
            found = self._lists[ids] = self._list(ids)
        return found

    def _list(self, ids: frozenset[int]) -> MemberList:
        racks: dict[str, list[int]] = {}
        for node in (listed := sorted(ids)):
            racks.setdefault(self.rack_of[node], []).append(node)
        return MemberList(ids, tuple(listed), {name: tuple(rack) for name, rack in racks.items()})
