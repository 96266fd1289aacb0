"""A book of leases, for grants by hand."""

import dataclasses
from collections.abc import Iterable

from p2pcache.core.leases.lease_book import LeaseBook
from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.roster import Roster
from p2pcache.core.protocol.messages import Member
from p2pcache.core.settings import LeaseSettings
from p2pcache.ids import NodeId, RunIndex, RunSet

A, B, C, D = 1, 2, 3, 4
SETTINGS = LeaseSettings()
NODES = range(1, 65)  # members that have nothing yet


class Have:
    """What the members of a roster have, to set by hand."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster

    def __getitem__(self, node: NodeId) -> RunSet:
        return self.roster.members[node].have

    def __setitem__(self, node: NodeId, runs: RunSet) -> None:
        self.roster.set_have(self.roster.members[node], runs)


def make(
    runs: int = 64,
    nodes: Iterable[NodeId] = NODES,
    **knobs: float,
) -> tuple[LeaseBook, Have]:
    roster = Roster("ab" * 32, runs, 7)
    for node in nodes:
        roster.enter(Member(node, "h:1"))
    knobs = {"in_flight": 16, **knobs}
    settings = dataclasses.replace(SETTINGS, **knobs)  # type: ignore[arg-type]
    return LeaseBook(roster, settings, 7), Have(roster)


def finish(
    book: LeaseBook, have: Have, node: NodeId, run: RunIndex, now: float, flow_s: float = 0.0
) -> None:
    have[node] |= 1 << run
    book.on_have(node, 1 << run, now, flow_s)
    book.check()


def taken(book: LeaseBook, have: Have, node: int, since: float, now: float) -> None:
    """A lease that the node has had since then is taken from it."""
    book.readers.on_lease_taken(have.roster.members[node], now - since, now)


def run_swarm(book: LeaseBook, have: Have, pace: dict[int, float], until: float) -> dict[int, int]:
    """Nodes with fixed seconds per lease; how many each read."""
    ends: list[tuple[float, int, int]] = []
    count = dict.fromkeys(pace, 0)
    for node in pace:
        book.set_credit(node, 1)
    now = 0.0
    while now < until:
        for node, runs in book.grant(now).items():
            ends += [(now + pace[node], node, run) for run in runs]
        if not ends:
            break
        ends.sort()
        now, node, run = ends.pop(0)
        count[node] += 1
        finish(book, have, node, run, now)
    return count


def hurry(book: LeaseBook, run: int, now: float) -> int | None:
    """The node from which a lease is taken for a member that wants nothing else."""
    return book.take_over(run, MemberRecord(Member(99, "h:1"), have=(1 << 64) - 1), now)
