"""A whole cluster of real processes on loopback: tracker, agents, and the command line against them."""

import contextlib
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from loadtest.kit.daemons import P2PCACHE, Daemon, stop_all, wait_until
from p2pcache.core.protocol.address import join
from p2pcache.errors import P2PCacheError
from p2pcache.io.http.client import AgentClient

COMMAND_S = 60.0  # a command of a test that takes longer hangs
HEALTH_S = 1.0
MEMBERS_S = 60.0  # clients of S3 take a second of CPU to import, and CI machines are busy


class Agent(Daemon):
    """A running agent and what belongs to it."""

    def __init__(self, name: str, home: Path, flags: Sequence[str], **more: Any) -> None:
        """`home` gets the agent's cache, socket and log; `flags` are more flags of `p2pcache agent`."""
        self.home = home
        self.cache_dir = home / "cache"
        self.socket = home / "agent.sock"
        self.url = f"unix://{self.socket}"
        self.client = AgentClient(self.url)
        home.mkdir(parents=True, exist_ok=True)
        command = [*P2PCACHE, "agent", "--cache-dir", str(self.cache_dir),
                   "--socket", str(self.socket), *flags]  # fmt: skip
        super().__init__(name, command, home / "agent.log", ready=self.answers, **more)

    def answers(self) -> bool:
        """Whether its API answers."""
        try:
            self.client.status()
        except P2PCacheError:
            return False
        return True

    def ready(self) -> bool:
        """Whether it has met its tracker and opened the origin."""
        try:
            return bool(self.client.status()["ready"])
        except P2PCacheError:
            return False

    def tree(self, path: str) -> Path:
        """The directory of a pulled model, from a path relative to the models directory."""
        return self.cache_dir / "models" / path


