"""Which members a node that enters a swarm is told to dial.

Of two members that are drawn at random the one with fewer neighbours is taken (the power of two choices, Mitzenmacher
1996), or the first to enter would be everybody's neighbours.
"""

import random
from collections.abc import Iterable, Mapping

from p2pcache.core.membership.member_record import MemberRecord
from p2pcache.core.membership.sampled_set import SampledSet
from p2pcache.core.membership.settings import COMPLETE_SHARE, MOST_HOLDERS, RACK_SHARE
from p2pcache.ids import NodeId, RunSet


def neighbours(
    node: NodeId,
    *,
    everyone: SampledSet,
    rack: SampledSet,
    complete: SampledSet,
    members: Mapping[NodeId, MemberRecord],
    count: int,
    rng: random.Random,
) -> tuple[NodeId, ...]:
    """Neighbours in order of preference: same rack, complete ones, far ones.

    Each node that enters gets at least one member that was there before it, so the graph of all nodes that ever
    entered is connected.

    Args:
        node: the one that enters; it isn't among the answer.
        everyone: the swarm's members that aren't banned.
        rack: those of them in the node's rack.
        complete: those of them that have every run.
        members: their records, which say how many neighbours each has.
        count: how many are wanted.
        rng: seeded dice.
    """
    if len(everyone) <= count + 1:
        near = [n for n in rack.draw(rng, len(rack)) if n != node]
        seen = {node, *near}
        return (*near, *(n for n in everyone.draw(rng, len(everyone)) if n not in seen))
    chosen = dict.fromkeys(_draw(rack, count // RACK_SHARE, {node}, members, rng))
    chosen |= dict.fromkeys(_draw(complete, count // COMPLETE_SHARE, {node, *chosen}, members, rng))
    rest = count - len(chosen)
    chosen |= dict.fromkeys(_draw(everyone, rest, {node, *chosen}, members, rng))
    return tuple(chosen)


def holders_of_parts(
    record: MemberRecord,
    seeks: RunSet,
    chosen: Iterable[NodeId],
    holders: Iterable[NodeId],
    members: Mapping[NodeId, MemberRecord],
) -> tuple[NodeId, ...]:
    """Further members, so that a node reaches all runs that lie with members that keep a part: near ones first.

    Such members come and go rarely and get nothing new, so a node that doesn't know them waits in vain.

    Args:
        record: of the node.
        seeks: runs that it will look for.
        chosen: its neighbours so far.
        holders: members that have a part, in random order.
        members: all records.
    """
    reached = record.have
    for node in chosen:
        reached |= members[node].delivers
    left = seeks & ~reached
    found: list[NodeId] = []
    for node in sorted(holders, key=lambda n: _distance(record, members[n])):
        if not left or len(found) >= MOST_HOLDERS:
            break
        if node != record.node and members[node].delivers & left:
            left &= ~members[node].delivers
            found.append(node)
    return tuple(found)


def _distance(one: MemberRecord, other: MemberRecord) -> int:
    """0 in the same rack, 1 in the same site, 2 elsewhere."""
    if one.place == other.place:
        return 0
    return 1 if one.place[0] == other.place[0] else 2


def _draw(
    group: SampledSet,
    count: int,
    without: set[NodeId],
    members: Mapping[NodeId, MemberRecord],
    rng: random.Random,
) -> list[NodeId]:
    """About `count` members, the less connected one of each drawn pair."""
    drawn = [n for n in group.draw(rng, 2 * count + len(without)) if n not in without][: 2 * count]
    pairs = [(drawn[i], drawn[-1 - i]) for i in range(len(drawn) // 2)]
    missing = count - len(pairs)
    chosen = [min(pair, key=lambda n: members[n].degree) for pair in pairs]
    if missing > 0:  # there are too few pairs: take their other halves as well
        chosen += [n for n in drawn if n not in chosen][:missing]
    return chosen
