"""The swarm's member list as each simulated node knows it: equal lists are one object.

Every agent holds the whole list. On 10,000 machines that is 400 kB each; in one process it would be
10,000 times 10,000 entries.
"""

from dataclasses import dataclass

from p2pcache.core import messages as m


@dataclass(frozen=True, slots=True)
class MemberList:
    """Node ids."""

    ids: frozenset[int]
    listed: tuple[int, ...]  # the same, ascending


NOBODY = MemberList(frozenset(), ())


class MemberLists:
    """All lists that are known to anybody, each once."""

    def __init__(self) -> None:
        self._lists: dict[frozenset[int], MemberList] = {}

    def after(self, known: MemberList, message: m.Swarm, node: int) -> MemberList:
        """What `node` knows when this message has come: the tracker's list, or its delta."""
        joined = {member.node for member in message.joined}
        if not message.full and not message.left and joined <= known.ids:
            return known
        before: frozenset[int] = frozenset() if message.full and joined else known.ids
        ids = (before | joined).difference(message.left) | {node}
        found = self._lists.get(ids)
        if found is None:
            found = self._lists[ids] = MemberList(ids, tuple(sorted(ids)))
        return found
