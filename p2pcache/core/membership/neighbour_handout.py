"""Whom a node that enters a swarm should dial: a pure policy with seeded dice."""

import random
from collections.abc import Mapping

from p2pcache.core.sampled_set import SampledSet

RACK_SHARE = 2  # half of the neighbours from the same rack: crossing costs
COMPLETE_SHARE = 6  # a sixth (4 of 24) hold everything: no run is far away, and none is overrun


def neighbours(
    node: int,
    *,
    everyone: SampledSet,
    rack: SampledSet,
    complete: SampledSet,
    degree: Mapping[int, int],
    count: int,
    rng: random.Random,
) -> tuple[int, ...]:
    """Neighbours in order of preference: same rack, complete ones, far ones.

    Each entering node gets at least one member that was there before it, so the graph of all
    nodes that ever entered is connected. Of two drawn members the one with fewer neighbours is
    taken, so the first to enter aren't everybody's neighbours.

    Args:
        node: who asks; never among the answer.
        everyone: the swarm's members.
        rack: those of them in the node's rack.
        complete: those of them that have every run.
        degree: how often each was handed out or asked for neighbours.
        count: how many are wanted.
        rng: seeded dice.
    """
    if len(everyone) <= count + 1:
        near = [n for n in rack.draw(rng, len(rack)) if n != node]
        seen = {node, *near}
        return (*near, *(n for n in everyone.draw(rng, len(everyone)) if n not in seen))
    chosen = dict.fromkeys(_take(rack, count // RACK_SHARE, {node}, degree, rng))
    chosen |= dict.fromkeys(_take(complete, count // COMPLETE_SHARE, {node, *chosen}, degree, rng))
    rest = count - len(chosen)
    chosen |= dict.fromkeys(_take(everyone, rest, {node, *chosen}, degree, rng))
    return tuple(chosen)


def _take(
    bag: SampledSet, count: int, without: set[int], degree: Mapping[int, int], rng: random.Random
) -> list[int]:
    """About `count` members, the less connected one of each drawn pair."""
    drawn = [n for n in bag.draw(rng, 2 * count + len(without)) if n not in without][: 2 * count]
    pairs = [(drawn[i], drawn[-1 - i]) for i in range(len(drawn) // 2)]
    spare = count - len(pairs)
    taken = [min(pair, key=lambda n: degree.get(n, 0)) for pair in pairs]
    if spare > 0:  # too few to choose from: the others of the pairs as well
        left = [n for n in drawn if n not in taken]
        taken += left[:spare]
    return taken
