"""The cluster that a soak torments: eight agents, a tracker, S3 behind a proxy that can misbehave."""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import wait_until
from loadtest.kit.faultproxy import FaultProxy
from loadtest.kit.models import check_tree, make_model
from loadtest.kit.seaweed import Seaweed
from loadtest.loader_faults import small_disk
from loadtest.soak.plan import AGENTS, LIAR, ORIGIN_FAULTS, SMALL, Action
from p2pcache.errors import (
    Busy,
    Conflict,
    IntegrityError,
    Lost,
    NoSpace,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    TimedOut,
    Unreachable,
)

ORIGIN_RATE = (
    16_000_000  # bytes/s of each agent: a pull takes a second or two, so faults hit its middle
)
RECORD_BYTES = 64 << 20  # of an agent: its last few hundred pulls
# A pull is given up after 90 s without a byte. No fault of a soak lasts for so long, and each is got over.
STUCK = "no byte came"
ABANDON_S = 2.0
SMALL_FILES = 300  # of every third model, beside its weights
MODEL_BYTES = (2 << 20, 6 << 20, 24 << 20)
SMALL_DISK_BYTES = 40 << 20  # one model of 24 MiB fits, two don't
LIVE_MODELS = 6  # that are pulled; older ones stay in storage
READY_S = 60.0
ENDS = (0, 143, -signal.SIGTERM)  # in order; or in the middle of its start
# What a pull may end with while faults are about. Wrong bytes (6) may come from a liar alone, and only
# if it is the last hope; anything else is a finding.
EXCUSED = (Unreachable, Busy, Lost, OriginUnavailable, TimedOut)


@dataclass(frozen=True, slots=True)
class Model:
    """One pushed model."""

    ref: str
    source: Path


