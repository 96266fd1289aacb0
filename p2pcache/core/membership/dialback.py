"""Which nodes can be dialled where they say: the tracker tries it.

A node behind a firewall, or one that advertises an address of another machine, pulls like the others, but no member
gets what it has. A dial back finds that in a moment, before any member waits for it (docs/lab/0030). The idea is
AutoNAT's, of libp2p.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from p2pcache.core import backoff
from p2pcache.core.membership.member_record import Reach
from p2pcache.core.membership.settings import (
    AGAIN_AT_ONCE,
    AGAIN_RATE,
    AGAIN_S,
    AT_ONCE,
    BURST,
    DISBELIEVED,
    DOUBT_AFTER_S,
    LAST_AGAIN_S,
    LEAST_PAUSE_S,
    RATE,
)
from p2pcache.core.protocol import address as addresses
from p2pcache.core.protocol.messages import Member
from p2pcache.ids import NodeId


class Dial(NamedTuple):
    """One attempt."""

    number: int
    member: Member
    again: bool  # the last one failed


@dataclass(slots=True)
class _DialRecord:
    """What is known of one node, over all swarms. Times are the tracker's monotonic seconds."""

    member: Member
    here: bool = True  # no: it left, or can't be dialled there; it is kept for `LEAST_PAUSE_S`
    reach: Reach = Reach.UNKNOWN
    wanted: bool = False  # it has announced itself since its last dial began
    dial: int = 0  # the number of the dial under way; 0: there is none
    begun: float = -inf  # the last dial
    again_at: float = inf  # it has failed, and is tried again then
    failures: int = 0  # dials that failed, in a row
    told: bool = False  # people were, since it was reached last
    deadline: float = inf  # the soonest of its times in `_due`; the others don't count


@dataclass(slots=True)
class _Site:
    """The nodes of one site by reach; `believed`: the tracker is where it can tell."""

    nodes: dict[Reach, set[NodeId]] = field(
        default_factory=lambda: {reach: set() for reach in Reach}
    )
    believed: bool = False

    def judge(self) -> None:
        reached, failed = len(self.nodes[Reach.REACHED]), len(self.nodes[Reach.UNREACHED])
        enough = max(1.0, failed * (DISBELIEVED if self.believed else 1.0))
        self.believed = reached >= enough

    def doubts(self, node: NodeId) -> bool:
        return self.believed and (
            node in self.nodes[Reach.SILENT] or node in self.nodes[Reach.UNREACHED]
        )


class _Line:
    """Nodes that wait to be dialled, with a limit of dials a second and at once."""

    def __init__(self, rate: float, burst: int, at_once: int) -> None:
        self._rate = rate
        self._burst_s = (burst - 1) / rate
        self._at_once = at_once
        self._paid_until = -inf
        self.nodes: OrderedDict[NodeId, None] = (
            OrderedDict()
        )  # a node that leaves the cluster leaves the line
        self.open = 0  # dials that haven't ended, also of nodes that have left

    @property
    def free_at(self) -> float:
        """When the next dial may begin; inf: no node waits, or all places are taken."""
        if not self.nodes or self.open >= self._at_once:
            return inf
        return self._paid_until - self._burst_s

    def on_begun(self, now: float) -> None:
        """A dial has begun."""
        self.open += 1
        self._paid_until = max(self._paid_until, now) + 1 / self._rate


