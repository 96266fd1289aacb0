"""The faults by name: what each does, to whom, when, and what must come of it."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.kit.daemons import stop_all
from loadtest.storm.arena import AGENT_PORT, CORE, LEFT, RIGHT, TRACKER, Arena
from loadtest.storm.plan import Plan
from loadtest.storm.race import Act
from p2pcache.io.files.indexing import index_directory

SPLIT_S = 10.0
SLOW_FACTOR = 10
TAKEOVER = 0.3  # of T_LB
NEW_AFTER_S = 0.2  # the tracker failed, a pull of another model begins
NEW_PULL_S = 2.0  # until its first byte, at most
FROZEN_S = 15.0  # longer than a tenure: the other tracker has taken over
FAR_S = 1.0  # 24 runs of 256 KiB at 50 Mbit/s: what 32 ms are for 4 MiB at 25 Gbit/s


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of trouble. The unlucky node, where there is one, is the last; with `half` it's a half of them.

    Attributes:
        help: one sentence for `--help`.
        expect: the unlucky node's exit code; None: its end isn't awaited. Only with `unlucky`.
        unlucky: whether one node isn't counted among those that must be quick.
        everywhere: exit code that every node must end with, if not 0.
        alpha: what the origin may at most be read, per byte of the model.
        proxy: needs the fault proxy before the S3 server.
        liar: the unlucky node serves corrupt chunks.
        standby: there are two trackers.
        new_pull: one node begins to pull another model just after the tracker has failed.
        late: the unlucky start at half of T_LB.
        half: the second half of the nodes is unlucky, not only the last one.
        again: the larger half of the nodes is started again, and their pulls begin anew.
        prepare: called before the daemons start.
        corrupt: called after the push.
        acts: the timetable, for a T_LB.
    """

    help: str
    expect: int | None = 0
    unlucky: bool = False
    everywhere: int = 0
    alpha: float = 1.05
    proxy: bool = False
    liar: bool = False
    standby: bool = False
    new_pull: bool = False
    late: bool = False
    half: bool = False
    again: bool = False
    prepare: Callable[[Arena], None] = lambda _arena: None
    corrupt: Callable[[Arena, Path], None] = lambda _arena, _source: None
    acts: Callable[[Arena, float], list[Act]] = lambda _arena, _t_lb: []


def _kill_node(arena: Arena, t_lb: float) -> list[Act]:
    victim = arena.agents[-1]
    return [Act(t_lb / 2, f"SIGKILL to {victim.name}", victim.kill)]