class Scene:
    """A context manager. All its methods but `pull`, `push` and `change` belong to the main thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = root / "records"  # what each pull's scheduler heard
        self.models: list[Model] = []
        self.tally: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self.storage = Seaweed(root / "s3")
        self.proxy = FaultProxy(root / "proxy", ("127.0.0.1", self.storage.port))
        self._locks = [threading.Lock() for _ in range(AGENTS)]  # who compares, and who removes
        self._lying = False
        self.cluster: Cluster

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.storage.stop)
            self.storage.start()
            stack.enter_context(self.proxy)
            environ = self.storage.env() | {
                "AWS_ENDPOINT_URL": self.proxy.endpoint, "P2PCACHE_ABANDON_AFTER_S": str(ABANDON_S),
                "P2PCACHE_ORIGIN_BYTES_PER_S": str(ORIGIN_RATE),
            }  # fmt: skip
            self.records.mkdir()
            self.cluster = Cluster(self.storage.url(), agents=AGENTS, environ=environ)
            stack.callback(self.cluster.stop)
            for agent in self.cluster.agents:
                agent.command += ["--record-dir", str(self.records / agent.name)]
                agent.command += ["--record-bytes", str(RECORD_BYTES)]
            if os.geteuid() == 0:
                stack.enter_context(small_disk(self.agents[SMALL].cache_dir, SMALL_DISK_BYTES))
            self.cluster.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._stack.close()

    @property
    def agents(self) -> list[Agent]:
        """All of them."""
        return self.cluster.agents

    # -- work --------------------------------------------------------------------------------------

    def push(self, seed: int, agent: int | None) -> str:
        """A new model; through an agent, or straight to storage."""
        folder = self.root / "models" / f"m{seed}"
        size = MODEL_BYTES[seed % len(MODEL_BYTES)]
        make_model(folder, size, shards=1 + seed % 2, seed=seed)
        if seed % 3 == 0:
            for n in range(SMALL_FILES):
                (folder / f"part-{n:04d}.bin").write_bytes(f"{seed}/{n}".encode() * (1 + n % 97))
        ref = f"soak/m{seed}:v1"
        flags = ["--origin", self.cluster.origin] if agent is None else []
        done = self.cluster.run(
            "push", str(folder), ref, "--quiet", *flags, agent=agent, code=None, limit_s=120
        )
        if done.returncode == 0:
            self.models.append(Model(ref, folder))
            for old in self.models[:-LIVE_MODELS]:
                self.models.remove(old)
            return "pushed"
        return f"push: code {done.returncode}" + (
            "" if done.returncode in (5, 7, 8, 9) else f" BROKEN {done.stderr.strip()}"
        )

    def pull(self, number: int, model: Model, *, leave_after_s: float | None = None) -> str:
        """Pull and compare every file; or leave in the middle."""
        agent, began, path = self.agents[number], time.monotonic(), ""
        try:
            with contextlib.closing(agent.client.pull(model.ref)) as events:
                for event in events:
                    if leave_after_s is not None and time.monotonic() > began + leave_after_s:
                        return "left"
                    path = event["path"] if event["event"] == "done" else path
            with self._locks[number]:
                tree = agent.tree(path)
                if not tree.is_dir():
                    return "removed before it was compared"
                check_tree(tree, model.source)
        except P2PCacheError as error:
            return self._judged(number, error)
        return "right"

    def change(self, number: int, what: str, model: Model) -> str:
        """Remove, prune or verify; nobody compares meanwhile."""
        client = self.agents[number].client
        try:
            with self._locks[number]:
                if what == "remove":
                    client.remove(model.ref)
                elif what == "prune":
                    client.prune(dry_run=False, everything=True)
                else:
                    list(client.verify(model.ref))
        except NotFound:
            return f"{what}: nothing there"
        except P2PCacheError as error:
            if error.exit_code == 1 or isinstance(error, IntegrityError):
                return f"BROKEN {what}: {type(error).__name__}: {error}"
            return f"{what}: {type(error).__name__}"
        return what

    def _judged(self, number: int, error: P2PCacheError) -> str:
        name = type(error).__name__
        small = number == SMALL and isinstance(error, NoSpace)
        removed = isinstance(error, Conflict) and "was removed while" in str(error)
        stuck = isinstance(error, Unreachable) and STUCK in str(error)
        if (isinstance(error, EXCUSED) and not stuck) or small or removed:
            return f"{name}: {error}"
        return f"BROKEN {name}: {error}"

    # -- faults ------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.agents[number].kill()

    def terminate(self, number: int) -> None:
        """SIGTERM; its end is awaited when it is started again."""
        self.thaw(number)
        self.agents[number].terminate()

    def revive(self, number: int) -> None:
        """Start it again; the liar tells the truth in every other life."""
        agent = self.agents[number]
        self.thaw(number)
        if agent.alive:  # it was terminated, or another order has started it a moment ago
            code = agent.stop()
            if code not in ENDS:
                self.tally[f"BROKEN {agent.name} ended with {code} on SIGTERM"] += 1
        if number == LIAR:
            self._lying = not self._lying
            module = "loadtest.kit.liar" if self._lying else "p2pcache.cli.main"
            agent.command[agent.command.index("-m") + 1] = module
        agent.start(wait=False)

    def freeze(self, number: int) -> None:
        """SIGSTOP: as if its network were cut in both directions."""
        if self.agents[number].alive:
            os.kill(self.agents[number].pid, signal.SIGSTOP)

    def thaw(self, number: int | None = None) -> None:
        """Go on."""
        for agent in self.agents if number is None else [self.agents[number]]:
            if agent.alive:
                os.kill(agent.pid, signal.SIGCONT)

    def origin_fault(self, action: Action) -> None:
        """Storage misbehaves for a while."""
        assert action.detail in ORIGIN_FAULTS
        self.proxy.fault(action.detail, seconds=action.seconds, delay=0.5)

    def tracker_again(self) -> None:
        """Start the tracker, if it doesn't run."""
        if not self.cluster.tracker.alive:
            self.cluster.tracker.start(wait=False)

    def storage_again(self) -> None:
        """Start storage, if it doesn't run."""
        if not self.storage.running:
            self.storage.start()

    # -- rest --------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults, and wait until everybody is well."""
        self.proxy.clear()
        self.thaw()
        self.storage_again()
        self.tracker_again()
        if self._lying:
            self.terminate(LIAR)
            self.revive(LIAR)
        for agent in self.agents:
            if not agent.alive:
                agent.start(wait=False)
        wait_until(lambda: all(agent.ready() for agent in self.agents), READY_S)

    def forget_sources(self) -> None:
        """Sources of models that nobody pulls any more."""
        live = {model.source for model in self.models}
        for folder in (self.root / "models").iterdir():
            if folder not in live:
                shutil.rmtree(folder)
