"""Hours of random work and random faults on eight real agents: `make soak`.

Pushes, pulls, storms, clients that leave, removals, prunes, verifies; SIGKILL and restarts of agents,
of the tracker and of storage, frozen agents, storage that misbehaves in six ways, an agent whose disk
is too small, one that serves wrong bytes in every other of its lives. All drawn from a seed
(`soak_plan.py`), so a seed that fails gives its actions again; each is logged with what came of it.

    python -m loadtest.soak [--minutes 60] [--seed 1] [--log DIR]

What must hold all the time: every file of every pull equals its source, every pull ends within its
deadline, with success or with an error that a fault explains. Every two minutes all faults end; then
every agent must pull, and after a prune give its disk back, and what it holds at rest (descriptors,
threads, tasks, memory) must not grow over the rounds. Exit code: 0 all held, 1 not.
"""

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from loadtest.kit.daemons import exit_on_signals, wait_until
from loadtest.soak.jobs import Jobs, Stuck
from loadtest.soak.plan import AGENTS, LIAR, STEADY, Action, actions
from loadtest.soak.scene import Model, Scene
from loadtest.soak.watch import Rest, disk_bytes, growth, held_deleted, leaks, quiet, sample
from p2pcache.io.disk.reserve_file import SPARE_BYTES
from p2pcache.io.tasks import THREAD_IDLE_S

ROUND_S = 100.0  # of faults; then everything must come to rest
DEADLINE_S = (
    150.0  # for one pull under faults: the longest fault takes 25 s, storage is retried for 60
)
HEALED_S = 90.0  # for everybody's pull when all faults are over
FIRST_MODELS = 4
METADATA_BYTES = (1 << 20) + SPARE_BYTES  # of an empty cache: its folders, notes
CALM_S = THREAD_IDLE_S + 2  # before looking at what is held at rest
PRUNED_S = 45.0
HELD_S = 5.0  # a peer that the machine lets wait may still be sent a chunk of what was removed


