"""Loads of a model that arrives while things go wrong: each must give the right bytes or a clear error.

Real daemons on loopback, one small model, many loads; after each the agent forgets the model.

| kind | what happens while the model is loaded |
|---|---|
| calm | nothing |
| killed | the agent gets SIGKILL at a random moment and is started again |
| gone | the same, and it stays away: the loader goes on from what is on disk and from the origin |
| liar | the only peer that has the model serves wrong bytes |
| slow | the only peer that has the model serves at a tenth of the speed |
| full | the disk is full in the middle of it (root: a small file system) |

    python -m loadtest.loader_faults --loads 1000 --seed 1

Exit code: 0 all held; 1 wrong bytes, an error of another tree, a hang, or an error where none is due.
"""

import argparse
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import p2pcache
from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import wait_until
from loadtest.kit.flags import count
from p2pcache.errors import NoSpace, P2PCacheError, Unreachable
from p2pcache.io.models.arriving_dir import FOLDER
from p2pcache.loader.source import attachment

KINDS = ("calm", "killed", "gone", "liar", "slow", "full")
REF = "faults/m:v1"
TENSORS, TENSOR_BYTES = 24, 256 << 10
ORIGIN_RATE = 12_000_000  # bytes/s: a calm load takes about half a second, so faults hit its middle
SLOW_RATE = 1_500_000
SMALL_DISK_BYTES = 4 << 20  # the model has 6 MiB
HANG_S = 90.0  # a load that takes longer hangs
GONE_S = 1.0  # instead of attachment.REATTACH_S, for those who wait in vain
FORGET_S = 15.0


@dataclass(slots=True)
class Tally:
    """How the loads of one kind ended."""

    right: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # what must never happen
    slowest_s: float = 0.0


@dataclass(slots=True)
class Load:
    """One load on a thread of its own: daemons must be started on the main thread."""

    agent: str
    fetch: Any
    found: dict[str, bytes] = field(default_factory=dict)
    error: BaseException | None = None

    def run(self) -> None:
        """All tensors, held to the end."""
        try:
            tensors = p2pcache.load(REF, framework="raw", agent=self.agent, fetch=self.fetch)
            self.found = {name: bytes(tensor.data) for name, tensor in tensors.items()}
        except BaseException as error:  # noqa: BLE001 - it is judged
            self.error = error


def make_model(folder: Path, seed: int) -> dict[str, bytes]:
    """One file of equal tensors; their bytes by name."""
    dice = random.Random(seed)
    bodies = {f"t{i:02d}": dice.randbytes(TENSOR_BYTES) for i in range(TENSORS)}
    table = {
        name: {"dtype": "U8", "shape": [TENSOR_BYTES],
               "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES]}
        for i, name in enumerate(bodies)
    }  # fmt: skip
    header = json.dumps(table).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"".join(bodies.values()))
    return bodies