class DialBacks:
    """Which nodes are dialled when, and which are believed to be out of the others' reach.

    The tracker's own place may be what is wrong (a network policy, another site behind NAT). So failures count
    only among nodes of one site, and only while as many there were reached.

    Invariants (`check`): `unreached` <= `doubted`; `doubted` are exactly the silent and failed nodes of sites that
    are believed; `reached` are those whose last dial was answered; each dial under way has a place of its line; a node
    that is to be dialled or has failed, and isn't being dialled, is in a line or has a deadline.
    """

    def __init__(self) -> None:
        """No node is known."""
        self.doubted: set[NodeId] = set()  # others get leases before these
        self.unreached: set[NodeId] = set()  # doubted nodes whose dial has failed
        self.reached: set[NodeId] = set()  # whatever is thought of the others
        self._nodes: dict[NodeId, _DialRecord] = {}
        self._new = _Line(RATE, BURST, AT_ONCE)
        self._again = _Line(AGAIN_RATE, 1, AGAIN_AT_ONCE)
        self._dials = 0  # dials begun; each has its number
        self._due: list[tuple[float, NodeId]] = []  # when to look at a node again
        self._sites: dict[str, _Site] = {}
        self._changed: set[NodeId] = set()  # see `changes`
        self._failed: set[NodeId] = (
            set()
        )  # if it was away when it failed before, people weren't told

    def on_announced(self, member: Member) -> None:
        """A member connected. What is known of it stays until it is known better, unless it has moved."""
        node = member.node
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _DialRecord(member)
        elif (known.member.address, known.member.site) != (member.address, member.site):
            self._know_nothing(node, known)
            known.member, known.told = member, False
        known.here = addresses.can_be_tried(member.address)
        if not known.here:
            self.forget(node)
            return
        known.wanted = True
        self._again.nodes.pop(node, None)
        if not known.dial:
            self._new.nodes[node] = None

    def forget(self, node: NodeId) -> None:
        """A node is gone."""
        known = self._nodes.get(node)
        if known is not None:
            known.here = False
            self._know_nothing(node, known)
            if known.begun == -inf:
                del self._nodes[node]
            else:
                self._schedule(node, known)

    def on_ended(self, dial: Dial, *, reached: bool, now: float) -> None:
        """A dial has ended; each dial of `step` ends once."""
        (self._again if dial.again else self._new).open -= 1
        node = dial.member.node
        known = self._nodes.get(node)
        if known is None or known.dial != dial.number:
            return  # it left meanwhile, or has moved
        known.dial = 0
        self._set_reach(node, known, Reach.REACHED if reached else Reach.UNREACHED)
        if reached:
            known.failures, known.again_at, known.told = 0, inf, False
        else:
            known.again_at = now + backoff.pause_s(AGAIN_S, LAST_AGAIN_S, known.failures)
            known.failures += 1
            self._failed.add(node)
        self._schedule(node, known)

    def doubt_late(self, now: float) -> None:
        """Doubt nodes that haven't answered. Take in the answers that came first: a busy tracker is late itself."""
        while self._due and self._due[0][0] <= now:
            when, node = heapq.heappop(self._due)
            known = self._nodes.get(node)
            if known is None or known.deadline != when:
                continue  # it had a sooner deadline, which has passed
            known.deadline = inf
            if self._deadline_of(node, known) > now:
                pass  # something has happened since
            elif known.dial:
                self._set_reach(node, known, Reach.SILENT)
            elif not known.here:
                del self._nodes[node]
                continue
            else:
                (self._new if known.wanted else self._again).nodes[node] = None
            self._schedule(node, known)

    def step(self, now: float) -> list[Dial]:
        """The nodes to dial now."""
        begun: list[Dial] = []
        for line in (self._new, self._again):
            while line.free_at <= now:
                node, _ = line.nodes.popitem(last=False)
                known = self._nodes[node]
                if known.begun + LEAST_PAUSE_S > now:
                    self._schedule(node, known)
                    continue
                self._dials += 1
                known.dial, known.begun, known.wanted = self._dials, now, False
                line.on_begun(now)
                self._schedule(node, known)
                begun.append(Dial(self._dials, known.member, line is self._again))
        return begun

    def changes(self) -> tuple[list[NodeId], list[NodeId]]:
        """Since the last call: nodes of which something else is thought, and unreached ones that failed (again)."""
        changed, failed = self._changed, self._failed
        self._changed, self._failed = set(), set()
        return sorted(changed), sorted((changed | failed) & self.unreached)

    def should_tell(self, node: NodeId) -> bool:
        """Whether people should hear that a node isn't reached; once, until it is."""
        fresh = node in self.unreached and not self._nodes[node].told
        if fresh:
            self._nodes[node].told = True
        return fresh

    def on_untold(self, node: NodeId) -> None:
        """People didn't hear it, as there was too much to hear: tell them when it has failed again."""
        if node in self._nodes:
            self._nodes[node].told = False

    def next_wakeup(self) -> float | None:
        """When `doubt_late` and `step` have something to do."""
        due = self._due[0][0] if self._due else inf
        wakeup = min(due, self._new.free_at, self._again.free_at)
        return None if wakeup == inf else wakeup

    def check(self) -> None:
        """Assert the invariants; O(nodes)."""
        assert self.unreached <= self.doubted <= self._nodes.keys()
        assert sum(known.dial > 0 for known in self._nodes.values()) <= (
            self._new.open + self._again.open
        )
        assert all(any(site.nodes.values()) for site in self._sites.values())
        assert self._new.nodes.keys() | self._again.nodes.keys() <= self._nodes.keys()
        due = set(self._due)
        for node, known in self._nodes.items():
            site = self._sites.get(known.member.site, _Site())
            said = [reach for reach, nodes in site.nodes.items() if node in nodes]
            assert said == [known.reach] * (known.reach is not Reach.UNKNOWN)
            assert (node in self.doubted) == site.doubts(node)
            assert (node in self.reached) == (known.reach is Reach.REACHED)
            lines = (node in self._new.nodes) + (node in self._again.nodes)
            assert lines <= (known.here and not known.dial)
            assert known.deadline <= self._deadline_of(node, known)
            assert known.deadline == inf or (known.deadline, node) in due

    # -- inside ------------------------------------------------------------------------------------

    def _schedule(self, node: NodeId, known: _DialRecord) -> None:
        """See to it that `doubt_late` looks at a node when there is something to do."""
        when = self._deadline_of(node, known)
        if when < known.deadline:
            known.deadline = when
            heapq.heappush(self._due, (when, node))

    def _deadline_of(self, node: NodeId, known: _DialRecord) -> float:
        if known.dial:
            return known.begun + DOUBT_AFTER_S if known.reach is Reach.UNKNOWN else inf
        if not known.here or known.wanted:
            return inf if node in self._new.nodes else known.begun + LEAST_PAUSE_S
        return inf if node in self._again.nodes else known.again_at

    def _know_nothing(self, node: NodeId, known: _DialRecord) -> None:
        """A node isn't there any more; the end of its dial says nothing."""
        self._new.nodes.pop(node, None)
        self._again.nodes.pop(node, None)
        known.wanted, known.dial, known.failures, known.again_at = False, 0, 0, inf
        self._set_reach(node, known, Reach.UNKNOWN)

    def _set_reach(self, node: NodeId, known: _DialRecord, reach: Reach) -> None:
        """This is known of a node from now on, and perhaps changes what is thought of its whole site."""
        site = self._sites.setdefault(known.member.site, _Site())
        nodes, before = site.nodes, site.believed
        nodes[known.reach].discard(node)
        known.reach = reach
        if reach is not Reach.UNKNOWN:
            nodes[reach].add(node)
        site.judge()
        (self.reached.add if reach is Reach.REACHED else self.reached.discard)(node)
        touched = {node}
        if site.believed != before:
            touched |= nodes[Reach.SILENT] | nodes[Reach.UNREACHED]
        for node in touched:
            doubted = site.doubts(node)
            failed = doubted and node in nodes[Reach.UNREACHED]
            for kept, belongs in ((self.doubted, doubted), (self.unreached, failed)):
                if belongs != (node in kept):
                    self._changed.add(node)
                    (kept.add if belongs else kept.discard)(node)
        if not any(nodes.values()):
            del self._sites[known.member.site]