class Soak(Jobs):
    """One run."""

    def __init__(self, scene: Scene, seed: int, log: Path) -> None:
        super().__init__(log, DEADLINE_S)
        self.scene = scene
        self.rests: dict[str, list[Rest]] = {agent.name: [] for agent in scene.agents}
        self._actions = actions(seed)

    def run(self, minutes: float) -> None:
        """Rounds of faults and rest, for so long.

        Raises:
            Stuck: something doesn't end.
        """
        for n in range(FIRST_MODELS):
            self.note("push", self.scene.push(n, None))
        while self.minute < minutes:
            until = min(time.monotonic() + ROUND_S, self.began + minutes * 60)
            while time.monotonic() < until:
                self._act(next(self._actions))
            self._rest()
            self._report()

    # -- actions -----------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        self.let_pass(action.wait_s)
        self.note(str(action))
        scene, model = self.scene, self._model(action)
        match action.kind:
            case "pull" | "storm" | "abandon" if model is not None:
                leave = action.seconds if action.kind == "abandon" else None
                for number in action.agents:
                    self._pull(number, model, leave)
            case "verify" | "remove" | "prune" if model is not None:
                (number,) = action.agents
                kind = action.kind
                self.spawn(f"{kind} {number}", lambda: scene.change(number, kind, model))
            case "push":
                agent = action.agents[0] if action.model % 2 else None
                self.spawn(f"push {agent}", lambda: scene.push(action.model, agent))
            case _:
                self._fault(action)

    def _fault(self, action: Action) -> None:
        scene = self.scene
        number = action.agents[0] if action.agents else 0
        match action.kind:
            case "kill":
                scene.kill(number)
                self.after(action.seconds, lambda: scene.revive(number))
            case "restart":
                scene.terminate(number)
                self.after(action.seconds, lambda: scene.revive(number))
            case "freeze":
                scene.freeze(number)
                self.after(action.seconds, lambda: scene.thaw(number))
            case "tracker":
                scene.cluster.tracker.kill()
                self.after(action.seconds, scene.tracker_again)
            case "storage":
                scene.storage.stop()
                self.after(action.seconds, scene.storage_again)
            case "origin":
                scene.origin_fault(action)

    def _model(self, action: Action) -> Model | None:
        models = self.scene.models
        return models[action.model % len(models)] if models else None

    def _pull(self, number: int, model: Model, leave_after_s: float | None = None) -> None:
        pull = self.scene.pull
        self.spawn(
            f"pull {number} {model.ref}", lambda: pull(number, model, leave_after_s=leave_after_s)
        )

    # -- rest --------------------------------------------------------------------------------------

    def _rest(self) -> None:
        scene = self.scene
        self.note("rest")
        began = time.monotonic()
        self.do_what_waits()
        scene.heal()
        self.note("healed", f"after {time.monotonic() - began:.1f} s")
        self.all_ended(DEADLINE_S)
        for model in scene.models[-2:]:
            for number in range(AGENTS):
                if number != LIAR:  # its peers refuse it for a while yet, and are right to
                    self._pull(number, model)
            for outcome in self.all_ended(HEALED_S):
                if outcome != "right" and not outcome.startswith("NoSpace"):
                    self.note("a pull after all faults had ended", f"BROKEN {outcome}")
        for number, agent in enumerate(scene.agents):
            self._returned(number, agent.name)
        scene.forget_sources()
        time.sleep(CALM_S)
        for agent in scene.agents:
            self.rests[agent.name].append(sample(agent, self.minute))
            self.note(f"at rest {agent.name}", str(self.rests[agent.name][-1]))

    def _returned(self, number: int, name: str) -> None:
        """A prune gives the disk back."""
        agent = self.scene.agents[number]

        def empty() -> bool:
            agent.client.prune(dry_run=False, everything=True)
            return quiet(agent) and disk_bytes(agent.cache_dir) <= METADATA_BYTES

        try:
            wait_until(empty, PRUNED_S, 0.5)
        except TimeoutError:
            used, models = disk_bytes(agent.cache_dir), agent.client.models()
            self.note(name, f"BROKEN after a prune {used >> 10} KiB are on disk; models: {models}")
        try:
            wait_until(lambda: not held_deleted(agent), HELD_S, 0.5)
        except TimeoutError:
            self.note(name, f"BROKEN holds deleted files: {held_deleted(agent)[:3]}")

    def verdict(self) -> list[str]:
        """All findings, leaks included."""
        leaking = [
            f"{name}: {text}"
            for name, rests in self.rests.items()
            for life in _lives(rests)
            for text in leaks(life)
        ]
        broken = [text for text in self.scene.tally if "BROKEN" in text]
        return [*self.findings, *leaking, *broken]

    def _report(self) -> None:
        right = self.outcomes["pull: right"]
        pulls = sum(n for what, n in self.outcomes.items() if what.startswith("pull"))
        print(f"{self.minute:5.1f} min: {pulls} pulls, {right} compared and right, "
              f"{len(self.findings)} findings", flush=True)  # fmt: skip

    def summary(self) -> str:
        """For people."""
        lines = [f"{count:6} {what}" for what, count in self.outcomes.most_common()]
        for name in list(self.rests)[:STEADY]:
            rests = self.rests[name]
            if rests:
                grew = {k: round(v, 1) for k, v in growth(rests).items()}
                lines.append(f"{name}: first at rest {rests[0]}, last {rests[-1]}, grew {grew}")
        return "\n".join(lines)


def _lives(rests: list[Rest]) -> Iterator[list[Rest]]:
    for _, life in itertools.groupby(rests, lambda rest: rest.pid):
        yield list(life)


def soak(minutes: float, seed: int, logs: Path) -> Soak:
    """One run; the agents' logs are kept in `logs`, after a finding the recordings of pulls, too."""
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="p2ps-") as folder:
        with Scene(Path(folder)) as scene:
            run = Soak(scene, seed, logs / "actions.jsonl")
            try:
                run.run(minutes)
            except (Stuck, TimeoutError) as error:
                run.note("stuck", f"BROKEN {error}")
            finally:
                for daemon in (scene.cluster.tracker, *scene.agents):
                    (logs / f"{daemon.name}.log").write_text(daemon.log())
        if run.findings:  # the recorders have written all by now
            shutil.copytree(scene.records, logs / "records", dirs_exist_ok=True)
    return run


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("soak-log"), metavar="DIR")
    wish = parser.parse_args()
    exit_on_signals()
    run = soak(wish.minutes, wish.seed, wish.log)
    print(run.summary())
    for text in run.verdict():
        print(f"WRONG: {text}")
    print(f"seed {wish.seed}, {run.minute:.1f} minutes; the log is in {wish.log}")
    return 1 if run.verdict() else 0


if __name__ == "__main__":
    sys.exit(main())
