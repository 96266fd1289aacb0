"""Whether others get at what members have: one value for each member of a swarm, from two kinds of evidence.

*Dials*: the tracker tries whether a node can be dialled where it says, as AutoNAT of libp2p does. A node behind a
firewall, or with the address of another machine, pulls like the others, but no member gets what it has. A dial finds
that in a moment, before any member waits for it (docs/lab/0030). It holds over all swarms.

*Complaints*: a member was sent to a holder in vain, or a holder is connected and delivers nothing (a hung disk, every
answer BUSY, bytes that drip). Two are believed, or one if the dial failed, too, or if at most one waits who could
complain.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from p2pcache.core import backoff
from p2pcache.core.membership import settings
from p2pcache.core.membership.member_record import MemberRecord, Reach
from p2pcache.core.protocol import address as addresses
from p2pcache.core.protocol.messages import Member
from p2pcache.ids import NodeId

Bearer = Callable[[NodeId], NodeId]
"""Maps a node id to what it stands for as a witness: one bearer of a certificate may run many nodes."""


def by_id(node: NodeId) -> NodeId:
    """The bearer of a node id where members share one key: each node is its own witness."""
    return node


def are_all(heard: Collection[NodeId], nodes: Iterable[NodeId], bearer: Bearer) -> bool:
    """Whether these bearers are all that there are among some nodes, so that no other could be a witness."""
    return all(bearer(one) in heard for one in nodes)


class Dial(NamedTuple):
    """See whether a member can be dialled where it says; ends in `TrackerState.on_dial_ended`."""

    number: int
    member: Member


@dataclass(slots=True)
class _DialRecord:
    """What is known of one node, over all swarms. Times are the tracker's monotonic seconds."""

    member: Member
    reach: Reach = Reach.UNKNOWN  # as its dials ended, whether its site is believed or not
    dial: Dial | None = None  # under way
    next_at: float = inf  # the next one
    failures: int = 0  # dials that failed, in a row


class DialBacks:
    """Which nodes are dialled when, first come, first dialled, and what is believed of the answers.

    The tracker's own place may be what is wrong (a network policy, another site behind NAT). So failures count
    only among nodes of one site, and only while as many there were reached.

    Invariants: `_counts` has the nodes of each site that were tried, by reach; a node that is to be dialled has its
    time in `_due`; `_begun` has the dials of the last `AGAIN_S`, also of nodes that are gone.
    """

    def __init__(self) -> None:
        self.changed: set[NodeId] = set()  # perhaps another `reach`; its owner clears it
        self._nodes: dict[NodeId, _DialRecord] = {}
        self._counts: Counter[tuple[str, Reach]] = Counter()
        self._believed: set[str] = set()  # sites
        self._due: list[tuple[float, NodeId]] = []
        self._begun: dict[NodeId, float] = {}
        self._dials = 0  # dials begun; each has its number
        self._free_at = -inf  # when the next dial may begin

    def reach(self, node: NodeId) -> Reach:
        """What the dials say of a node, as far as they are believed."""
        known = self._nodes.get(node)
        if known is None:
            return Reach.UNKNOWN
        believed = known.reach is Reach.REACHABLE or known.member.site in self._believed
        return known.reach if believed else Reach.UNKNOWN

    def on_announced(self, member: Member, now: float) -> None:
        """A member connected. Older knowledge of it stays until there is a newer test, unless it has moved."""
        if not addresses.can_be_tried(member.address):
            self.forget(member.node)
            return
        known = self._nodes.setdefault(member.node, _DialRecord(member))
        if (known.member.address, known.member.site) != (member.address, member.site):
            self._know_nothing(known)
            known.member = member
        self._plan(known, max(now, self._begun.get(member.node, -inf) + settings.AGAIN_S))

    def forget(self, node: NodeId) -> None:
        """A node is gone."""
        if (known := self._nodes.pop(node, None)) is not None:
            self._know_nothing(known)

    def on_ended(self, dial: Dial, *, reached: bool, now: float) -> None:
        """A dial has ended."""
        known = self._nodes.get(dial.member.node)
        if known is None or known.dial != dial:
            return  # it left meanwhile, or has moved
        known.dial = None
        self._set_reach(known, Reach.REACHABLE if reached else Reach.UNREACHABLE)
        if not reached:
            pause_s = backoff.pause_s(settings.AGAIN_S, settings.VERDICT_S, known.failures)
            self._plan(known, min(known.next_at, now + pause_s))
        known.failures = 0 if reached else known.failures + 1

    def step(self, now: float) -> list[Dial]:
        """The nodes to dial now. A node that was never tried is silent until it answers: others get the leases."""
        while self._begun and next(iter(self._begun.values())) + settings.AGAIN_S <= now:
            del self._begun[next(iter(self._begun))]
        begun: list[Dial] = []
        while self._due and self._due[0][0] <= now:
            when, node = self._due[0]
            known = self._nodes.get(node)
            if known is not None and known.next_at == when:
                if now < self._free_at:
                    break
                begun.append(self._begin(known, now))
            heapq.heappop(self._due)
        return begun

    def next_wakeup(self) -> float:
        """When `step` has something to do."""
        return max(self._due[0][0], self._free_at) if self._due else inf

    def check(self) -> None:
        """Assert the invariants; O(nodes)."""
        nodes = self._nodes.values()
        tried = [known for known in nodes if known.reach is not Reach.UNKNOWN]
        assert self._counts == Counter((known.member.site, known.reach) for known in tried)
        due = set(self._due)
        for known in nodes:
            assert known.next_at == inf or (known.next_at, known.member.node) in due
            assert known.next_at < inf or known.dial or known.reach is Reach.REACHABLE

    # -- inside ------------------------------------------------------------------------------------

    def _plan(self, known: _DialRecord, when: float) -> None:
        if known.next_at != when:
            known.next_at = when
            heapq.heappush(self._due, (when, known.member.node))

    def _begin(self, known: _DialRecord, now: float) -> Dial:
        self._dials += 1
        self._free_at = max(self._free_at, now - settings.BURST_S) + 1 / settings.RATE
        known.dial, known.next_at = Dial(self._dials, known.member), inf
        self._begun[known.member.node] = now
        if known.reach is Reach.UNKNOWN:
            self._set_reach(known, Reach.SILENT)
        return known.dial

    def _know_nothing(self, known: _DialRecord) -> None:
        """A node isn't there any more; the end of its dial says nothing."""
        known.dial, known.failures = None, 0
        self._set_reach(known, Reach.UNKNOWN)

    def _set_reach(self, known: _DialRecord, reach: Reach) -> None:
        """This is known of a node from now on, and perhaps changes what is thought of its whole site."""
        counts, site = self._counts, known.member.site
        for one, more in ((known.reach, -1), (reach, 1)):
            if one is not Reach.UNKNOWN:
                counts[site, one] += more
                if not counts[site, one]:
                    del counts[site, one]
        known.reach = reach
        self.changed.add(known.member.node)
        believed = site in self._believed
        failed = counts[site, Reach.UNREACHABLE] * (settings.DISBELIEVED if believed else 1.0)
        if believed != (counts[site, Reach.REACHABLE] >= max(1.0, failed)):
            self._believed ^= {site}
            self.changed.update(n for n, one in self._nodes.items() if one.member.site == site)


