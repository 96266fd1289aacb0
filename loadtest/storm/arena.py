"""The stage of a storm: an S3 server, a tracker and N agents, each in its own namespace."""

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from unittest import mock

from loadtest.kit.cluster import (
    Agent,
    clean_environ,
    healthy,
    metric_values,
    run_command,
    write_key,
)
from loadtest.kit.daemons import P2PCACHE, Daemon, stop_all, wait_until
from loadtest.kit.goodput import goodput
from loadtest.kit.models import make_model
from loadtest.kit.netns import Fabric, Host, in_namespace, mount_small_disk
from loadtest.storm.origin import OriginServer
from loadtest.storm.plan import Links, Plan
from p2pcache.io.origins import open_origin

TRACKER_PORT = 7400
AGENT_PORT = 7401
READY_S = 60.0  # sixteen interpreters start on two cores, and more in
READY_NODE_S = 3.0  # for each: one takes a second of a core, which others may share
REF = "storm/model:v1"
TENURE_KEY = "p2pcache/v1/trackers/p2pcache-tracker"  # of the setting lease_name's default
LEASE_ENDS = "p2pcache_tracker_lease_ends_total"
COARSE = [sys.executable, "-m", "loadtest.kit.coarse"]
# Groups of hosts: `split` cuts RIGHT from LEFT, and TRACKER is the active one of two trackers.
CORE, LEFT, RIGHT, TRACKER = 0, 1, 2, 3
STOP_S = 5.0  # what they still upload to each other is of no interest


