"""Which nodes of a cluster fetch a model before anybody asks for it, so that its copies lie far apart."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.roster import Roster
from p2pcache.ids import NodeId


class ReplicaPlacement(NamedTuple):
    """Where a model is, and which nodes could be told to fetch it."""

    complete: frozenset[NodeId]  # have all of it
    holders: dict[NodeId, Node]  # these, and nodes that fetch all of it
    others: dict[NodeId, Node]  # connected, and understand the question "warm"
    older: int  # connected, of a release that doesn't

    @classmethod
    def among(cls, roster: Roster | None, nodes: Mapping[NodeId, Node]) -> "ReplicaPlacement":
        """The situation, of the model's members (None: there are none) and the cluster's."""
        complete = frozenset(roster.complete if roster else ())
        holders = {n: nodes[n] for n in sorted(complete | (roster.pulling if roster else set()))}
        rest = {n: r for n, r in sorted(nodes.items()) if r.connected and n not in holders}
        others = {n: r for n, r in rest.items() if r.said.warms}
        return cls(complete, holders, others, len(rest) - len(others))


def choose(
    candidates: Mapping[NodeId, Node],
    holders: Collection[Node],
    count: int,
    size_bytes: int,
    rng: random.Random,
) -> list[NodeId]:
    """Up to `count` nodes that are to get a model of this size beside its holders, so that its copies lie far apart.

    Each copy goes to the site, and there to the rack, with the fewest copies; of the nodes there to the one with the
    most free disk; dice decide among equals. A node whose disk is too small comes last: it would refuse, but its answer
    tells an operator more than silence.
    """
    free = {node: record.beat.free_bytes for node, record in sorted(candidates.items())}
    dice = {node: rng.random() for node in free}
    chosen = sorted(free, key=lambda n: (free[n] < size_bytes, -free[n], dice[n]))
    for parts in (2, 1):  # nodes of a rack take turns, then those of a site
        copies = Counter(_place(holder)[:parts] for holder in holders)
        turns: dict[NodeId, tuple[bool, int]] = {}
        for node in chosen:
            place = _place(candidates[node])[:parts]
            turns[node] = free[node] < size_bytes, copies[place]
            copies[place] += 1
        chosen.sort(key=turns.__getitem__)
    return chosen[: max(0, count)]


def _place(record: Node) -> tuple[str, ...]:
    return record.member.site, record.member.rack
