"""Random small storms with faults, and the laws that each must keep.

A storm is a pure function of its seed. A storm that fails is kept as its fields (`kept`, one JSON line), so it stays a
test when the generator changes.
"""

import dataclasses
import json
from collections.abc import Iterator
from math import ceil
from random import Random
from typing import Any

from p2pcache.ids import NodeId
from p2pcache.sim.cluster.agent_link import LAST_RECONNECT_S
from p2pcache.sim.cluster.node import SimNode
from p2pcache.sim.cluster.node_reads import READ_TIMEOUT_S, STALL_S
from p2pcache.sim.report import Report
from p2pcache.sim.scenarios import (
    SLOW,
    SLOW_DISK,
    START_SPREAD_S,
    TRACKER_BACK_AFTER_S,
    KiB,
    Run,
    Storm,
)

# Runs that are read again without a fault: a lease and a neighbour's copy crossed on the way.
_CROSSED = 2
_AT_ONCE = 9  # runs that end together: about as many as requests, slots and reads at once
_HELPED_S = 10.0  # until the next holder that delivers nothing is reported
_MOST_PAUSE_S = 15.0  # a stuck node is helped after twelve seconds
_MOST_LONELY_S = 60.0  # a node that doesn't know the owners' pace passes them over after 48 seconds
# A node also passes over owners that don't want their runs, one after the other.
_MOST_PARTED_S = 240.0
_WITH_HOLDERS = 1_000_000  # seeds from this one on: storms may have holders that deliver nothing
_HALF = 0.5
_NOTED = 0.5  # of the trackers that restart
_MET_S = 1.0  # this long after their start all nodes have announced themselves and know each other


def random_storm(seed: int) -> Storm:
    """A small storm with up to four kinds of faults, and from `_WITH_HOLDERS` on with holders that deliver nothing."""
    storm = _first_storms(seed)
    return dataclasses.replace(storm, **_holders(seed)) if seed >= _WITH_HOLDERS else storm


def _holders(seed: int) -> dict[str, Any]:
    # Separate dice: further draws from the dice of the other faults would change all storms of known seeds.
    dice = Random(f"holders {seed}")
    kinds = dice.sample(("hung", "dripping", "busy"), dice.choice((0, 1, 1, 2)))
    return {"reading": dice.random() < _HALF, **{kind: dice.choice((1, 1, 2)) for kind in kinds}}


def _first_storms(seed: int) -> Storm:
    dice = Random(seed)
    nodes = dice.choice((1, 2, 3, 5, 8, 12, 20))
    storm = Storm(
        nodes=nodes, runs=dice.choice((1, 7, 32, 64, 100)), seed=seed, check_every=1,
        run_bytes=dice.choice((64, 256, 1024)) * KiB, rate=dice.choice((2e6, 6e6, 1e8)),
        origin_rate=dice.choice((2e6, 6e6, 1e8)), latency_s=dice.choice((0.0002, 0.002, 0.03)),
    )  # fmt: skip
    for name in dice.sample(sorted(_FAULTS), dice.randrange(5)):
        storm = dataclasses.replace(storm, **_FAULTS[name](dice, nodes))
    if storm.no_tracker_after is not None and not _all_met_it(storm):
        # A node that never met the tracker knows no other one and may not read, so it isn't expected to finish.
        storm = dataclasses.replace(storm, no_tracker_after=None, tracker_restart=0.5)
    return storm


def _all_met_it(storm: Storm) -> bool:
    started = not storm.late and not storm.restart
    return started and (storm.no_tracker_after or 0.0) * storm.scale_s > START_SPREAD_S + _MET_S


def _some(dice: Random, nodes: int) -> float:
    """A share of the nodes, at least one of them."""
    return max(1, round(dice.random() * nodes / 2)) / nodes


def _sides(dice: Random, nodes: int) -> dict[str, Any]:
    first = dice.randrange(nodes + 1)
    return {
        "partition": (first, dice.randrange(nodes - first + 1)),
        "partition_at": dice.random(),
        "partition_s": dice.choice((2.0, 12.0, 40.0, 200.0)),
        "partition_tracker": dice.choice(("first", "both")),
    }