class Arena:
    """Everything that a storm runs on. A context manager; leaving it removes all of it."""

    def __init__(
        self,
        plan: Plan,
        *,
        proxy: bool,
        liars: frozenset[int] = frozenset(),
        standby: bool = False,
    ) -> None:
        """Describe it.

        Args:
            plan: sizes and rates.
            proxy: put the fault proxy before the S3 server.
            liars: nodes whose agents serve corrupt chunks.
            standby: two trackers, which agree by a record in the origin; the first is active at first.
        """
        self.plan = plan
        self._proxy = proxy
        self._liars = liars
        self._standby = standby
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        plan = self.plan
        self.fabric = self._stack.enter_context(Fabric(plan.delay_s, plan.loss))
        self.work = self.fabric.work
        self.origin_host = self.fabric.add("origin", rate_bytes_s=plan.origin_rate, group=CORE)
        names = {"tracker": TRACKER, "standby": LEFT} if self._standby else {"tracker": LEFT}
        self.tracker_hosts = {
            name: self.fabric.add(name, group=group) for name, group in names.items()
        }
        for _ in range(plan.racks):
            self.fabric.add_rack(plan.uplink)
        self.node_hosts = [
            self.fabric.add(
                f"n{n}", rate_bytes_s=plan.rate_of(n), group=self._group(n), rack=plan.rack_of(n)
            )
            for n in range(plan.nodes)
        ]
        self.origin = OriginServer(
            self.origin_host,
            self.work / "origin",
            proxy=self._proxy,
            latency_s=plan.origin_latency_s,
        )
        self._stack.enter_context(self.origin)
        self.environ = clean_environ(self.work) | self.origin.environ
        self._key = write_key(self.work / "cluster.key")
        self.trackers = [self._tracker(*named) for named in self.tracker_hosts.items()]
        self.tracker = self.trackers[0]
        self.agents = [self._agent(n, host) for n, host in enumerate(self.node_hosts)]
        self._stack.callback(self._save_logs)
        self._stack.callback(stop_all, [*self.agents, *self.trackers], STOP_S)

    def _save_logs(self) -> None:
        if self.plan.logs:
            folder = Path(self.plan.logs)
            folder.mkdir(parents=True, exist_ok=True)
            for daemon in (*self.trackers, *self.agents):
                (folder / f"{daemon.name}.log").write_text(daemon.log())

    def _group(self, node: int) -> int:
        return LEFT if node < (self.plan.nodes + 1) // 2 else RIGHT

    def _tracker(self, name: str, host: Host) -> Daemon:
        several = ["--lease", "origin"] if self._standby else []
        command = [*P2PCACHE, "tracker", "--listen", f"{host.address}:{TRACKER_PORT}",
                   "--origin", self.origin.url, "--cluster-key-file", str(self._key),
                   "--state-dir", str(self.work / name), *several, *self.plan.tracker_flags]  # fmt: skip
        url = f"http://{host.address}:{TRACKER_PORT}/healthz"
        return Daemon(name, command, self.work / f"{name}.log", environ=self.environ,
                      ready=lambda: in_namespace(host, lambda: healthy(url)),
                      prefix=host.prefix)  # fmt: skip

    @property
    def _tracker_url(self) -> str:
        return ",".join(
            f"http://{host.address}:{TRACKER_PORT}" for host in self.tracker_hosts.values()
        )

    def lease_ends(self) -> dict[str, int]:
        """How many leases have ended so far, by why, as the last tracker counts that lives; {} without one."""
        hosts = zip(self.tracker_hosts.values(), self.trackers, strict=True)
        living = [host for host, tracker in hosts if tracker.alive]
        if not living:
            return {}
        url = f"http://{living[-1].address}:{TRACKER_PORT}/metrics"
        found = in_namespace(living[-1], lambda: metric_values(url, LEASE_ENDS))
        return {labels["reason"]: int(value) for labels, value in found}

    def forget_tenure(self) -> None:
        """Delete the record of the active tracker: the standby takes over, and for a moment two are active."""
        with mock.patch.dict(os.environ, self.origin.environ):
            origin = open_origin(self.origin.url)
            in_namespace(self.origin_host, lambda: origin.delete(TENURE_KEY))
            origin.close()

    def _agent(self, number: int, host: Host) -> Agent:
        flags = ["--listen", f"{host.address}:{AGENT_PORT}", "--tracker", self._tracker_url,
                 "--cluster-key-file", str(self._key), "--min-free-bytes", "0",
                 *self._label(number), *self.plan.agent_flags]  # fmt: skip
        name = f"n{number}"
        # A variable, not another directory: the agent's own paths stay those of its neighbours.
        other = {"PYTHONPATH": self.plan.other_code} if self.plan.is_other(number) else {}
        agent = Agent(
            name, self.work / name, flags, environ=self.environ | other, prefix=host.prefix
        )
        if other:
            # Without -P, python looks for code in the working directory first.
            agent.command.insert(agent.command.index("-m"), "-P")
        if number in self._liars:
            place = agent.command.index("p2pcache.cli.main")
            agent.command[place] = "loadtest.kit.liar"
        return agent

    def _label(self, node: int) -> list[str]:
        rack = self.plan.rack_of(node)
        return ["--rack", f"rack-{rack}"] if rack and self.plan.labelled else []

    def start(self) -> None:
        """Start tracker and agents, and wait until each has met the tracker and opened the origin."""
        for tracker in self.trackers:
            tracker.start()
        for agent in self.agents:
            agent.start(wait=False)
        limit_s = max(READY_S, READY_NODE_S * len(self.agents))
        for agent in self.agents:
            agent.wait_ready(limit_s)
        wait_until(lambda: all(agent.ready() for agent in self.agents), limit_s)

    def push(self, size_bytes: int, ref: str = REF, seed: int | None = None) -> Path:
        """Make a model and push it from the origin's own host, past the shaper; its directory."""
        source = self.work / f"model-{ref.replace('/', '-').replace(':', '-')}"
        plan = self.plan
        make_model(source, size_bytes, shards=plan.shards, seed=plan.seed if seed is None else seed)
        program = [*COARSE, str(plan.run_bytes)] if plan.run_bytes else P2PCACHE
        self.command(self.origin_host, "push", str(source), ref, "--quiet", program=program)
        return source

    def command(
        self, host: Host, *arguments: str, limit_s: float = 300.0, program: Sequence[str] = P2PCACHE
    ) -> str:
        """Run a `p2pcache` command on a host, without a daemon; its stdout."""
        done = run_command(
            *arguments, environ=self.client_environ, limit_s=limit_s, prefix=host.prefix,
            program=program,
        )  # fmt: skip
        return done.stdout

    @property
    def client_environ(self) -> dict[str, str]:
        """The environment of a `p2pcache` command that has no daemon and reads the origin itself."""
        return self.environ | {"P2PCACHE_ORIGIN": self.origin.url}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of every part that lives, by name."""
        daemons = [d for d in (*self.trackers, *self.agents) if d.alive]
        return {d.name: d.cpu_s() for d in daemons} | {"origin": self.origin.cpu_s()}

    def sent_again(self) -> int:
        """TCP segments that all nodes have sent again so far, the origin not counted."""
        return sum(map(self.fabric.sent_again, self.node_hosts))

    def small_disk(self, node: int, size_bytes: int) -> None:
        """Give a node's cache a file system of its own, before the agents start."""
        mount_small_disk(self.agents[node].cache_dir, size_bytes)

    def measure_links(self) -> Links:
        """Goodput of one flow between two nodes, and what the origin can send to all of them."""
        plan = self.plan
        quickest = sorted(range(plan.nodes), key=plan.rate_of, reverse=True)  # stable: n0 first
        hosts = [self.node_hosts[node] for node in quickest]
        narrower = quickest[min(1, plan.nodes - 1)]
        node = goodput(hosts[0], [hosts[1]]) if len(hosts) > 1 else goodput(self.origin_host, hosts)
        node *= plan.rate / plan.rate_of(narrower)
        flows, reached = 0, 0.0
        while flows < len(hosts) and reached < plan.origin_rate:
            reached += plan.rate_of(quickest[flows])
            flows += 1
        uplink = goodput(hosts[0], [hosts[-1]]) if plan.racks > 1 else math.inf
        return Links(node=node, origin=goodput(self.origin_host, hosts[:flows]), uplink=uplink)


def say(text: str) -> None:
    """Progress of the storm, for the person who waits."""
    print(text, file=sys.stderr, flush=True)
