"""Which nodes of a cluster fetch a model before anybody asks for it, so that its copies lie far apart."""

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from p2pcache.core.membership.member_record import Place
from p2pcache.core.membership.registry import Node
from p2pcache.core.membership.roster import Roster
from p2pcache.ids import NodeId


class ReplicaPlacement(NamedTuple):
    """Where a model is, and which nodes could be told to fetch it."""

    complete: frozenset[NodeId]  # have all of it
    holders: dict[NodeId, Node]  # these, and nodes that fetch all of it
    others: dict[NodeId, Node]  # connected, and understand `Warm`
    older: int  # connected, of a release that doesn't

    @classmethod
    def among(cls, roster: Roster | None, nodes: Mapping[NodeId, Node]) -> "ReplicaPlacement":
        """The situation, of the model's members (None: there are none) and the cluster's."""
        complete = frozenset(roster.complete if roster is not None else ())
        pulling = roster.pulling if roster is not None else set()
        holders = {n: nodes[n] for n in sorted(complete | pulling)}
        rest = {n: r for n, r in sorted(nodes.items()) if r.connected and n not in holders}
        others = {n: r for n, r in rest.items() if r.said.warms}
        return cls(complete, holders, others, len(rest) - len(others))


def choose(
    candidates: Mapping[NodeId, Node],
    holders: Iterable[Node],
    count: int,
    size_bytes: int,
    rng: random.Random,
) -> list[NodeId]:
    """Up to `count` nodes that are to get a model of this size beside its holders, so that its copies lie far apart.

    Each copy goes to the site, and there to the rack, with the fewest copies; of the nodes there to the one with the
    most free disk; dice decide among equals. A node whose disk is too small comes last: it would refuse, but its answer
    tells an operator more than silence.
    """
    sites: Counter[str] = Counter()
    copies: Counter[Place] = Counter()
    racks: dict[Place, list[tuple[bool, int, float, int]]] = {}  # the best node last

    def add_copy(place: Place) -> None:
        sites[place[0]] += 1
        copies[place] += 1

    def rank(place: Place) -> tuple[bool, int, int, float, Place]:
        """Of a rack in its site; another rack's copies don't change it."""
        small, used, dice, _ = racks[place][-1]
        return small, copies[place], used, dice, place

    for holder in holders:
        add_copy(_place(holder))
    for node, record in sorted(candidates.items()):
        free = record.beat.free_bytes
        racks.setdefault(_place(record), []).append((free < size_bytes, -free, rng.random(), node))
    for nodes in racks.values():
        nodes.sort(reverse=True)
    heaps: dict[str, list[tuple[bool, int, int, float, Place]]] = {}  # racks of each site
    for place in racks:
        heaps.setdefault(place[0], []).append(rank(place))
    for heap in heaps.values():
        heapq.heapify(heap)
    best = [(heap[0][0], sites[site], heap[0], site) for site, heap in heaps.items()]
    heapq.heapify(best)
    chosen: list[NodeId] = []
    while best and len(chosen) < count:
        site = heapq.heappop(best)[-1]
        heap = heaps[site]
        place = heapq.heappop(heap)[-1]
        chosen.append(racks[place].pop()[-1])
        add_copy(place)
        if racks[place]:
            heapq.heappush(heap, rank(place))
        if heap:
            heapq.heappush(best, (heap[0][0], sites[site], heap[0], site))
    return chosen


def _place(record: Node) -> Place:
    return record.member.site, record.member.rack