def _restart(kill: bool) -> Callable[[Arena, float], list[Act]]:  # noqa: FBT001
    def acts(arena: Arena, t_lb: float) -> list[Act]:
        victims = arena.agents[len(arena.agents) // 2 :]

        def again() -> None:
            if not kill:
                stop_all(victims)
            for victim in victims:
                victim.kill()
            for victim in victims:
                victim.start(wait=False)

        name = "SIGKILL" if kill else "SIGTERM"
        return [Act(t_lb / 2, f"{name} to {len(victims)} nodes; they start again", again)]

    return acts


def _kill_tracker(arena: Arena, t_lb: float) -> list[Act]:
    def again() -> None:
        arena.tracker.kill()
        arena.tracker.start(wait=False)

    return [Act(t_lb / 2, "SIGKILL to the tracker; a new one starts", again)]


def _lose_tracker(arena: Arena, t_lb: float) -> list[Act]:
    return [Act(min(1.0, t_lb / 10), "SIGKILL to the tracker, for good", arena.tracker.kill)]


def _take_over(arena: Arena, t_lb: float) -> list[Act]:
    return [Act(TAKEOVER * t_lb, "SIGKILL to the active tracker, for good", arena.tracker.kill)]


def _freeze_tracker(arena: Arena, t_lb: float) -> list[Act]:
    def send(number: signal.Signals) -> Callable[[], None]:
        return lambda: os.kill(arena.tracker.pid, number)

    begin = TAKEOVER * t_lb
    return [
        Act(begin, "SIGSTOP to the active tracker", send(signal.SIGSTOP)),
        Act(begin + FROZEN_S, "SIGCONT to it", send(signal.SIGCONT)),
    ]


def _cut_tracker(arena: Arena, t_lb: float) -> list[Act]:
    def each(change: Callable[[int, int], None]) -> Callable[[], None]:
        def perform() -> None:
            for group in (CORE, LEFT, RIGHT):
                change(TRACKER, group)

        return perform

    begin = TAKEOVER * t_lb
    return [
        Act(begin, "the active tracker is cut off", each(arena.fabric.cut)),
        Act(begin + FROZEN_S, "it is back", each(arena.fabric.mend)),
    ]


def _two_trackers(arena: Arena, t_lb: float) -> list[Act]:
    text = "the record of the active tracker is deleted: the standby is active, too"
    return [Act(TAKEOVER * t_lb, text, arena.forget_tenure)]


def _origin_fault(kind: str) -> Callable[[Arena, float], list[Act]]:
    def acts(arena: Arena, t_lb: float) -> list[Act]:
        return [
            Act(t_lb / 4, f"the origin begins: {kind}",
                lambda: arena.origin.fault(kind, seconds=arena.plan.fault_s))
        ]  # fmt: skip

    return acts


def _split(arena: Arena, t_lb: float) -> list[Act]:
    return [
        Act(t_lb / 4, "the network splits in two", lambda: arena.fabric.cut(LEFT, RIGHT)),
        Act(t_lb / 4 + SPLIT_S, "the network is whole again", lambda: arena.fabric.mend(LEFT, RIGHT)),
    ]  # fmt: skip


def _slow(arena: Arena) -> None:
    arena.fabric.shape(arena.node_hosts[-1], arena.plan.rate_of(arena.plan.nodes - 1) / SLOW_FACTOR)


def _hide(arena: Arena) -> None:
    host = arena.node_hosts[-1]
    nobody = f"{host.address.rpartition('.')[0]}.254:{AGENT_PORT}"
    arena.agents[-1].command += ["--advertise", nobody]


def _far_origin(arena: Arena, _t_lb: float) -> list[Act]:
    return [Act(0.0, "the origin is far away", lambda: arena.origin.fault("latency", delay=FAR_S))]


def _small_disk(arena: Arena) -> None:
    arena.small_disk(len(arena.agents) - 1, arena.plan.size_bytes // 2)


def _corrupt_origin(arena: Arena, source: Path) -> None:
    manifest, _ = index_directory(source)
    largest = max(manifest.files, key=lambda file: file.size)
    arena.origin.fault("corrupt", key=largest.blob_id)


FAULTS: dict[str, Fault] = {
    "kill-node": Fault(
        "SIGKILL to one node at half of T_LB", unlucky=True, expect=None, acts=_kill_node
    ),
    "restart-half": Fault(
        "SIGTERM to the larger half of the nodes at half of T_LB; they start again", again=True,
        acts=_restart(kill=False),
    ),
    "crash-half": Fault(
        "SIGKILL to the larger half of the nodes at half of T_LB; they start again", again=True,
        acts=_restart(kill=True),
    ),
    "kill-tracker": Fault("SIGKILL to the tracker at half of T_LB; a new one starts at once", acts=_kill_tracker),
    "lose-tracker": Fault("SIGKILL to the tracker a second after the start, for good", acts=_lose_tracker),
    "tracker-takeover": Fault(
        "SIGKILL to the active one of two trackers at 30 % of T_LB", standby=True, new_pull=True, alpha=1.01,
        acts=_take_over,
    ),
    "tracker-frozen": Fault(
        "SIGSTOP to the active one of two trackers at 30 % of T_LB; it goes on when the other one is active",
        standby=True, new_pull=True, alpha=1.01, acts=_freeze_tracker,
    ),
    "tracker-cut": Fault(
        "the active one of two trackers is cut off at 30 % of T_LB, and comes back", standby=True, new_pull=True,
        alpha=1.01, acts=_cut_tracker,
    ),
    "tracker-two": Fault(
        "two trackers are active at once for a moment, at 30 % of T_LB", standby=True, acts=_two_trackers
    ),
    "origin-503": Fault("the origin answers 503 for a while", proxy=True, acts=_origin_fault("busy")),
    "origin-reset": Fault("the origin resets connections midway for a while", proxy=True, acts=_origin_fault("reset")),
    "origin-stall": Fault("the origin accepts and says nothing for a while", proxy=True, acts=_origin_fault("stall")),
    "origin-truncate": Fault("the origin ends bodies early for a while", proxy=True, acts=_origin_fault("truncate")),
    "origin-freeze": Fault("the origin falls silent in mid-body for a while", proxy=True, acts=_origin_fault("freeze")),
    "far-origin": Fault(f"the origin's first byte takes {FAR_S:g} s longer", proxy=True, acts=_far_origin),
    "liar": Fault("one node serves corrupt chunks, over the whole storm", unlucky=True, expect=None, liar=True),
    "corrupt-origin": Fault(
        "the largest object is corrupt: exit 6 everywhere", everywhere=6, proxy=True, corrupt=_corrupt_origin
    ),
    "late-join": Fault("one node starts at half of T_LB", unlucky=True, late=True),
    "late-half": Fault("the second half of the nodes starts at half of T_LB", unlucky=True, late=True, half=True),
    "slow-node": Fault("one node has a tenth of the rate", unlucky=True, expect=None, prepare=_slow),
    "hidden-node": Fault("one node advertises an address where nobody is", unlucky=True, prepare=_hide),
    "disk-full": Fault("one node's disk is too small: exit 5 there", unlucky=True, expect=5, prepare=_small_disk),
    "split": Fault("half of the nodes lose the other half and the tracker for 10 s", alpha=2.0, acts=_split),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """All faults of one storm together."""

    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Trouble":
        """The faults that the plan names."""
        return cls(tuple(FAULTS[name] for name in plan.faults))

    def unlucky(self, plan: Plan) -> frozenset[int]:
        """Nodes that need not be quick, or not even succeed."""
        return _hit(plan, [f for f in self.faults if f.unlucky])

    def late(self, plan: Plan) -> frozenset[int]:
        """Nodes that start at half of T_LB."""
        return _hit(plan, [f for f in self.faults if f.late])

    def restarted(self, plan: Plan) -> frozenset[int]:
        """Nodes that are started again."""
        begin = plan.nodes // 2 if any(f.again for f in self.faults) else plan.nodes
        return frozenset(range(begin, plan.nodes))

    def liars(self, plan: Plan) -> frozenset[int]:
        """Nodes that serve corrupt chunks."""
        return _hit(plan, [f for f in self.faults if f.liar])

    def expected(self, plan: Plan, node: int) -> frozenset[int]:
        """Exit codes that a node may end with; empty: any."""
        everywhere = {f.everywhere for f in self.faults if f.everywhere}
        if everywhere:
            return frozenset(everywhere)
        if node not in self.unlucky(plan):
            return frozenset({0})
        codes = [f.expect for f in self.faults if f.unlucky]
        return frozenset() if None in codes else frozenset(c or 0 for c in codes)

    @property
    def alpha(self) -> float:
        """The largest alpha that is still right."""
        return max((f.alpha for f in self.faults), default=1.02)


def _hit(plan: Plan, faults: list[Fault]) -> frozenset[int]:
    """The nodes that some of these faults mean: the last, or the second half."""
    first = [(plan.nodes + 1) // 2 if fault.half else plan.nodes - 1 for fault in faults]
    return frozenset(range(min(first, default=plan.nodes), plan.nodes))
