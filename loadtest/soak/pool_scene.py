"""The cluster of a pool's soak: five agents with small quotas, a tracker, a directory as storage; flows and checks."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from loadtest.kit.cluster import Agent, Cluster
from loadtest.kit.daemons import P2PCACHE, wait_until
from loadtest.kit.models import check_tree, make_model
from loadtest.soak.ledger import Ledger
from loadtest.soak.pool_checks import half_shown, is_whole, wish_of
from loadtest.soak.pool_plan import AGENTS, MODEL_BYTES, NAMES, Step
from p2pcache.core.format.layout import Layout
from p2pcache.errors import (
    Busy,
    Conflict,
    Lost,
    NoSpace,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    TimedOut,
    Unreachable,
)
from p2pcache.io.files.indexing import index_directory

QUOTA = "48MiB"  # all models together take some 20 MiB, in all versions more than twice that
GRACE_S = 4.0  # a node that is dead for longer loses its places
ORIGIN_RATE = 8_000_000  # bytes/s of each agent: fetches last long enough to be hit
READY_S = 60.0
COMMAND_S = 60.0
UNKNOWN_S = (
    8.0  # a wish whose outcome is unknown may still be carried out; nobody wishes anew so soon
)
SHRUNK = (0, 4 << 20, 16 << 20)
# What a flow may end with while processes are killed: who was asked is gone, or what it needs is.
EXCUSED = (Unreachable, Busy, Lost, OriginUnavailable, TimedOut)
WISHES: tuple[dict[str, Any], ...] = (
    {"copies": 1}, {"copies": 2}, {"copies": 2}, {"copies": 1, "whole": True},
    {"copies": 2, "whole": True}, {"everywhere": True}, {"everywhere": True, "nodes": "role=seed"},
)  # fmt: skip


class PoolScene:
    """A context manager. Kills and revivals belong to the main thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kills: Counter[str] = Counter()  # by flow and victim
        self.sources: dict[
            str, Path
        ] = {}  # by manifest digest: all that was ever pushed, or begun to be
        self.pins, self.wishes = Ledger(), Ledger()
        self.whole: set[Hashable] = (
            set()
        )  # pins of models that were whole here when they were pinned
        self._commands: dict[int, subprocess.Popen[bytes]] = {}  # by thread
        self._locks = [threading.Lock() for _ in range(AGENTS)]  # who compares, and who removes
        origin = root / "origin"
        origin.mkdir()
        self.origin_dir = origin
        self.cluster = Cluster(
            origin.as_uri(), agents=AGENTS, environ={
                "P2PCACHE_ABANDON_AFTER_S": "2", "P2PCACHE_ORIGIN_BYTES_PER_S": str(ORIGIN_RATE),
                "P2PCACHE_CACHE_QUOTA": QUOTA, "P2PCACHE_KEEP_GRACE_S": str(GRACE_S),
            },
        )  # fmt: skip
        for number, agent in enumerate(self.agents):
            agent.command += ["--node-name", f"n{number}", "--rack", f"r{number % 2}"]
            agent.command += ["--role", "cache" if number else "seed"]
        for daemon in (self.cluster.tracker, *self.agents):
            daemon.command[daemon.command.index("p2pcache.cli.main")] = "loadtest.kit.hasty"

    def __enter__(self) -> Self:
        try:
            self.cluster.start()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()

    @property
    def agents(self) -> list[Agent]:
        """All of them."""
        return self.cluster.agents

    # -- flows -------------------------------------------------------------------------------------

    def flow(self, step: Step) -> Callable[[], str]:
        """What a step does, on a thread of its own."""
        work: Callable[[Step], str] = getattr(self, f"_{step.flow}")
        return lambda: self._judged(work, step)

    def with_living(self, step: Step) -> Step:
        """The step with an agent that answers, if one does: its own, or the next."""
        for number in range(step.agent, step.agent + AGENTS):
            if self.agents[number % AGENTS].answers():
                return replace(step, agent=number % AGENTS)
        return step

    def _judged(self, work: Callable[[Step], str], step: Step) -> str:
        try:
            return work(step)
        except (*EXCUSED, NotFound, Conflict, NoSpace) as error:
            return f"{type(error).__name__}: {error}"
        except P2PCacheError as error:
            return f"BROKEN {type(error).__name__}: {error}"

    def _idle(self, _step: Step) -> str:
        return "idle"

    def _pull(self, step: Step) -> str:
        agent, path, digest = self.agents[step.agent], "", ""
        with contextlib.closing(agent.client.pull(name_of(step.name))) as events:
            for event in events:
                if event["event"] == "done":
                    path, digest = event["path"], event["digest"]
        return self._compared(step.agent, path, digest)

    def _compared(self, number: int, path: str, digest: str) -> str:
        if digest not in self.sources:
            return f"BROKEN a pull gave {digest}, which nobody pushed"
        tree = self.agents[number].tree(path)
        with self._locks[number]:
            try:
                check_tree(tree, self.sources[digest])
            except (AssertionError, OSError):
                if tree.is_dir():
                    raise
                return "it went before it was compared"
        return "right"

    def _hold(self, step: Step) -> str:
        """A pull that holds what it gets: from its second event on the hold is there."""
        agent, ref = self.agents[step.agent], name_of(step.name)
        thing = (step.agent, "hold", f"h{step.name}")
        if not self.pins.begin(thing):
            return "somebody else is at it"
        path, digest, count = "", "", 0
        try:
            with contextlib.closing(agent.client.pull(ref, hold=f"h{step.name}")) as events:
                for event in events:
                    count += event["event"] == "resolved"
                    if event["event"] == "done":
                        path, digest = event["path"], event["digest"]
        finally:
            self.pins.end(thing, "there", outcome=True if count else None)
        return self._compared(step.agent, path, digest)

    def _release(self, step: Step) -> str:
        thing = (step.agent, "hold", f"h{step.name}")
        client = self.agents[step.agent].client
        return self._change(self.pins, thing, "", lambda: client.end_holds(f"h{step.name}"))

    def _pin(self, step: Step) -> str:
        thing, ref = (step.agent, "pin", f"p{step.name}"), name_of(step.name)
        client = self.agents[step.agent].client

        def pin() -> None:
            with self._locks[step.agent]:
                client.pin(ref, f"p{step.name}", 0.0)
                if is_whole(self.agents[step.agent], ref):
                    self.whole.add(thing)

        return self._change(self.pins, thing, "there", pin)

    def _unpin(self, step: Step) -> str:
        thing = (step.agent, "pin", f"p{step.name}")
        client = self.agents[step.agent].client

        def unpin() -> None:
            self.whole.discard(thing)
            client.unpin(name_of(step.name))

        return self._change(self.pins, thing, "", unpin)

    def _keep(self, step: Step) -> str:
        wish, client = WISHES[step.dice % len(WISHES)], self.agents[step.agent].client
        ref, wanted = name_of(step.name), wish_of(**wish)
        return self._change(self.wishes, ref, wanted, lambda: client.keep(ref, **wish))

    def _off(self, step: Step) -> str:
        ref, client = name_of(step.name), self.agents[step.agent].client
        return self._change(self.wishes, ref, "", lambda: client.keep_off(ref))

    def _drain(self, step: Step) -> str:
        """Empty a node, or end that."""
        node, client = f"n{step.dice % AGENTS}", self.agents[step.agent].client
        undo = "drained" in self.wishes.may_be(node)
        wanted = "" if undo else "drained"
        return self._change(self.wishes, node, wanted, lambda: client.drain(node, undo=undo))

    def _change(
        self, ledger: Ledger, thing: Hashable, wanted: str, do: Callable[[], object]
    ) -> str:
        if not ledger.begin(thing):
            return "somebody else is at it"
        done: bool | None = None
        try:
            do()
            done = True
        except (NotFound, Conflict, NoSpace):
            done = False
            raise
        finally:
            if done is None and ledger is self.wishes:
                time.sleep(UNKNOWN_S)
            ledger.end(thing, wanted, outcome=done)
        return "done"

    def _evict(self, step: Step) -> str:
        with self._locks[step.agent]:
            self.agents[step.agent].client.evict(name_of(step.name))
        return "done"

    def _shrink(self, step: Step) -> str:
        with self._locks[step.agent]:
            to = SHRUNK[step.dice % len(SHRUNK)]
            self.agents[step.agent].client.evict(to_bytes=to)
        return "done"

    def _prune(self, step: Step) -> str:
        with self._locks[step.agent]:
            self.agents[step.agent].client.prune(dry_run=False, everything=step.dice % 2 == 0)
        return "done"

    def _remove(self, step: Step) -> str:
        with self._locks[step.agent]:
            self.agents[step.agent].client.remove(name_of(step.name))
        return "done"

    def _verify(self, step: Step) -> str:
        return self.proved(step.agent, name_of(step.name))

    def proved(self, number: int, ref: str) -> str:
        """Prove what an agent has of a model once more."""
        (*_, last) = self.agents[number].client.verify(ref)
        return f"BROKEN {last['chunks_bad']} wrong chunks" if last["chunks_bad"] else "proved"

    def push(self, number: int, seed: int, agent: int | None = None) -> str:
        """A new version of a model, by the command line."""
        folder = self.root / "models" / f"{number}-{seed}"
        if not folder.exists():
            make_model(
                folder, MODEL_BYTES[number % len(MODEL_BYTES)], shards=1 + seed % 2, seed=seed
            )
        manifest, _ = index_directory(folder)
        self.sources[Layout(manifest).digest] = folder
        flags = ["--origin", self.cluster.origin] if agent is None else []
        return self._command(agent, "push", str(folder), name_of(number), "--quiet", *flags)

    def _push(self, step: Step) -> str:
        return self.push(step.name, step.dice, step.agent if step.dice % 2 else None)

    def _copy(self, step: Step) -> str:
        """A pull into a directory of the caller's, which is there as a whole or not at all."""
        to = self.root / "copies" / str(step.dice)
        to.parent.mkdir(exist_ok=True)
        ended = self._command(step.agent, "pull", name_of(step.name), "--to", str(to), "--quiet")
        if not to.exists():
            return "BROKEN it said that it copied" if ended == "done" else ended
        for source in self.sources.values():
            with contextlib.suppress(AssertionError):
                check_tree(to, source)
                return ended
        return f"BROKEN {to} is no model that anybody pushed ({ended})"

    def _command(self, agent: int | None, *arguments: str) -> str:
        """A `p2pcache` command; it may be killed."""
        environ = dict(self.cluster.environ)
        if agent is not None:
            environ["P2PCACHE_AGENT"] = self.agents[agent].url
        process = subprocess.Popen(
            [*P2PCACHE, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env=environ,
        )  # fmt: skip
        me = threading.get_ident()
        self._commands[me] = process
        try:
            _, said = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"BROKEN {arguments[0]} doesn't end"
        finally:
            del self._commands[me]
        if process.returncode in (0, -9):
            return "killed" if process.returncode else "done"
        text = f"code {process.returncode}: {said.decode(errors='replace').strip()[-300:]}"
        return text if process.returncode in (3, 5, 7, 8, 9, 10) else f"BROKEN {text}"

    # -- kills -------------------------------------------------------------------------------------

    def strike(self, step: Step, thread: int | None) -> str:
        """Kill the step's victim; what was seen of it after its death.

        Args:
            step: which.
            thread: that runs its flow.
        """
        if step.victim == "command":
            process = self._commands.get(thread or 0)
            if process is None or process.poll() is not None:
                return "it had ended"
            process.kill()
        else:
            daemon = self.cluster.tracker if step.victim == "tracker" else self.agents[step.agent]
            if not daemon.alive:
                return "it was dead"
            daemon.kill()
        self.kills[f"{step.flow}: {step.victim}"] += 1
        return (
            half_shown(self.agents[step.agent], self.sources)
            if step.victim == "agent"
            else "killed"
        )

    def revive(self, step: Step) -> None:
        """Start the victim of a step again."""
        daemon = self.cluster.tracker if step.victim == "tracker" else self.agents[step.agent]
        if step.victim != "command" and not daemon.alive:
            daemon.start(wait=False)

    # -- rest --------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Start who is dead, and wait until everybody is well."""
        for daemon in (self.cluster.tracker, *self.agents):
            if not daemon.alive:
                daemon.start(wait=False)
        wait_until(lambda: all(agent.ready() for agent in self.agents), READY_S)

    def forget_copies(self) -> None:
        """Remove what was pulled into directories; no command runs."""
        shutil.rmtree(self.root / "copies", ignore_errors=True)


def name_of(number: int) -> str:
    """The name of one of the models."""
    return f"pool/m{number % NAMES}:prod"
