"""A storm on machines that run agents already: the hosts of a list pull one model at the same moment.

Nothing is installed, shaped or removed there. A line of the list is `NAME TARGET`; TARGET is what ssh is
told, or the address of an agent that can be reached from here (unix:///PATH, http://HOST:PORT).
What hasn't got a rate of its own can't have a bound: the rates are given, and eta is against them.
"""

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from loadtest.storm.plan import lower_bound_s
from loadtest.storm.race import Outcome, note_event
from p2pcache.core.format.chunking import nominal_chunk_bytes
from p2pcache.core.units import format_bytes
from p2pcache.errors import UsageError
from p2pcache.ids import Ref

READY_S = 60.0  # a hundred ssh connections through one bastion
WAIT_S = 3600.0  # 700 GB over 2 Gbit/s
STOP_S = 5.0
TAIL_CHARS = 300  # of what a host said on stderr
HAD_SHARE = 0.01  # of the model: hides as little of its time
PENDING = "not done by then"
BEATEN = "nothing beats the bound: the links carry more than --rate and --origin-rate say, so eta says nothing"
ADDRESSES = ("unix://", "http://")


class Target(NamedTuple):
    """One host of the list."""

    name: str
    where: str


class Calm(NamedTuple):
    """How the hosts are reached, and what their links are said to carry (bytes per second)."""

    ref: str
    rate: float
    origin_rate: float
    ssh: str = "ssh -o BatchMode=yes"
    remote: str = "p2pcache"  # the command on the hosts


