"""Ten thousand agents against one tracker that has a core of its own: `make tracker-load`.

The tracker is the real process, started by the command line and pinned to one core; the agents are
simulated by a few processes on the other cores (`trackerload_agents.py`): real WebSockets, real
handshakes, the production messages at the production interval. What goes on meanwhile:

- every agent holds 3 complete models of 40, beats every 5 s, and resolves a ref once a minute;
- a tenth of them pulls one model of 1,024 runs, all at once, and 20 swarms of 32 agents pull others:
  resolve, manifest, enter, leases (of which storage serves each storm 40 a second), have-sets,
  credit, exit; then the next storm;
- two agents a second lose their connection and come back;
- the tracker dials each agent back; `--hidden` of them can't be reached.

    python -m loadtest.trackerload [--agents 10000] [--seconds 60] [--hidden 0.0] [--json FILE]

On a busy machine a core is only the tracker's own if it goes first, so root starts tracker and agents
with the lowest realtime priority. An answer is what somebody waits for: Settled after an announcement,
the swarm's list after an enter, the answer to a question, each timed by the agent.
Exit code: 0 within the limits, 1 not.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from loadtest.kit import flags
from loadtest.kit.cluster import clean_environ, free_ports, healthy, run_command, write_key
from loadtest.kit.daemons import P2PCACHE, Daemon, exit_on_signals, strap
from loadtest.kit.models import make_model
from loadtest.trackerload.agents import Plan

PROCESSES = 3  # one Python process makes some 1,000 messages a second without being late itself
MODEL_BYTES = 64 << 20  # its manifest has 257 chunks, which is 10 KB
RUNS = 1024  # of each model that is pulled: half a minute
BIG_STORM = 10  # a tenth of all agents
SMALL_STORMS, SMALL_STORM = 20, 32
RECONNECTS_PER_S = 2.0
FILES = 10_000  # descriptors beside the connections
SETTLE_S = 10.0  # storms are under way by then
CPU, ANSWER_S, RSS = 0.60, 0.050, 700 << 20  # the limits


@dataclass
class Figures:
    """What came out."""

    agents: int
    seconds: float
    connect_s: float
    cpu: float  # share of one core
    rss_bytes: int
    storms: int
    lost: int  # connections that broke by themselves
    sent_per_s: float
    received_per_s: float
    dialled: int  # times that the tracker reached an agent
    answers: dict[str, tuple[int, float, float, float]] = field(default_factory=dict)
    agents_cpu: float = 0.0  # of the simulated agents, in cores: near their number they are late
    late_p99_s: float = 0.0  # by how much their own loops turned late: it is in the answers' times
    late_worst_s: float = 0.0
    tracker_late_worst_s: float = 0.0  # the same of the tracker's loop, of the last minute

    @property
    def wrong(self) -> list[str]:
        """Which limits don't hold."""
        _, _, p99_s, _ = self.answers["all"]
        return [
            text
            for bad, text in (
                (self.cpu >= CPU, f"the tracker took {self.cpu:.0%} of its core"),
                (p99_s >= ANSWER_S, f"p99 of the answers is {p99_s * 1000:.0f} ms"),
                (self.rss_bytes > RSS, f"the tracker has {self.rss_bytes >> 20} MiB"),
                (self.lost > 0, f"{self.lost} connections broke"),
                (self.storms == 0, "no storm came to its end"),
            )
            if bad
        ]

    def table(self) -> str:
        """For people."""
        lines = [
            f"{self.agents} agents, {self.seconds:.0f} s; connected in {self.connect_s:.1f} s",
            f"tracker: {self.cpu:.1%} of its core, {self.rss_bytes >> 20} MiB RSS",
            f"{self.sent_per_s:.0f} messages/s to it, {self.received_per_s:.0f} from it",
            f"{self.dialled} times it dialled an agent and reached it",
            f"{self.storms} storms ended; the simulated agents took {self.agents_cpu:.2f} cores",
            f"they were late themselves: p99 {self.late_p99_s * 1000:.1f} ms, worst {self.late_worst_s * 1000:.1f}",
            f"the tracker's loop at worst: {self.tracker_late_worst_s * 1000:.1f} ms",
        ]
        for kind, (count, p50_s, p99_s, worst_s) in sorted(self.answers.items()):
            lines.append(f"{kind:>9} {count:7} answers: median {p50_s * 1000:6.1f} ms, "
                         f"p99 {p99_s * 1000:6.1f}, worst {worst_s * 1000:6.1f}")  # fmt: skip
        return "\n".join(lines)


