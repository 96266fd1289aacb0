"""All pulls at once, with a timetable of faults beside them; what each node did and what it cost."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import psutil

from loadtest.kit.cluster import Agent
from loadtest.storm.arena import REF
from p2pcache.errors import P2PCacheError, Unreachable

SAMPLE_S = 0.2  # of the main thread: timetable, memory
UNTIL_FIRST_BYTE = ("resolve", "manifest", "local", "first_byte")  # phases of a pull
CURVE_S = 0.9  # progress comes about four times a second
AGAIN_S = 0.05  # until a pull that lost its agent begins anew


@dataclass(slots=True)
class Outcome:
    """How one node's pull ended. Times are seconds since the storm's start."""

    node: int
    code: int = 0
    message: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0
    path: str = ""
    bytes_origin: int = 0
    bytes_peers: int = 0
    came_from: dict[str, int] = field(
        default_factory=dict
    )  # bytes by peer, of the eight that gave most
    curve: list[tuple[float, int]] = field(
        default_factory=list
    )  # (seconds, bytes), about each second
    equal: bool | None = None  # every file equals the source; None: not compared

    @property
    def half_s(self) -> float:
        """When it had about half of the bytes."""
        if not self.curve:
            return 0.0
        return next(t for t, done in self.curve if done * 2 >= self.curve[-1][1])

    @property
    def ok(self) -> bool:
        """Done, and not known to be wrong."""
        return self.code == 0 and self.equal is not False


@dataclass(slots=True)
class Race:
    """The result of one storm, before it is judged."""

    outcomes: list[Outcome]
    cpu_busy: float  # share of all cores, 0 to 1
    cpu_s: dict[str, float]  # per daemon, of those that lived through it
    rss_anon_bytes: int  # the largest of any agent at any sample
    origin_curve: list[tuple[float, int]] = field(default_factory=list)  # as a node's, on its link
    story: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens at a time. Acts run on the main thread: a daemon dies with its starter."""

    at_s: float
    text: str
    perform: Callable[[], None]


class NewPull(threading.Thread):
    """A pull of another, small model on one of the nodes, in the middle of a storm."""

    def __init__(self, agent: Agent, ref: str) -> None:
        super().__init__(daemon=True)
        self.waited_s: float | None = None  # until its first byte; None: it hasn't ended well
        self.phases: dict[str, float] = {}  # where that time went
        self.failure = "not done by then"
        self.bytes_origin = 0
        self._agent, self._ref = agent, ref

    def run(self) -> None:
        """Pull."""
        try:
            event = list(self._agent.client.pull(self._ref))[-1]
        except P2PCacheError as error:
            self.failure = str(error)
            return
        self.bytes_origin = int(event["bytes_origin"])
        took = {each["phase"]: float(each["seconds"]) for each in event["report"]["phases"]}
        self.phases = {phase: took[phase] for phase in UNTIL_FIRST_BYTE if phase in took}
        self.waited_s = sum(self.phases.values())


