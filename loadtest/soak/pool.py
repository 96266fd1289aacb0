"""Kills at any moment of the pool's flows: `python -m loadtest.soak.pool`, a part of `make soak`.

Five agents with small quotas, a tracker, clients. Flows: pull, hold, release, evict one, evict down to a size, prune,
rm, pin, unpin, keep, its end, drain and its end, push of a new version, pull into a directory, verify. In every other
one an agent, the tracker or the client's command is killed by SIGKILL within half a second after its begin, and started
again at once, or up to six seconds later, when its copies are being made again. Drawn from a seed (`pool_plan.py`).

    python -m loadtest.soak.pool [--minutes 20] [--seed 1] [--log DIR]

What must hold: every pull equals its source; after each kill every tree that the dead agent left is whole; each flow
ends, with success or an error that a kill explains. Every minute all is started again. Then each pin, hold and intent
that was acknowledged is there, and none that was ended; what is kept is true again, also where storage is gone; all
chunks are proved once more. At every third such rest all wishes and pins end, and after `prune` no space is taken.
Exit code: 0 all held, 1 not.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from loadtest.kit.daemons import exit_on_signals, wait_until
from loadtest.soak.jobs import Jobs, Stuck
from loadtest.soak.pool_checks import half_shown, lost, pinned_away, unkept
from loadtest.soak.pool_plan import AGENTS, NAMES, Step, steps
from loadtest.soak.pool_scene import PoolScene
from loadtest.soak.watch import disk_bytes, held_deleted
from p2pcache.errors import Conflict, NoSpace, NotFound, P2PCacheError
from p2pcache.io.disk.reserve_file import SPARE_BYTES

ROUND_S = 50.0
DEADLINE_S = 120.0  # for one flow
KEPT_S = 90.0  # until what is kept is true again
PRUNED_S = 45.0
EMPTY_EVERY = 3  # rests
METADATA_BYTES = (1 << 20) + SPARE_BYTES  # of an empty cache: its folders, notes


class PoolSoak(Jobs):
    """One run."""

    def __init__(self, scene: PoolScene, seed: int, log: Path) -> None:
        super().__init__(log, DEADLINE_S)
        self.scene = scene
        self._steps = steps(seed)
        self._rests = 0

    def run(self, minutes: float) -> None:
        """Rounds of kills and rest, for so long.

        Raises:
            Stuck: something doesn't end.
        """
        for number in range(NAMES):
            self.note("push", self.scene.push(number, number))
        while self.minute < minutes:
            until = min(time.monotonic() + ROUND_S, self.began + minutes * 60)
            while time.monotonic() < until:
                self._act(next(self._steps))
            self._rest()
            print(
                f"{self.minute:5.1f} min: {self.kills} kills, {len(self.findings)} findings",
                flush=True,
            )

    @property
    def kills(self) -> int:
        """So far."""
        return self.scene.kills.total()

    def _act(self, step: Step) -> None:
        self.let_pass(step.wait_s)
        step = self.scene.with_living(step)
        self.note(str(step))
        thread = self.spawn(f"{step.flow} {step.agent} {step.name}", self.scene.flow(step))
        if step.victim:
            self.after(step.kill_s, lambda: self._strike(step, thread))

    def _strike(self, step: Step, thread: int | None) -> None:
        self.note(
            f"kill {step.victim} {step.agent} in {step.flow}", self.scene.strike(step, thread)
        )
        self.after(step.dead_s, lambda: self.scene.revive(step))

    # -- rest --------------------------------------------------------------------------------------

    def _rest(self) -> None:
        scene, self._rests = self.scene, self._rests + 1
        self.note("rest")
        self.do_what_waits()
        scene.heal()
        self.all_ended(DEADLINE_S)
        self._found("lost", lost(scene))
        self._found("pinned", pinned_away(scene))
        scene.forget_copies()
        self._undrain()
        self._true_again()
        self._found("lost", lost(scene))
        for number in range(AGENTS):
            self._proved(number)
            self.note(f"trees {number}", half_shown(scene.agents[number], scene.sources))
        self._without_storage()
        if self._rests % EMPTY_EVERY == 0:
            self._empty()

    def _found(self, what: str, wrong: list[str]) -> None:
        for text in wrong:
            self.note(what, f"BROKEN {text}")

    def _undrain(self) -> None:
        """With every node, there is room for all that is kept."""
        client = self.scene.agents[0].client
        for drain in client.keeps()["drains"]:
            client.drain(str(drain["node"]), undo=True)
            self.scene.wishes.begin(drain["name"])
            self.scene.wishes.end(drain["name"], "", outcome=True)

    def _true_again(self) -> None:
        began = time.monotonic()
        try:
            wait_until(lambda: not unkept(self.scene.agents[0]), KEPT_S, 0.3)
        except TimeoutError:
            self._found(f"not kept after {KEPT_S:.0f} s", unkept(self.scene.agents[0]))
        self.note("kept", f"after {time.monotonic() - began:.1f} s")

    def _proved(self, number: int) -> None:
        for row in self.scene.agents[number].client.models():
            if row.get("remote") or not row["bytes_done"]:
                continue
            with contextlib.suppress(NotFound, Conflict):  # it went meanwhile
                told = self.scene.proved(number, f"pool/any@blake3:{row['digest']}")
                self.note(f"prove {number} {row['ref']}", told)

    def _without_storage(self) -> None:
        """What is kept is all there, on the nodes alone."""
        scene = self.scene
        rows = scene.agents[0].client.keeps()["keeps"]
        away = scene.origin_dir.with_name("away")
        scene.origin_dir.rename(away)
        try:
            for place, row in enumerate(rows):
                agent = scene.agents[place % AGENTS]
                ref = f"{row['ref'].partition(':')[0]}@blake3:{row['digest']}"
                try:
                    (*_, last) = agent.client.pull(ref)
                except NoSpace as error:  # pinned models leave no room on this node
                    self.note(f"pull {ref} without storage", str(error))
                    continue
                except P2PCacheError as error:
                    self.note(
                        f"pull {ref} without storage", f"BROKEN {type(error).__name__}: {error}"
                    )
                    continue
                outcome = (
                    ""
                    if last["bytes_origin"] == 0
                    else "BROKEN bytes came from a storage that is gone"
                )
                self.note(f"pull {row['ref']} without storage", outcome)
        finally:
            away.rename(scene.origin_dir)

    def _empty(self) -> None:
        """All wishes and pins end; then the disks are empty after a prune."""
        scene, client = self.scene, self.scene.agents[0].client
        for row in client.keeps()["keeps"]:
            client.keep_off(row["ref"])
            scene.wishes.begin(row["ref"])
            scene.wishes.end(row["ref"], "", outcome=True)
        for number, agent in enumerate(scene.agents):
            for row in agent.client.pins():
                thing = (number, row["kind"], row["name"])
                if row["kind"] == "pin":
                    agent.client.unpin(row["ref"])
                else:
                    with contextlib.suppress(NotFound):
                        agent.client.end_holds(row["name"])
                scene.whole.discard(thing)
                scene.pins.begin(thing)
                scene.pins.end(thing, "", outcome=True)
        self._found("lost", lost(scene))
        for number in range(AGENTS):
            self._returned(number)

    def _returned(self, number: int) -> None:
        agent = self.scene.agents[number]

        def empty() -> bool:
            agent.client.prune(dry_run=False, everything=True)
            return disk_bytes(agent.cache_dir) <= METADATA_BYTES and not held_deleted(agent)

        try:
            wait_until(empty, PRUNED_S, 0.5)
        except TimeoutError:
            used, models = disk_bytes(agent.cache_dir), agent.client.models()
            files = [str(p) for p in agent.cache_dir.rglob("*") if p.is_file()][:20]
            self.note(
                agent.name,
                f"BROKEN after a prune {used >> 10} KiB are on disk: {models} {files} {held_deleted(agent)}",
            )
        self.note(f"emptied {number}")


def soak(minutes: float, seed: int, logs: Path) -> PoolSoak:
    """One run; the daemons' logs are kept in `logs`."""
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="p2pp-") as folder, PoolScene(Path(folder)) as scene:
        run = PoolSoak(scene, seed, logs / "actions.jsonl")
        try:
            run.run(minutes)
        except (Stuck, TimeoutError, P2PCacheError) as error:
            run.note("stuck", f"BROKEN {error}")
        finally:
            for daemon in (scene.cluster.tracker, *scene.agents):
                (logs / f"{daemon.name}.log").write_text(daemon.log())
    return run


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("soak-log/pool"), metavar="DIR")
    wish = parser.parse_args()
    exit_on_signals()
    run = soak(wish.minutes, wish.seed, wish.log)
    for what, count in sorted((*run.outcomes.items(), *run.scene.kills.items())):
        print(f"{count:6} {what}")
    for text in run.findings:
        print(f"WRONG: {text}")
    took = f"{run.kills} kills in {run.minute:.1f} minutes, {len(run.findings)} findings"
    print(f"seed {wish.seed}: {took}; the log is in {wish.log}")
    return 1 if run.findings else 0


if __name__ == "__main__":
    sys.exit(main())