class Reachability:
    """The reach of one swarm's members.

    A verdict by complaints ends after `VERDICT_S`, when the member connects anew, or when it delivers to one that had
    complained. That of a banned member has no end.

    Invariants: `lost` holds exactly the members whose runs others don't get; no verdict ends before `look_at`.
    """

    def __init__(
        self, members: Mapping[NodeId, MemberRecord], dials: DialBacks,
        on_changed: Callable[[MemberRecord, float], None], bearer: Bearer = by_id,
    ) -> None:  # fmt: skip
        """`on_changed` hears at once of a member that has another reach, or is void or isn't any more."""
        self.lost: set[NodeId] = set()
        self.look_at = inf  # when `end_verdicts` has something to do
        self._members, self._dials, self._bearer = members, dials, bearer
        self._on_changed = on_changed

    def review(self, record: MemberRecord, now: float, *, void_changed: bool = False) -> None:
        """A member came, was banned, or its dial says something else."""
        reach = Reach.UNREACHABLE if record.void else self._dials.reach(record.node)
        if record.reach is not reach or void_changed:
            record.reach = reach
            change = self.lost.discard if record.counts else self.lost.add
            change(record.node)
            self._on_changed(record, now)

    def witnesses(self, waiting: Iterable[NodeId]) -> set[NodeId]:
        """Bearers of these members, as many as `on_complaint` needs, of whichever member. O(waiting)."""
        found = set[NodeId]()
        for node in waiting:
            found.add(self._bearer(node))
            if len(found) > settings.WITNESSES:
                break
        return found

    def on_complaint(
        self, record: MemberRecord, node: NodeId, waiting: AbstractSet[NodeId], now: float
    ) -> bool:
        """A member waits in vain for what another one has; `waiting`: `witnesses` of all that could complain.

        Returns whether the other one is called unreachable for that from now on.
        """
        record.complained_by |= {node}
        if record.banned:
            return False
        bearers = {self._bearer(one) for one in record.complained_by if one in self._members}
        failed = self._dials.reach(record.node) is Reach.UNREACHABLE
        could_agree = len(waiting - {self._bearer(record.node)}) >= settings.WITNESSES
        if len(bearers) + failed < settings.WITNESSES and could_agree:
            return False
        fresh = not record.void
        record.verdict_until = now + settings.VERDICT_S
        self.look_at = min(self.look_at, record.verdict_until)
        self.review(record, now, void_changed=True)
        return fresh

    def acquit(self, record: MemberRecord, now: float) -> None:
        """A member delivers, or has connected anew: complaints of it are void."""
        record.complained_by = frozenset()
        if record.void and not record.banned:
            record.verdict_until = 0.0
            self.review(record, now, void_changed=True)

    def end_verdicts(self, now: float) -> None:
        """Members are tried again when their verdict is over. O(members), but seldom."""
        judged = [one for one in self._members.values() if one.void]
        for record in judged:
            if record.verdict_until <= now:
                self.acquit(record, now)
        self.look_at = min((one.verdict_until for one in judged if one.void), default=inf)

    def check(self) -> None:
        """Assert the invariants."""
        members = self._members.values()
        assert self.lost == {one.node for one in members if not one.counts}
        assert all(not one.void or one.verdict_until >= self.look_at for one in members)
        settled = [one for one in members if not one.void and one.node not in self._dials.changed]
        assert all(one.reach is self._dials.reach(one.node) for one in settled)