def race(
    agents: Sequence[Agent],
    cpu_s: Callable[[], dict[str, float]],
    origin_sent: Callable[[], int],
    acts: Sequence[Act],
    *,
    delays: dict[int, float],
    wait_for: Collection[int],
    again: Collection[int] = (),
    limit_s: float,
    say: Callable[[str], None],
) -> Race:
    """Pull `REF` on all agents at once.

    Args:
        agents: the nodes.
        cpu_s: CPU seconds so far of every part that lives, by name.
        origin_sent: bytes on the origin's link so far.
        acts: the timetable.
        delays: nodes that start later, and when.
        wait_for: nodes whose end is awaited; what the others have done by then is recorded.
        again: nodes that are started again: there a pull that loses its agent begins anew.
        limit_s: whoever isn't done by then has failed (code 9).
        say: told when an act happens.
    """
    outcomes = [Outcome(n, code=9, message="not done by then") for n in range(len(agents))]
    cpu_before = cpu_s()
    stat_before = psutil.cpu_times()
    start = time.monotonic()
    threads = [
        threading.Thread(
            target=_pull,
            args=(agent, outcome, start, delays.get(outcome.node, 0.0), outcome.node in again),
            daemon=True,
        )
        for agent, outcome in zip(agents, outcomes, strict=True)
    ]
    for thread in threads:
        thread.start()
    result = Race(outcomes, 0.0, {}, 0)
    waiting = sorted(acts, key=lambda act: act.at_s)
    while any(threads[n].is_alive() for n in wait_for) and time.monotonic() - start < limit_s:
        now = time.monotonic() - start
        while waiting and waiting[0].at_s <= now:
            act = waiting.pop(0)
            result.story.append(f"{now:.1f} s: {act.text}")
            say(f"  {result.story[-1]}")
            act.perform()
        _sample(agents, result, now, origin_sent)
        time.sleep(SAMPLE_S)
    result.cpu_busy = busy_share(stat_before, psutil.cpu_times())
    # A daemon that was started again has a younger counter.
    result.cpu_s = {n: max(0.0, s - cpu_before.get(n, 0.0)) for n, s in cpu_s().items()}
    # Threads of nodes that nobody waits for go on writing into theirs.
    result.outcomes = [replace(o, curve=list(o.curve)) for o in outcomes]
    for act in waiting:  # for example the end of a cut that outlived the storm
        act.perform()
    return result


def _pull(agent: Agent, outcome: Outcome, start: float, delay_s: float, again: bool) -> None:  # noqa: FBT001
    time.sleep(delay_s)
    outcome.started_s = time.monotonic() - start
    while True:
        try:
            for event in agent.client.pull(REF):
                note_event(outcome, event, time.monotonic() - start)
        except Unreachable as error:
            outcome.code, outcome.message = error.exit_code, str(error)
            if again:
                time.sleep(AGAIN_S)
                continue
        except P2PCacheError as error:
            outcome.code, outcome.message = error.exit_code, str(error)
        break
    outcome.ended_s = time.monotonic() - start


def note_event(outcome: Outcome, event: dict[str, object], now: float) -> None:
    """Take in an event of a pull; `now`: seconds since the storm's start."""
    if (
        event["event"] == "progress"
        and now >= (outcome.curve[-1][0] if outcome.curve else 0) + CURVE_S
    ):
        outcome.curve.append((round(now, 2), int(str(event["bytes_done"]))))
    if event["event"] == "done":
        outcome.code, outcome.message = 0, ""
        outcome.path = str(event["path"])
        outcome.curve.append((round(now, 2), int(str(event["bytes"]))))
        outcome.bytes_origin = int(str(event["bytes_origin"]))
        outcome.bytes_peers = int(str(event["bytes_peers"]))
        report = event.get("report")
        peers = report["peers"] if isinstance(report, dict) else ()
        outcome.came_from = {peer["node"]: int(peer["bytes"]) for peer in peers}


def _sample(
    agents: Sequence[Agent], result: Race, now: float, origin_sent: Callable[[], int]
) -> None:
    if now >= (result.origin_curve[-1][0] if result.origin_curve else -CURVE_S) + CURVE_S:
        result.origin_curve.append((round(now, 2), origin_sent()))
    for agent in agents:
        if agent.alive:
            result.rss_anon_bytes = max(result.rss_anon_bytes, _anon_bytes(agent))


def _anon_bytes(agent: Agent) -> int:
    try:
        return agent.anon_bytes()
    except (OSError, ValueError):  # it died between the two looks
        return 0


def busy_share(before: object, after: object) -> float:
    """Share of the time between two `psutil.cpu_times()` in which a core worked, over all cores."""
    fields = ("user", "nice", "system", "irq", "softirq", "steal", "idle", "iowait")
    spent = {f: getattr(after, f, 0.0) - getattr(before, f, 0.0) for f in fields}
    total = sum(spent.values())
    return (total - spent["idle"] - spent["iowait"]) / total if total else 0.0
