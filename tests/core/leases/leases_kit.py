"""A book of leases, for grants by hand."""

import dataclasses
from collections.abc import Iterable

from p2pcache.core.leases.lease_book import LeaseBook
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