class Cluster:
    """A tracker and agents on loopback. A context manager: leaving it stops and removes all."""

    def __init__(
        self,
        origin: str,
        *,
        agents: int = 2,
        tracker: bool = True,
        trackers: int = 1,
        environ: dict[str, str] | None = None,
        agent_flags: Sequence[str] = (),
        leash: bool = True,
        folder: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Choose ports and write the key; nothing is started yet.

        Args:
            origin: URL of the storage.
            agents: how many.
            tracker: with one, or every agent alone.
            trackers: how many; of several, one is active, the first one at first.
            environ: added to the daemons' and commands' environment (storage credentials).
            agent_flags: more flags for each agent.
            leash: the daemons die with this process.
            folder: where the cluster's directory is made; None: among the temporary files.
            host: this machine's address on which all listen.
        """
        self.origin = origin
        self.root = Path(
            tempfile.mkdtemp(prefix="p2pc-", dir=folder)
        )  # short: a socket's path has 107 bytes
        self.environ = clean_environ(self.root) | (environ or {})
        self.key_file = write_key(self.root / "cluster.key")
        self._leash = leash
        self._agent_flags = list(agent_flags)
        ports = free_ports(agents + trackers)
        self._tracked = tracker
        self._host = host
        urls = [f"http://{join(host, port)}" for port in ports[:trackers]]
        self.tracker_url = ",".join(urls)
        several = ["--lease", "origin"] if trackers > 1 else []
        self.trackers = [self._tracker(port, n, several) for n, port in enumerate(ports[:trackers])]
        self.tracker = self.trackers[0]
        self.agents = [self._agent(n, port) for n, port in enumerate(ports[trackers:])]

    def _tracker(self, port: int, number: int, flags: list[str], /) -> Daemon:
        name = f"tracker-{number + 1}" if number else "tracker"
        command = [*P2PCACHE, "tracker", "--listen", join(self._host, port), "--origin", self.origin,
                   "--cluster-key-file", str(self.key_file), "--state-dir", str(self.root / name), *flags]  # fmt: skip
        url = f"http://{join(self._host, port)}/healthz"
        return Daemon(name, command, self.root / f"{name}.log", ready=lambda: healthy(url),
                      environ=self.environ, leash=self._leash)  # fmt: skip

    def _agent(self, number: int, port: int) -> Agent:
        source = ["--tracker", self.tracker_url] if self._tracked else ["--origin", self.origin]
        flags = ["--listen", join(self._host, port), "--cluster-key-file", str(self.key_file),
                 "--min-free-bytes", "0", *source, *self._agent_flags]  # fmt: skip
        name = f"agent-{number + 1}"
        return Agent(name, self.root / name, flags, environ=self.environ, leash=self._leash)

    def add_agent(self, *flags: str) -> Agent:
        """Describe one more agent, with more flags; the caller starts it."""
        agent = self._agent(len(self.agents), free_ports(1)[0])
        agent.command += flags
        self.agents.append(agent)
        return agent

    def start(self) -> None:
        """Start all and wait until every agent has met the tracker and opened the origin.

        Raises:
            StartError: one of them doesn't start.
        """
        for tracker in self.trackers if self._tracked else ():
            tracker.start()
        for agent in self.agents:
            agent.start(wait=False)
        for agent in self.agents:
            agent.wait_ready()
        wait_until(lambda: all(agent.ready() for agent in self.agents), MEMBERS_S)

    def run(
        self,
        *arguments: str,
        agent: int | None = 0,
        code: int | None = 0,
        environ: dict[str, str] | None = None,
        limit_s: float = COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run one `p2pcache` command.

        Args:
            arguments: of the command.
            agent: which agent it talks to; None: none is named.
            code: the exit code that must come; None: any.
            environ: added to the environment.
            limit_s: after so long it is killed.
        """
        env = self.environ | ({} if agent is None else {"P2PCACHE_AGENT": self.agents[agent].url})
        return run_command(*arguments, environ=env | (environ or {}), code=code, limit_s=limit_s)

    def pull_everywhere(self, ref: str) -> list[dict[str, Any]]:
        """Pull on every agent at once, each by the command line; the `done` events."""
        with ThreadPoolExecutor(max(1, len(self.agents))) as pool:
            jobs = [
                pool.submit(self.run, "pull", ref, "--json", agent=n)
                for n in range(len(self.agents))
            ]
            return [last_event(job.result().stdout) for job in jobs]

    def stop(self) -> None:
        """Stop all daemons, agents first, and remove their directories."""
        stop_all([*self.agents])
        stop_all([*self.trackers])
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            for daemon in (*self.trackers, *self.agents):
                print(f"--- {daemon.name}\n{daemon.tail()}")
        self.stop()


def run_command(
    *arguments: str,
    environ: dict[str, str],
    code: int | None = 0,
    limit_s: float = COMMAND_S,
    prefix: Sequence[str] = (),
    program: Sequence[str] = P2PCACHE,
) -> subprocess.CompletedProcess[str]:
    """Run one `p2pcache` command with exactly this environment and check its exit code.

    Args:
        arguments: of the command.
        environ: all of it.
        code: the exit code that must come; None: any.
        limit_s: after so long it is killed.
        prefix: put before the command, for example `ip netns exec NAME`.
        program: what is run instead of `p2pcache`.

    Raises:
        AssertionError: another exit code; with what the command printed.
    """
    done = subprocess.run(
        [*prefix, *program, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environ,
        timeout=limit_s,
        check=False,
    )
    if code is not None and done.returncode != code:
        raise AssertionError(
            f"p2pcache {' '.join(arguments)} ended with {done.returncode}, expected {code}\n"
            f"stdout: {done.stdout[-2000:]}\nstderr: {done.stderr[-2000:]}"
        )
    return done


def last_event(stdout: str) -> dict[str, Any]:
    """The last line of NDJSON output."""
    event: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
    return event


def clean_environ(root: Path) -> dict[str, str]:
    """Our environment without anything that would change what p2pcache or the S3 client does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("P2PCACHE_", "AWS_"))}
    return kept | {"P2PCACHE_CONFIG": str(_empty_config(root)), "XDG_CACHE_HOME": str(root / "xdg")}


def _empty_config(root: Path) -> Path:
    """A settings file that sets nothing, so that the machine's own /etc/p2pcache doesn't count."""
    path = root / "config.toml"
    path.touch()
    return path


def write_key(path: Path) -> Path:
    """Write a new cluster key that only we may read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path


def free_ports(count: int) -> list[int]:
    """Distinct loopback TCP ports that nobody listened on a moment ago.

    They lie below the kernel's range of outgoing ports, so that no connection takes one meanwhile.
    """
    found: list[int] = []
    dice = random.Random()  # processes that start together must not try the same ones
    while len(found) < count:
        port = dice.randrange(22_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in found:
                found.append(port)
    return found


def healthy(url: str) -> bool:
    """Whether an HTTP GET of `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_S) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def metric_values(url: str, name: str) -> list[tuple[dict[str, str], float]]:
    """All samples of one metric that a daemon tells at `url`: labels and value."""
    with urllib.request.urlopen(url, timeout=HEALTH_S) as response:
        text = response.read().decode()
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]
