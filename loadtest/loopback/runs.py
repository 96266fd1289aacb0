"""What the loopback benchmarks run: processes of their own, and what each run took."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import wait_until
from p2pcache.errors import Conflict

ENDS = [sys.executable, "-m", "loadtest.loopback.ends"]
LIMIT_S = 120.0  # a run takes a second or two
REF = "bench:v1"


class Run(NamedTuple):
    """One transfer: seconds of wall clock, CPU seconds of each end, user CPU seconds of both."""

    seconds: float
    sender_cpu_s: float
    receiver_cpu_s: float
    user_s: float


class Node:
    """A process of the data plane; see loopback_ends."""

    def __init__(self, root: Path, name: str, model: Path | None = None) -> None:
        """Start it; with a model it also serves that, and sends it raw."""
        self.name = name
        self._process = subprocess.Popen(
            [*ENDS, "node", name, str(root / name), str(model or "-")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        facts = self.answer()
        self.address: str = facts["peers"]
        self.manifest: str = facts.get("manifest", "")
        self.raw: str = facts.get("raw", "")
        self.bytes = int(facts.get("bytes", 0))

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far, and those of them in user space."""
        self.command({"do": "cpu"})
        facts = self.answer()
        return facts["cpu_s"], facts["user_s"]

    def start_pull(self, *sources: "Node") -> None:
        """Begin to fetch the model of these nodes; `answer` waits for the end and tells the facts."""
        addresses = {node.name: node.address for node in sources}
        self.command({"do": "pull", "manifest": sources[0].manifest, "from": addresses})

    def command(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name} ended; its error is above")
        facts: dict[str, Any] = json.loads(line)
        return facts

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def once(*arguments: str) -> dict[str, float]:
    """Run an end that does one thing."""
    done = subprocess.run(
        [*ENDS, *arguments], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    facts: dict[str, float] = json.loads(done.stdout)
    return facts


def raw_run(server: Node) -> Run:
    """Plain sendfile to recv_into: no hash, no file, no protocol."""
    before = server.cpu()
    facts = once("drain", server.raw, str(server.bytes))
    after = server.cpu()
    return Run(facts["seconds"], after[0] - before[0], facts["cpu_s"], 0.0)


def bare_run(server: Node, path: Path) -> Run:
    """Receive, hash and write over a file, or into a fresh one, and nothing else."""
    before = server.cpu()
    facts = once("bare", server.raw, str(path), str(server.bytes))
    after = server.cpu()
    return Run(facts["seconds"], after[0] - before[0], facts["cpu_s"], facts["user_s"])


def write_run(size: int, root: Path) -> Run:
    """One thread that only writes into a fresh file."""
    path = root / "floor"
    try:
        facts = once("write", str(path), str(size))
        return Run(facts["seconds"], 0.0, facts["cpu_s"], facts["user_s"])
    finally:
        path.unlink(missing_ok=True)


def peers_run(server: Node, client: Node) -> Run:
    """One node fetches all from one other, and removes it again."""
    before = server.cpu()
    client.start_pull(server)
    facts = client.answer()
    after = server.cpu()
    user_s = facts["user_s"] + after[1] - before[1]
    return Run(facts["seconds"], after[0] - before[0], facts["cpu_s"], user_s)


def warm(size: int) -> None:
    """Touch as much memory as a run will fill, and free it at once."""
    touch = "import mmap,sys; m = mmap.mmap(-1, int(sys.argv[1])); m[:] = bytes(len(m))"
    subprocess.run([sys.executable, "-c", touch, str(size)], check=True, timeout=LIMIT_S)


# -- through real agents --------------------------------------------------------------------------


@contextlib.contextmanager
def seeded(root: Path, model: Path) -> Iterator[Cluster]:
    """A tracker and one agent that has the whole model."""
    origin = root / "origin"
    origin.mkdir()
    with Cluster(f"file://{origin}", agents=1, folder=root) as cluster:
        cluster.run("push", str(model), REF)
        cluster.run("pull", REF)
        yield cluster


@contextlib.contextmanager
def newcomer(cluster: Cluster) -> Iterator[Agent]:
    """One more agent, with an empty cache."""
    agent = cluster.add_agent()
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()
        cluster.agents.remove(agent)
        shutil.rmtree(agent.home, ignore_errors=True)


def agents_run(cluster: Cluster, agent: Agent) -> Run:
    """An agent pulls; the clock runs from the resolved ref to the last proved byte."""
    ends: Sequence[Agent] = (cluster.agents[0], agent)
    started = ended = time.perf_counter()
    before = after = [_agent_cpu(end) for end in ends]
    last = dict[str, Any]()
    for event in agent.client.pull(REF):
        last = event
        if event["event"] == "resolved":
            started = time.perf_counter()
        elif event["event"] == "progress":
            ended = time.perf_counter()
            after = [_agent_cpu(end) for end in ends]
    if last["bytes_origin"]:
        raise SystemExit(f"{last['bytes_origin']} bytes came from the origin, not from the peer")
    used = [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)]
    return Run(ended - started, used[0][0], used[1][0], used[0][1] + used[1][1])


def forget(agent: Agent) -> None:
    """Remove the model from an agent."""

    def removed() -> bool:
        try:
            agent.client.remove(REF)
        except Conflict:  # the pull is letting go of it
            return False
        return True

    wait_until(removed, 10.0)


def _agent_cpu(agent: Agent) -> tuple[float, float]:
    """CPU seconds of a daemon so far, and those in user space."""
    fields = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / tick, int(fields[11]) / tick