def read_hosts(path: Path) -> list[Target]:
    """The list.

    Raises:
        UsageError: it can't be read, or a line isn't `NAME TARGET`.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        # What begins with a dash would be an option of ssh.
        if len(words) != 2 or words[1].startswith("-"):
            raise UsageError(f"{path}, line {number}: expected NAME TARGET, got {line.strip()!r}")
        found.append(Target(*words))
    if len({target.name for target in found}) != len(found) or not found:
        raise UsageError(f"{path}: expected hosts, each with a name of its own")
    return found


@dataclass(slots=True)
class Node:
    """One host and what became of its pull."""

    target: Target
    outcome: Outcome
    size_bytes: int = 0
    bytes_local: int = 0
    agent_s: float = 0.0  # as its own agent timed it
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def fetched(self) -> bool:
        """It had next to nothing of the model before, so that its time counts."""
        return self.outcome.code == 0 and not self.had

    @property
    def had(self) -> bool:
        """So much was there before that it shows: not a tokenizer that other models have, too."""
        return self.bytes_local > HAD_SHARE * self.size_bytes


class Runner:
    """The command on one host. It connects, says `ready`, and starts when it is told."""

    def __init__(self, node: Node, calm: Calm) -> None:
        self.node = node
        self._command = command(node.target, calm)
        self.ready = threading.Event()  # also set when it has ended
        self._start = 0.0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would fill up
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise UsageError(
                f"can't run {self._command[0]!r}: {error.strerror}; see --ssh"
            ) from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOP_S)
        for pipe in (process.stdin, process.stdout, self._said):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it ended before it was told to start
                    pipe.close()

    def go(self, start: float) -> None:
        """Start it. `start`: of the storm, monotonic."""
        self._start = start
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it has ended; its outcome says how

    def join(self, limit_s: float) -> None:
        """Wait for its end."""
        self._thread.join(max(0.0, limit_s))

    def _listen(self) -> None:
        process, outcome = self._process, self.node.outcome
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                self.ready.set()
            elif line.startswith("{"):
                self._take(line)
        code = process.wait()
        self._said.seek(0)
        said = " ".join(self._said.read().decode(errors="replace").split())[-TAIL_CHARS:]
        if not outcome.ended_s and self._start:
            outcome.ended_s = time.monotonic() - self._start
        if code:
            known = outcome.message if outcome.message != PENDING else ""
            outcome.code, outcome.message = code, known or said or "it said nothing"
        self.ready.set()

    def _take(self, line: str) -> None:
        node, outcome = self.node, self.node.outcome
        try:
            event = json.loads(line)
            kind, now = event["event"], time.monotonic() - self._start
            note_event(outcome, event, now)
            if kind == "done":
                outcome.ended_s = now
                node.size_bytes, node.bytes_local = int(event["bytes"]), int(event["bytes_local"])
                node.agent_s, node.report = float(event["seconds"]), event.get("report") or {}
            elif kind == "error":
                outcome.code, outcome.message = int(event["code"]), str(event["message"])
        except (ValueError, KeyError, TypeError):
            outcome.message = f"it said something else than a pull's events: {line[:80]!r}"


def command(target: Target, calm: Calm) -> list[str]:
    """What runs here for one host."""
    local = target.where.startswith(ADDRESSES)
    pull = [sys.executable, "-m", "p2pcache.cli.main", "--agent", target.where] if local else (
        shlex.split(calm.remote)
    )  # fmt: skip
    script = f"echo ready && read go && exec {shlex.join([*pull, 'pull', calm.ref, '--json'])}"
    if local:
        return ["sh", "-c", script]
    return [*shlex.split(calm.ssh), target.where, script]


@dataclass(slots=True)
class FleetReport:
    """All numbers of one storm on a fleet."""

    calm: Calm
    nodes: list[Node]

    @property
    def counted(self) -> list[Node]:
        """The nodes that fetched the whole model."""
        return [node for node in self.nodes if node.fetched]

    @property
    def size_bytes(self) -> int:
        """F."""
        return max((node.size_bytes for node in self.nodes), default=0)

    @property
    def t_lb(self) -> float:
        """The bound of the counted nodes, from the rates that were given."""
        rates = [self.calm.rate] * max(1, len(self.counted))
        chunk = nominal_chunk_bytes(self.size_bytes)
        return lower_bound_s(self.size_bytes, chunk, rates, rates, self.calm.origin_rate)

    def failures(self) -> list[str]:
        """What isn't as it must be."""
        found = [
            f"{node.target.name} ended with {node.outcome.code}: {node.outcome.message}"
            for node in self.nodes if node.outcome.code
        ]  # fmt: skip
        if not found and not self.counted:
            found.append("every node had the model already: remove it there first (p2pcache rm)")
        return found

    def as_json(self) -> dict[str, Any]:
        """As the JSON of a storm in namespaces; what can't be known from here is left out."""
        counted, size = self.counted, self.size_bytes
        ends = [node.outcome.ended_s for node in counted]
        last, middle = (max(ends), statistics.median(ends)) if ends else (None, None)
        read = sum(node.outcome.bytes_origin for node in self.nodes)
        chunk = nominal_chunk_bytes(size)
        return {
            "what": "fleet",
            "eta": round(self.t_lb / last, 4) if last else None,
            "eta_median": round(self.t_lb / middle, 4) if middle else None,
            "alpha": round(read / size, 5) if size else 0.0,
            "t_last": last and round(last, 3), "t_median": middle and round(middle, 3),
            "t_lb": round(self.t_lb, 3), "size_bytes": size, "chunk_bytes": chunk,
            "chunks": -(-size // chunk), "goodput_node": round(self.calm.rate),
            "goodput_origin": round(self.calm.origin_rate),
            "plan": {"nodes": len(self.nodes), "ref": self.calm.ref, "rate": self.calm.rate,
                     "origin_rate": self.calm.origin_rate, "faults": [], "rivals": []},
            "counted_nodes": [n for n, node in enumerate(self.nodes) if node.fetched],
            "nodes": [
                {**asdict(node.outcome), "name": node.target.name, "bytes_local": node.bytes_local,
                 "agent_s": node.agent_s, "report": node.report}
                for node in self.nodes
            ],
            "origin_curve": [], "story": [], "failures": self.failures(), "rivals": {},
        }  # fmt: skip

    def as_text(self) -> str:
        """The table."""
        data = self.as_json()
        shown = {key: "-" if data[key] is None else f"{data[key]:.3f}" for key in
                 ("t_lb", "t_last", "t_median", "eta", "eta_median", "alpha")}  # fmt: skip
        lines = [
            f"{'node':20} seconds  from origin   from peers  result",
            *(_row(node) for node in self.nodes), "",
            f"T_LB    {shown['t_lb']:>9} s  the bound, from the rates that were given",
            f"T_last  {shown['t_last']:>9} s  the last node is done; median {shown['t_median']}",
            f"eta     {shown['eta']:>9}    T_LB / T_last; median node {shown['eta_median']}",
            f"alpha   {shown['alpha']:>9}    origin bytes / model bytes, as the agents count them", "",
        ]  # fmt: skip
        if data["eta"] and data["eta"] > 1:
            lines.insert(-1, BEATEN)
        return "\n".join(
            lines + ([f"WRONG: {f}" for f in self.failures()] or ["all as it must be"])
        )


def _row(node: Node) -> str:
    outcome = node.outcome
    result = f"exit {outcome.code}: {outcome.message}" if outcome.code else "done"
    if node.had:
        result += f", {format_bytes(node.bytes_local)} were there already: not counted"
    return (
        f"{node.target.name:20} {outcome.ended_s:7.2f}  {format_bytes(outcome.bytes_origin):>11}  "
        f"{format_bytes(outcome.bytes_peers):>11}  {result}"
    )


def run(targets: Sequence[Target], calm: Calm, say: Callable[[str], None]) -> FleetReport:
    """Connect to all, start all at once, wait for all.

    Raises:
        UsageError: not the name of a model.
    """
    calm = calm._replace(ref=str(Ref.parse(calm.ref)))
    nodes = [
        Node(target, Outcome(number, code=9, message=PENDING))
        for number, target in enumerate(targets)
    ]
    with ExitStack() as stack:
        runners = [stack.enter_context(Runner(node, calm)) for node in nodes]
        deadline = time.monotonic() + READY_S
        late = [r for r in runners if not r.ready.wait(max(0.0, deadline - time.monotonic()))]
        for runner in late:
            runner.node.outcome.message = f"not connected after {READY_S:.0f} s"
        say(f"{len(runners) - len(late)} of {len(runners)} hosts are connected; they start")
        start = time.monotonic()
        for runner in runners:
            if runner not in late:
                runner.go(start)
        for runner in runners:
            if runner not in late:
                runner.join(start + WAIT_S - time.monotonic())
    return FleetReport(calm, nodes)
