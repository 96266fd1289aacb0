"""What a storm costs the requests of an engine on the seeding node: governor off, then on. Needs root.

One node has the model, serves an engine's requests and gives the model to the others, all behind one
shaped link (network namespaces). Requests come at a fixed pace from another host, and their time
counts from when they were due. Storms with the governor off and on take turns, each with a model
that only the seeding node has.

    python -m loadtest.serving --nodes 4 --rate 100mbit --size 128MiB --turns 2 --json FILE

`--no-psi` hides /proc/pressure from the seeding agent: where other work fills the machine, its stalls
say nothing about the storm, and link and engine are what is measured.
Exit code: 0 done, 1 a pull failed, 2 can't run here.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event
from typing import Any, NamedTuple

from loadtest.kit.daemons import Daemon, StartError, exit_on_signals
from loadtest.kit.flags import count, duration, out_file, rate, size
from loadtest.kit.netns import FabricError, Host, in_namespace
from loadtest.serving.engine import METRIC
from loadtest.storm.arena import Arena, say
from loadtest.storm.plan import Plan
from p2pcache.core.units import parse_rate, parse_size
from p2pcache.errors import P2PCacheError, UsageError

ENGINE_PORT = 8000
REQUESTS_PER_S = 25.0  # enough for a p99 of each storm, too few to be a load of its own
IDLE_S = 8.0
LOOK_S = 1.0  # at the governor, as often as it decides
LIMIT_S = 300.0  # of one storm
FAST = 125e6  # bytes per second of the seeding node while it gets its copies
HIDE_PSI = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none /proc/pressure && exec "$@"',
    "sh",
]


class Phase(NamedTuple):
    """One stretch of requests."""

    name: str
    seconds: float  # until the last node had the model; of the idle phase: its length
    latencies: list[float]  # seconds, each from when the request was due
    shares: list[float]  # of full speed, once a second
    causes: list[str]
    origin_bytes: int = 0  # that the storm read from the origin: 0, the seeding node has it all
    seed_copies: float = 0.0  # of the model, that the seeding node sent

    def told(self) -> dict[str, Any]:
        """As JSON."""
        cuts = statistics.quantiles(self.latencies, n=100)
        return {
            "phase": self.name, "seconds": round(self.seconds, 2), "requests": len(self.latencies),
            "p50_ms": round(cuts[49] * 1e3, 1), "p99_ms": round(cuts[98] * 1e3, 1),
            "worst_ms": round(max(self.latencies) * 1e3, 1), "origin_bytes": self.origin_bytes,
            "seed_copies": round(self.seed_copies, 2),
            "share_mean": round(statistics.mean(self.shares), 3) if self.shares else None,
            "share_least": min(self.shares, default=None),
            "causes": {cause: self.causes.count(cause) for cause in sorted({*self.causes} - {""})},
        }  # fmt: skip


class Requests:
    """A user of the engine: one request after the other, due at a fixed pace."""

    def __init__(self, host: Host, engine: Host) -> None:
        self._engine = engine
        self._host = host

    def during(self, work: Callable[[], Any]) -> tuple[list[float], Any]:
        """Latencies of the requests that were due while `work` ran, and what it returned."""
        over = Event()
        with ThreadPoolExecutor(1) as thread:
            loop: Future[list[float]] = thread.submit(
                in_namespace, self._host, lambda: self._ask(over)
            )
            try:
                result = work()
            finally:
                over.set()
            return loop.result(), result

    def _ask(self, over: Event) -> list[float]:
        connection = http.client.HTTPConnection(self._engine.address, ENGINE_PORT, timeout=30)
        latencies: list[float] = []
        due = time.monotonic()
        while not over.is_set():
            over.wait(max(0.0, due - time.monotonic()))
            connection.request("GET", "/answer")
            connection.getresponse().read()
            latencies.append(time.monotonic() - due)
            due += 1 / REQUESTS_PER_S
        connection.close()
        return latencies


class Stage:
    """The arena, with an engine on its first node."""

    def __init__(self, arena: Arena, options: argparse.Namespace) -> None:
        self._arena = arena
        self._seed, *self._takers = arena.agents
        self._host = arena.node_hosts[0]
        self._rate = arena.plan.rate
        self._size = arena.plan.size_bytes
        self._plain = list(self._seed.command)
        self._latency = options.latency
        self._hide_psi = HIDE_PSI if options.no_psi else []
        users = arena.fabric.add("users")
        self.engine = Daemon(
            "engine",
            [sys.executable, "-m", "loadtest.serving.engine", str(arena.work), str(ENGINE_PORT)],
            arena.work / "engine.log", prefix=self._host.prefix,
            ready=lambda: in_namespace(self._host, self._answers),
        )  # fmt: skip
        self._requests = Requests(users, self._host)

    def _answers(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", ENGINE_PORT, timeout=1)
            connection.request("GET", "/answer")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def idle(self) -> Phase:
        """Requests while nobody pulls."""
        latencies, _ = self._requests.during(lambda: time.sleep(IDLE_S))
        return Phase("idle", IDLE_S, latencies, [], [])

    def storm(self, governor: str, ref: str) -> Phase:
        """Give the seeding node a model, then have all others pull it."""
        self._arena.fabric.shape(self._host, FAST)
        # A model of its own: the others must not have a byte of it.
        self._arena.plan = replace(self._arena.plan, seed=self._arena.plan.seed + 1)
        self._arena.push(self._size, ref)
        for _ in self._seed.client.pull(ref):
            pass
        self._arena.fabric.shape(self._host, self._rate)
        self._restart(governor)
        shares, causes = [], []

        def look() -> None:
            state = self._seed.client.status()["governor"]
            shares.append(float(state["share"]))
            causes.append(str(state["cause"]))

        latencies, (seconds, origin) = self._requests.during(lambda: self._pull_all(ref, look))
        copies = int(self._seed.client.status()["bytes"]["served"]) / self._size
        return Phase(governor, seconds, latencies, shares, causes, origin, copies)

    def _pull_all(self, ref: str, look: Callable[[], None]) -> tuple[float, int]:
        began = time.monotonic()

        def pull(number: int) -> tuple[float, int]:
            *_, done = self._takers[number].client.pull(ref)
            return time.monotonic() - began, int(done["bytes_origin"])

        with ThreadPoolExecutor(len(self._takers)) as threads:
            pulls = [threads.submit(pull, number) for number in range(len(self._takers))]
            while wait(pulls, timeout=LOOK_S).not_done:
                look()
                if time.monotonic() - began > LIMIT_S:
                    raise StartError(f"the storm isn't over after {LIMIT_S:.0f} s")
            ends = [one.result() for one in pulls]
        return max(seconds for seconds, _ in ends), sum(origin for _, origin in ends)

    def _restart(self, governor: str) -> None:
        self._seed.stop()
        place = self._plain.index(sys.executable)
        flags = [
            "--governor", governor, "--link-bytes-per-s", str(round(self._rate)),
            "--engine-metrics", f"http://127.0.0.1:{ENGINE_PORT}/metrics",
            "--engine-metric", METRIC, "--engine-latency-s", self._latency,
        ]  # fmt: skip
        self._seed.command = [
            *self._plain[:place], *self._hide_psi, *self._plain[place:], *flags,
        ]  # fmt: skip
        self._seed.start()


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All phases, in the order in which they ran."""
    plan = Plan(
        nodes=options.nodes, rate=parse_rate(options.rate), origin_rate=FAST,
        size_bytes=parse_size(options.size), rivals=(), faults=(), seed=0, logs="", agent_flags=(),
    )  # fmt: skip
    with Arena(plan, proxy=False) as arena:
        arena.start()
        stage = Stage(arena, options)
        stage.engine.start()
        try:
            phases = [stage.idle()]
            for turn in range(options.turns):
                for governor in ("off", options.governor):
                    phases.append(stage.storm(governor, f"serving/m{turn}-{governor}:v1"))
                    say(json.dumps(phases[-1].told()))
        finally:
            stage.engine.stop()
    return [phase.told() for phase in phases]


def main(argv: list[str] | None = None) -> int:
    """Run it and print a line per phase."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.serving", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--nodes", type=int, default=4, help="the seeding one included [4]")
    parser.add_argument("--rate", type=rate, default="100mbit", help="each node's link [100mbit]")
    parser.add_argument("--size", type=size, default="128MiB", help="of each model [128MiB]")
    parser.add_argument("--turns", type=count, default=2, help="of off and on [2]")
    parser.add_argument(
        "--governor", default="auto", choices=["auto", "on"], help="when it is on [auto]"
    )
    parser.add_argument(
        "--latency", type=duration, default="250ms", help="that the engine should have [250ms]"
    )
    parser.add_argument("--no-psi", action="store_true", help="by link and engine alone")
    parser.add_argument("--json", type=out_file, help="write the phases here")
    options = parser.parse_args(argv)
    if options.nodes < 2:
        parser.error("argument --nodes: at least 2, one seeds and one pulls")
    exit_on_signals()
    try:
        phases = run(options)
    except (UsageError, FabricError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2
    except (P2PCacheError, StartError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 1
    for phase in phases:
        print("  ".join(f"{key}={value}" for key, value in phase.items()))
    if options.json:
        options.json.write_text(json.dumps(phases, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