_FAULTS: dict[str, Any] = {
    "slow": lambda dice, n: {"slow": _some(dice, n)},
    "slow_disk": lambda dice, n: {"slow_disk": _some(dice, n)},
    "crash": lambda dice, n: {
        "crash": _some(dice, n), "restart": dice.choice((None, "kept", "lost")),
    },
    "late": lambda dice, n: {"late": _some(dice, n)},
    "liars": lambda dice, _: {"liars": dice.choice((1, 1, 2))},
    "hidden": lambda dice, n: {"hidden": dice.choice((max(1, n // 5), dice.randrange(n) or 1))},
    "racks": lambda dice, _: {"racks": dice.choice((2, 3)), "oversubscribed": dice.choice((1, 4))},
    "far": lambda dice, _: {"origin_latency_s": dice.choice((0.03, 0.3)), "origin_jitter": 0.6},
    "quick": lambda dice, _: {
        "rate": 1.25e9, "origin_rate": dice.choice((1.25e9, 1e10)), "run_bytes": 16 << 20,
        "latency_s": 5e-5, "runs": 300, "check_every": 11,
    },
    "tracker": lambda dice, _: dice.choice((
        {"no_tracker_after": dice.random()}, {"tracker_restart": dice.random(), "notes": dice.random() < _NOTED},
    )),
    "parts": lambda dice, _: {"parts": dice.choice((2, 3, 8))},
    "outage": lambda dice, _: {"outage": dice.random(), "outage_s": dice.choice((0.5, 5.0, 20.0))},
    "frozen": lambda dice, _: {"frozen": dice.random(), "frozen_s": dice.choice((0.5, 2.0, 15.0))},
    "partition": _sides,
}  # fmt: skip


LEASES_LOST = 16  # reads at once that one event may make useless


def alpha_bound(run: Run) -> float:
    """The bytes that a storm with these faults may read from the origin, in model sizes.

    One copy for each part of the swarm that the others can't reach, the runs that died with their only holders, the
    runs that slow nodes were reading.
    """
    storm, cluster = run.storm, run.cluster
    copies = 1 + (storm.partition is not None) + (storm.hidden > 0) + 2 * _mostly_hidden(storm)
    # They wait in vain for sources whose links together are narrower than one of theirs, and read.
    if storm.hidden and sum(node.up.rate for node in _sources(run)) < storm.rate:
        copies += storm.hidden
    lost: float = cluster.lost_runs + _CROSSED
    lost += round((storm.slow + storm.slow_disk) * storm.nodes)  # each may lose a lease it sits on
    if storm.no_tracker_after is not None or storm.tracker_restart is not None:
        lost += 2 * LEASES_LOST  # in flight when the tracker, which knew the readers, died
    if storm.outage is not None or storm.frozen is not None:
        lost += LEASES_LOST  # broken off in the middle
    lost += _read_by_newcomers(storm)
    if silent := storm.hung + storm.dripping + storm.busy:
        lost += LEASES_LOST  # granted while the holders' claims were tried again
    if storm.liars:
        lost += LEASES_LOST  # requested from the liar while the leases went on
    copies += storm.reading * (silent + storm.liars)  # read by each of them until it was noticed
    return copies + lost / storm.runs


def _read_by_newcomers(storm: Storm) -> float:
    """Runs for nodes that meet a tracker without notes before a node that knows the others."""
    if storm.tracker_restart is None or storm.notes:
        return 0.0
    before = storm.tracker_restart * storm.scale_s < START_SPREAD_S + _MET_S
    newcomers = storm.nodes if before else round((storm.late + storm.crash) * storm.nodes)
    rate = min(storm.origin_rate, newcomers * storm.rate)
    return LAST_RECONNECT_S * rate / storm.run_bytes


def _excused(storm: Storm) -> Iterator[tuple[float, float]]:
    """The times in which a fault excuses that nothing comes to a node: (begin, end) in seconds."""
    for begins, lasts_s in (
        (storm.outage, storm.outage_s), (storm.frozen, storm.frozen_s + READ_TIMEOUT_S),
        (storm.tracker_restart, TRACKER_BACK_AFTER_S + LAST_RECONNECT_S), (storm.no_tracker_after, 0.0),
        (storm.partition_at if storm.partition else None, min(storm.partition_s, STALL_S)),
    ):  # fmt: skip
        if begins is not None:
            yield begins * storm.scale_s, begins * storm.scale_s + lasts_s


def most_pause(storm: Storm) -> float:
    """For how long a node may get nothing without an excuse, in seconds.

    Without a tracker no node knows which others want a run. And the tracker doesn't believe that most nodes are
    hidden, but helps one after the other.
    """
    # Where a model has few runs, holders that deliver nothing are asked one after the other.
    silent_s = (storm.hung + storm.dripping + storm.busy) * (STALL_S + _HELPED_S)
    by_themselves = storm.no_tracker_after is not None or storm.partition is not None
    if not by_themselves and not _mostly_hidden(storm):
        return _MOST_PAUSE_S + silent_s
    return silent_s + (_MOST_PARTED_S if storm.parts else _MOST_LONELY_S)


def _mostly_hidden(storm: Storm) -> bool:
    """Whether half of the nodes or more are hidden. The tracker doesn't believe it: one after the other reads."""
    return storm.hidden >= storm.nodes / 2


def longest_pause(run: Run) -> float:
    """For how long a node that lacked something got nothing without an excuse, in seconds.

    Excuses are the faults of storage, network and tracker, and the time of runs that wait together for one slow link.
    """
    longest, usual_s = 0.0, _usual_pause(run)
    # A node that delivers nothing right gets no leases once that is known. What only such nodes have is read again by
    # others, in order, before anything that those nodes lack.
    refused_s = max(usual_s, run.storm.runs * run.storm.run_bytes / _slowest(run.storm))
    for node, since, until in run.cluster.pauses:
        excused_s, at = refused_s if _is_faulty(run, node) else usual_s, since
        for begins, ends in sorted(_excused(run.storm)):
            here_s = min(ends, until) - max(begins, at)
            if here_s > 0:
                excused_s, at = excused_s + here_s, min(ends, until)
        longest = max(longest, until - since - excused_s)
    return longest


def _usual_pause(run: Run) -> float:
    """Seconds that runs take which all wait for the same slow link."""
    storm = run.storm
    slowest = _slowest(storm)
    quick = sum(node.up.rate == storm.rate for node in _sources(run))
    # A run that only a slow node has goes to one node after the other, until a quick one has it and hands it on.
    turns = max(_AT_ONCE, (storm.nodes - 1) / max(1, quick))
    usual_s = turns * storm.run_bytes / slowest
    if storm.parts:  # storage gives one part after the other
        usual_s = max(usual_s, storm.scale_s)
    if storm.hidden:  # sources bring it to all hidden nodes
        brought = sum(min(node.up.rate, storm.origin_rate) for node in _sources(run))
        usual_s = max(usual_s, storm.hidden * storm.runs * storm.run_bytes / (brought or slowest))
    return usual_s


def _is_faulty(run: Run, node: NodeId) -> bool:
    """Whether a node serves garbage, or nothing."""
    one = run.cluster.nodes.get(node)
    return one is not None and (one.liar or bool(one.uploads.fault))


def _sources(run: Run) -> list[SimNode]:
    """The nodes that others get at, at the end."""
    return [node for node in run.cluster.nodes.values() if node.is_source]


def _could_have_ended(run: Run) -> bool:
    """Whether a storm went on for as long as its sources need to bring all to the nodes that nobody can dial.

    Nineteen hidden nodes behind one slow one need two hours for 64 MiB.
    """
    return not run.storm.hidden or run.cluster.world.now >= _usual_pause(run)


def _slowest(storm: Storm) -> float:
    """The rate of the narrowest link between storage and a node, in bytes per second."""
    return min(storm.origin_rate, storm.rate * _least_share(storm))


def _least_share(storm: Storm) -> float:
    """The rate of the narrowest link on a run's path, as a share of a usual link's rate."""
    shares = [1.0, SLOW if storm.slow else 1.0, SLOW_DISK if storm.slow_disk else 1.0]
    if storm.racks:
        shares.append(ceil(storm.nodes / storm.racks) / storm.oversubscribed)
    return min(shares)


def verdict(run: Run) -> str | None:
    """Run a storm; returns the law that it broke, or None."""
    try:
        report: Report = run.go()
    except Exception as error:  # noqa: BLE001 - whatever it is: a seed that ends in it is a seed to keep
        return f"{type(error).__name__}: {error}"
    if report.complete != report.alive and _could_have_ended(run):
        return f"{report.alive - report.complete} of {report.alive} nodes never got all of it"
    if report.alpha > alpha_bound(run):
        return f"alpha {report.alpha:.3f}, and {alpha_bound(run):.3f} is the bound"
    if longest_pause(run) > most_pause(run.storm):
        return f"a node got nothing for {longest_pause(run):.1f} s, and {most_pause(run.storm):g} s is the bound"
    return None


def failures(seeds: Iterator[int] | range) -> Iterator[tuple[Storm, str]]:
    """The storms of these seeds that break a law, each with that law."""
    for seed in seeds:
        storm = random_storm(seed)
        broken = verdict(Run(storm))
        if broken is not None:
            yield storm, broken


def kept(storm: Storm) -> str:
    """A storm as one line, for `revived`."""
    return json.dumps(_unusual(storm, Storm()))


def _unusual(one: Any, plain: Any) -> dict[str, Any]:
    """The fields that differ from the default, those of settings included."""
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(one)):
        value, usual = getattr(one, name), getattr(plain, name)
        if value != usual:
            found[name] = _unusual(value, usual) if dataclasses.is_dataclass(value) else value
    return found


def revived(line: str) -> Storm:
    """The storm of a kept line; fields that the line doesn't name have today's defaults."""
    fields = json.loads(line)
    plain = Storm()
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = dataclasses.replace(getattr(plain, name), **value)
    if "partition" in fields:
        fields["partition"] = tuple(fields["partition"])
    return Storm(**fields)
