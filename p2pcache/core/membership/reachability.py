"""Whether others get at what the members of a swarm have: one value for each member, from two kinds of evidence.

The tracker's own dial is one (`dialback`). The other are complaints: a member was sent to a holder in vain, or a
holder is connected and delivers nothing (a hung disk, every answer BUSY, bytes that drip). Members may complain of what
a dial can't see. Two are believed, or one if the dial failed, too, or if at most one waits who could complain.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf

from p2pcache.core.membership.dialback import DialBacks
from p2pcache.core.membership.member_record import MemberRecord, Reach
from p2pcache.core.membership.settings import VERDICT_S, WITNESSES
from p2pcache.ids import NodeId

Bearer = Callable[[NodeId], NodeId]
"""Maps a node id to what it stands for as a witness: one bearer of a certificate may run many nodes."""


def by_id(node: NodeId) -> NodeId:
    """The bearer of a node id where members share one key: each node is its own witness."""
    return node


def are_all(heard: Collection[NodeId], nodes: Iterable[NodeId], bearer: Bearer) -> bool:
    """Whether these bearers are all that there are among some nodes, so that no other could be a witness."""
    return all(bearer(one) in heard for one in nodes)


class Reachability:
    """The reach of one swarm's members.

    A verdict by complaints ends after `VERDICT_S`, when the member connects anew, or when it delivers to one that had
    complained. That of a banned member has no end.

    Invariants: `lost` holds exactly the members whose runs others don't get; no verdict ends before `look_at`.
    """

    def __init__(
        self, members: Mapping[NodeId, MemberRecord], dials: DialBacks, bearer: Bearer = by_id
    ) -> None:
        self.lost: set[NodeId] = set()
        self.changed: dict[NodeId, MemberRecord] = {}  # another reach or void; its owner clears it
        self.look_at = inf  # when `end_verdicts` has something to do
        self._members = members
        self._dials = dials
        self._bearer = bearer

    def review(self, record: MemberRecord) -> None:
        """A member came, was banned, or its dial says something else."""
        if record.banned:
            self._set(record, Reach.UNREACHABLE)
        elif not record.void:
            self._set(record, self._dials.reach(record.node))

    def on_complaint(
        self, record: MemberRecord, node: NodeId, waiting: Iterable[NodeId], now: float
    ) -> bool:
        """A member waits in vain for what another one has; `waiting`: all that could complain.

        Returns whether the other one is called unreachable for that from now on.
        """
        record.complained_by |= {node}
        if record.banned:
            return False
        bearers = {self._bearer(one) for one in record.complained_by if one in self._members}
        failed = self._dials.reach(record.node) is Reach.UNREACHABLE
        if len(bearers) + failed < WITNESSES and self._could_agree(record.node, waiting):
            return False
        fresh = not record.void
        record.verdict_until = now + VERDICT_S
        self.look_at = min(self.look_at, record.verdict_until)
        self.changed[record.node] = record  # also from unreachable to unreachable: it is void now
        self._set(record, Reach.UNREACHABLE)
        return fresh

    def acquit(self, record: MemberRecord) -> None:
        """A member delivers, or has connected anew: complaints of it are void."""
        record.complained_by = frozenset()
        if record.void and not record.banned:
            record.verdict_until = 0.0
            self.changed[record.node] = record
            self.review(record)

    def drop(self, record: MemberRecord) -> None:
        """A member is gone."""
        self.changed.pop(record.node, None)
        self.lost.discard(record.node)

    def end_verdicts(self, now: float) -> None:
        """Members are tried again when their verdict is over. O(members), but seldom."""
        judged = [one for one in self._members.values() if one.void]
        for record in judged:
            if record.verdict_until <= now:
                self.acquit(record)
        self.look_at = min((one.verdict_until for one in judged if one.void), default=inf)

    def check(self) -> None:
        """Assert the invariants."""
        members = self._members.values()
        assert self.lost == {one.node for one in members if not one.counts}
        for one in members:
            assert not one.void or one.verdict_until >= self.look_at
            if not one.void and one.node not in self._dials.changed:
                assert one.reach is self._dials.reach(one.node)

    def _could_agree(self, node: NodeId, waiting: Iterable[NodeId]) -> bool:
        """Whether two bearers wait who could complain of a node."""
        bearers = (one for one in map(self._bearer, waiting) if one != self._bearer(node))
        first = next(bearers, None)
        return any(one != first for one in bearers)

    def _set(self, record: MemberRecord, reach: Reach) -> None:
        if record.reach is not reach:
            record.reach = reach
            self.changed[record.node] = record
            change = self.lost.discard if record.counts else self.lost.add
            change(record.node)