class Scene:
    """A cluster for one kind of fault. A context manager."""

    def __init__(self, kind: str, root: Path, seed: int) -> None:
        """Nothing is started yet; `root` gets model, origin and the small disk."""
        self.kind = kind
        self._root = root
        self._stack = contextlib.ExitStack()
        self._dice = random.Random(f"{kind}/{seed}")
        self.bodies = make_model(root / "model", seed)
        (root / "origin").mkdir()
        self._origin = (root / "origin").as_uri()
        self.agent: Agent

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: contextlib.ExitStack) -> None:
        peers = self.kind in ("liar", "slow")
        environ = {"P2PCACHE_ABANDON_AFTER_S": "0.3"}
        cluster = Cluster(self._origin, agents=0, tracker=peers, environ=environ)
        stack.callback(cluster.stop)
        cluster.run(
            "push", str(self._root / "model"), REF, "--origin", self._origin, "--quiet", agent=None
        )
        if peers:
            cluster.tracker.start()
            flags = ["--upload-bytes-per-s", str(SLOW_RATE)] if self.kind == "slow" else []
            peer = cluster.add_agent(*flags)
            if self.kind == "liar":
                peer.command[peer.command.index("p2pcache.cli.main")] = "loadtest.kit.liar"
            peer.start()
            wait_until(peer.ready, FORGET_S)
            list(peer.client.pull(REF))
        self.agent = cluster.add_agent("--origin-bytes-per-s", str(ORIGIN_RATE))
        if self.kind == "full":
            stack.enter_context(small_disk(self.agent.cache_dir))
        self.agent.start()
        wait_until(self.agent.ready, FORGET_S)
        if self.kind == "gone":
            stack.enter_context(alone(self._origin))

    def one(self, tally: Tally) -> None:
        """One load with its fault, judged."""
        needed = self.kind == "full" or self._dice.random() < 0.3
        load = Load(self.agent.url, "needed" if needed else "all")
        thread = threading.Thread(target=load.run, daemon=True)
        began = time.monotonic()
        thread.start()
        if self.kind in ("killed", "gone"):
            self._await_attached(thread)
            thread.join(self._dice.uniform(0.01, 0.7))
            self.agent.kill()
            if self.kind == "killed":
                self.agent.start(wait=False)
        thread.join(HANG_S)
        tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)
        if thread.is_alive():
            tally.broken.append(f"a load hangs for {HANG_S:.0f} s")
        else:
            self._judge(load, tally)
        self._forget()

    def _await_attached(self, thread: threading.Thread) -> None:
        """An agent that dies before it has said what the model is leaves nothing to go on from."""
        shown = self.agent.cache_dir / "models" / FOLDER
        wait_until(lambda: any(shown.glob("*")) or not thread.is_alive(), FORGET_S, 0.002)

    def _judge(self, load: Load, tally: Tally) -> None:
        error = load.error
        if error is None:
            if load.found == self.bodies:
                tally.right += 1
            else:
                tally.broken.append("wrong bytes")
        elif not isinstance(error, P2PCacheError):
            tally.broken.append(f"{type(error).__name__}: {error}")
        elif isinstance(error, {"full": NoSpace, "gone": Unreachable}.get(self.kind, ())):
            # An agent that dies before it has said what the model is leaves nothing to go on from:
            # later a load that may use the origin never ends with this.
            tally.errors[type(error).__name__] += 1
        else:
            tally.broken.append(f"{type(error).__name__} where none is due: {error}")

    def _forget(self) -> None:
        if not self.agent.alive:
            self.agent.start(wait=False)
        self.agent.wait_ready()

        def forgotten() -> bool:
            self.agent.client.prune(dry_run=False, everything=True)
            return not self.agent.client.models()

        wait_until(forgotten, FORGET_S, 0.1)


@contextlib.contextmanager
def small_disk(path: Path, size_bytes: int = SMALL_DISK_BYTES) -> Iterator[None]:
    """A small file system in memory at `path`; needs root."""
    path.mkdir(parents=True)
    options = f"size={size_bytes}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "p2pfaults", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


@contextlib.contextmanager
def alone(origin: str) -> Iterator[None]:
    """Loads of this process give a lost agent little time, and may use the origin."""
    before, attachment.REATTACH_S = attachment.REATTACH_S, GONE_S
    os.environ["P2PCACHE_ORIGIN"] = origin
    try:
        yield
    finally:
        attachment.REATTACH_S = before
        del os.environ["P2PCACHE_ORIGIN"]


def run(kinds: Sequence[str], loads: int, seed: int) -> dict[str, Tally]:
    """So many loads, spread over the kinds."""
    tallies = {}
    for place, kind in enumerate(kinds):
        count = loads // len(kinds) + (place < loads % len(kinds))
        tally = tallies[kind] = Tally()
        with (
            tempfile.TemporaryDirectory(prefix="p2pf-") as root,
            Scene(kind, Path(root), seed) as scene,
        ):
            for _ in range(count):
                scene.one(tally)
        told = ", ".join(f"{n} {name}" for name, n in tally.errors.items()) or "no errors"
        print(f"{kind:8} {tally.right:5} right, {told}; {len(tally.broken)} broken; "
              f"slowest {tally.slowest_s:.1f} s", flush=True)  # fmt: skip
        for text in tally.broken[:10]:
            print(f"         {text}", flush=True)
    return tallies


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=count, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    wish = parser.parse_args()
    kinds = [kind for kind in wish.kinds.split(",") if kind in KINDS]
    if os.geteuid() != 0 and "full" in kinds:
        kinds.remove("full")
        print("full     left out: a small file system needs root")
    tallies = run(kinds, wish.loads, wish.seed)
    return 1 if any(tally.broken for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