class Crowd:
    """The processes that simulate the agents."""

    def __init__(self, plans: list[Plan], cores: str, environ: dict[str, str]) -> None:
        command = [*strap(), *pinned(cores), sys.executable, "-m", "loadtest.trackerload.agents"]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=environ)
            for _ in plans
        ]  # fmt: skip
        for process, plan in zip(self._processes, plans, strict=True):
            self._say(process, msgspec.json.encode(plan).decode())

    def await_connected(self) -> None:
        """Until every agent is a member."""
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != "connected\n":
                raise RuntimeError("simulated agents ended; their message is above")

    def count(self) -> None:
        """Begin to count."""
        for process in self._processes:
            self._say(process, "")

    def results(self) -> list[dict[str, Any]]:
        """End, and what each process counted."""
        for process in self._processes:
            self._say(process, "")
        found = []
        for process in self._processes:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline()))
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far."""
        times = [psutil.Process(process.pid).cpu_times() for process in self._processes]
        return sum(time.user + time.system for time in times)

    def stop(self) -> None:
        """Kill them."""
        for process in self._processes:
            process.kill()
            process.communicate()

    def _say(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def pinned(cores: str) -> list[str]:
    """Put before a command, it runs on these cores only; root's before everybody else's work."""
    alone = ["chrt", "--rr", "1"] if os.geteuid() == 0 else []
    return ["taskset", "--cpu-list", cores, *alone]


def plans(
    agents: int,
    url: str,
    key_file: Path,
    pushed: dict[str, Any],
    *,
    runs: int,
    seed: int,
    hidden: float = 0.0,
) -> list[Plan]:
    """What each process does: the big storm in the first, small ones in the others."""
    count = min(PROCESSES, max(1, agents // 250))
    small = max(1, SMALL_STORMS * agents // 10_000)
    storms: list[list[int]] = [[] for _ in range(count)]
    storms[0].append(agents // BIG_STORM)
    for n in range(small):
        storms[n % (count - 1) + 1 if count > 1 else 0].append(SMALL_STORM)
    cuts = [agents * n // count for n in range(count + 1)]
    return [
        Plan(url=url, key_file=str(key_file), first=cuts[n], agents=cuts[n + 1] - cuts[n],
             storms=storms[n], ref=pushed["ref"], digest=pushed["digest"].removeprefix("blake3:"), runs=runs,
             reconnects_per_s=RECONNECTS_PER_S / count, hidden=hidden, seed=seed + n)
        for n in range(count)
    ]  # fmt: skip


def measure(
    agents: int,
    seconds: float,
    *,
    runs: int = RUNS,
    settle_s: float = SETTLE_S,
    seed: int = 1,
    hidden: float = 0.0,
) -> Figures:
    """Start all, count for so long, stop all."""
    own, others = cores()
    allow_files(agents + FILES)
    with tempfile.TemporaryDirectory(prefix="p2pt-") as folder:
        root = Path(folder)
        (root / "origin").mkdir()
        origin = (root / "origin").as_uri()
        environ, key = clean_environ(root), write_key(root / "cluster.key")
        make_model(root / "model", MODEL_BYTES, shards=1)
        done = run_command("push", str(root / "model"), "load/model:v1", "--origin", origin, "--json",
                           environ=environ)  # fmt: skip
        pushed = json.loads(done.stdout.strip().splitlines()[-1])
        address = f"127.0.0.1:{free_ports(1)[0]}"
        tracker = Daemon(
            "tracker",
            [*P2PCACHE, "tracker", "--listen", address, "--origin", origin, "--cluster-key-file",
             str(key), "--state-dir", str(root / "tracker")],
            root / "tracker.log", ready=lambda: healthy(f"http://{address}/healthz"),
            environ=environ, prefix=pinned(own),
        )  # fmt: skip
        tracker.start()
        try:
            planned = plans(
                agents, f"http://{address}", key, pushed, runs=runs, seed=seed, hidden=hidden
            )
            return _counted(tracker, planned, others, settle_s, seconds)
        finally:
            tracker.stop()


def _counted(
    tracker: Daemon, planned: list[Plan], others: str, settle_s: float, seconds: float
) -> Figures:
    began = time.monotonic()
    crowd = Crowd(planned, others, os.environ.copy())
    try:
        crowd.await_connected()
        connect_s = time.monotonic() - began
        time.sleep(settle_s)
        crowd.count()
        process, rss = psutil.Process(tracker.pid), 0
        began, cpu, agents_cpu = time.monotonic(), tracker.cpu_s(), crowd.cpu_s()
        while time.monotonic() < began + seconds:
            rss = max(rss, process.memory_info().rss)
            time.sleep(0.5)
        wall = time.monotonic() - began
        cpu, agents_cpu = tracker.cpu_s() - cpu, crowd.cpu_s() - agents_cpu
        results = crowd.results()
        tracker_late_s = worst_lag_s(planned[0].url)
    finally:
        crowd.stop()
    late = [each for r in results for each in r["late"]]
    return Figures(
        agents=sum(plan.agents for plan in planned), seconds=wall, connect_s=connect_s,
        cpu=cpu / wall, rss_bytes=rss, agents_cpu=agents_cpu / wall,
        storms=sum(r["storms"] for r in results), lost=sum(r["lost"] for r in results),
        dialled=sum(r["dialled"] for r in results),
        sent_per_s=sum(r["sent"] for r in results) / wall,
        received_per_s=sum(r["received"] for r in results) / wall,
        answers=_answers(results), late_p99_s=quantile(late, 0.99), late_worst_s=max(late),
        tracker_late_worst_s=tracker_late_s,
    )  # fmt: skip


def _answers(results: list[dict[str, Any]]) -> dict[str, tuple[int, float, float, float]]:
    times: dict[str, list[float]] = {"all": []}
    for result in results:
        for kind, found in result["times"].items():
            times.setdefault(kind, []).extend(found)
            times["all"] += found
    return {
        kind: (len(each), statistics.median(each), quantile(each, 0.99), max(each))
        for kind, each in times.items()
        if each
    }


def worst_lag_s(url: str) -> float:
    """By how much the tracker's loop turned late at worst in the last minute, as its metrics say; seconds."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lag = re.search(r"^p2pcache_tracker_event_loop_lag_seconds (\S+)", text, re.MULTILINE)
    return float(lag[1]) if lag is not None else 0.0


def quantile(values: list[float], share: float) -> float:
    """The value that this share of them doesn't exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def cores() -> tuple[str, str]:
    """One core for the tracker, and the others (the same one where there is only one)."""
    mine = sorted(os.sched_getaffinity(0))
    return str(mine[-1]), ",".join(map(str, mine[:-1] or mine))


def allow_files(wanted: int) -> None:
    """So many descriptors for our children; root may raise the hard limit too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted and os.geteuid() == 0:
        hard = wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted)), hard))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--agents", type=flags.count, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hidden", type=flags.share, default=0.0, metavar="SHARE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=flags.out_file, metavar="FILE")
    wish = parser.parse_args()
    exit_on_signals()
    figures = measure(wish.agents, wish.seconds, seed=wish.seed, hidden=wish.hidden)
    print(figures.table())
    if wish.json is not None:
        wish.json.write_bytes(msgspec.json.encode(figures))
    for text in figures.wrong:
        print(f"WRONG: {text}")
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
