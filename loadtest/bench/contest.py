"""p2pcache beside its rivals on one storage: push and pull, in turns, wall and CPU time of each.

In each turn every contestant pushes the same folder to a place of its own, and then each pulls what it pushed. The
order moves on by one from turn to turn. A ratio is that of one turn, and the median of all turns is told.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtest.bench import contestants
from loadtest.bench.contestants import OURS, REF, THROUGH_AGENT, Contestant
from loadtest.kit.cluster import Agent, Cluster, clean_environ
from loadtest.kit.models import check_tree, make_model, total_bytes
from loadtest.kit.seaweed import Seaweed
from p2pcache.errors import NotFound
from p2pcache.io.origins import open_origin

GB = 1e9
YARDSTICK = "s5cmd"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one copy took.

    Attributes:
        seconds: from the start of the command to its end.
        user, system: CPU seconds of the command, its children and its agent.
        server: CPU seconds of the storage meanwhile; 0.0: it isn't ours.
    """

    seconds: float
    user: float
    system: float
    server: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One copy of each contestant, by the way ("push", "pull") and its name."""

    costs: dict[tuple[str, str], Cost]


class CopyFailed(Exception):
    """A contestant's command failed; the text has the end of what it said."""


class Contest:
    """All contestants on one storage, in a directory of their own."""

    def __init__(self, root: Path, url: str, environ: Mapping[str, str], server: int = 0) -> None:
        """Nothing runs yet.

        Args:
            root: for models and copies; the caller's to remove.
            url: a place in the storage that nobody else uses; emptied.
            environ: the commands' environment, with endpoint and keys.
            server: process id of the storage; 0: it isn't ours.
        """
        self._root = root
        self._url = url
        self._environ = contestants.environment(environ)
        self._server = server

    def run(
        self, model: Path, turns: int, only: Sequence[str]
    ) -> tuple[list[Turn], dict[str, str]]:
        """Let all copy `model`.

        Args:
            model: the folder.
            turns: how often.
            only: names of those that take part; empty: all.

        Returns:
            The turns, and for each contestant that can't run here the reason.
        """
        with self._agent(only) as agent:
            field = [
                one for one in [*contestants.ours(agent), *contestants.rivals()]
                if not only or one.name in only
            ]  # fmt: skip
            missing = {one.name: one.missing for one in field if one.missing}
            field = [one for one in field if not one.missing]
            found = []
            for turn in range(turns):
                first = turn % len(field)
                found.append(self._turn(field[first:] + field[:first], model))
        return found, missing

    def _turn(self, field: Sequence[Contestant], model: Path) -> Turn:
        costs: dict[tuple[str, str], Cost] = {}
        for one in field:
            if one.push is not None:
                costs["push", one.name] = self._measure(one, one.push(model, self._place(one)))[0]
        for one in field:
            copy = self._root / "copy"
            cost, said = self._measure(one, one.pull(copy, self._place(one)))
            costs["pull", one.name] = cost
            check_tree(Path(said) if one.tells_folder else copy, model)
            shutil.rmtree(copy, ignore_errors=True)
            if one.agent is not None:
                one.agent.client.remove(REF)
        self.clear()
        return Turn(costs)

    def clear(self) -> None:
        """Remove all objects of the contest."""
        origin = open_origin(self._url)
        with contextlib.suppress(NotFound):
            for found in list(origin.list("")):
                origin.delete(found.key)
        origin.close()

    def _place(self, one: Contestant) -> str:
        return f"{self._url}/{OURS if one.name == THROUGH_AGENT else one.name}"

    @contextlib.contextmanager
    def _agent(self, only: Sequence[str]) -> Iterator[Agent | None]:
        if only and THROUGH_AGENT not in only:
            yield None
            return
        with Cluster(f"{self._url}/{OURS}", agents=1, tracker=False, environ=self._environ,
                     folder=self._root) as cluster:  # fmt: skip
            yield cluster.agents[0]

    def _measure(self, one: Contestant, command: Sequence[str]) -> tuple[Cost, str]:
        """Run a command; its cost, and what it printed."""
        daemons = [] if one.agent is None else [one.agent.pid]
        with (
            tempfile.TemporaryFile(dir=self._root) as out,
            tempfile.TemporaryFile(dir=self._root) as err,
        ):
            before = _times(daemons), _times([self._server])
            start = time.monotonic()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._environ,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - start
            theirs, server = _times(daemons), _times([self._server])
            out.seek(0)
            err.seek(0)
            said, complaint = out.read().decode().strip(), err.read().decode(errors="replace")
        if process.returncode:
            raise CopyFailed(f"{one.name} ended with {process.returncode}: {complaint[-1000:]}")
        return Cost(
            seconds, used.ru_utime + theirs[0] - before[0][0], used.ru_stime + theirs[1] - before[0][1],
            sum(server) - sum(before[1]),
        ), said  # fmt: skip


def _times(pids: Sequence[int]) -> tuple[float, float]:
    """User and system CPU seconds of these processes so far; 0 stands for none."""
    found = [psutil.Process(pid).cpu_times() for pid in pids if pid]
    return sum(times.user for times in found), sum(times.system for times in found)


def hold(
    folder: Path, url: str, sizes: tuple[int, int], turns: int, only: Sequence[str]
) -> dict[str, Any]:
    """One contest, with a storage of its own where no URL is given.

    Args:
        folder: where the files lie meanwhile.
        url: of the storage; "": SeaweedFS is started on loopback.
        sizes: bytes of the model, and files that it is cut into.
        turns: how often each copies.
        only: names of those that take part; empty: all.

    Returns:
        Sizes, medians and every turn, as `lines` takes them.
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix="p2pc-")))
        environ, server = dict(os.environ), 0
        if not url:
            seaweed = stack.enter_context(Seaweed(root / "s3"))
            (root / "home").mkdir()
            environ = clean_environ(root / "home") | seaweed.env()
            os.environ.update(seaweed.env())
            url, server = seaweed.url(), seaweed.pid
        model = make_model(root / "model", sizes[0], shards=sizes[1])
        contest = Contest(root, f"{url}/p2pcache-bench-{os.getpid()}", environ, server)
        stack.callback(contest.clear)
        found, missing = contest.run(model, turns, only)
        size = total_bytes(model)
    return {
        "bytes": size, "files": sizes[1], "missing": missing, "medians": _medians(found, size),
        "turns": [{" ".join(key): asdict(cost) for key, cost in turn.costs.items()} for turn in found],
    }  # fmt: skip


def _medians(turns: Sequence[Turn], size: int) -> dict[str, dict[str, dict[str, float]]]:
    """By the way and the name: rate, CPU-s per GB, and the rate over the yardstick's in the same turn."""
    found: dict[str, dict[str, dict[str, float]]] = {"push": {}, "pull": {}}
    for way, name in sorted(turns[0].costs):
        costs = [turn.costs[way, name] for turn in turns]
        figures = {"seconds": statistics.median(cost.seconds for cost in costs)}
        figures["gb_per_s"] = size / GB / figures["seconds"]
        for part in ("user", "system", "server"):
            figures[part] = statistics.median(getattr(cost, part) for cost in costs) * GB / size
        rival = [turn.costs.get((way, YARDSTICK)) for turn in turns]
        ratios = [r.seconds / c.seconds for r, c in zip(rival, costs, strict=True) if r is not None]
        if ratios:
            figures[f"of_{YARDSTICK}"] = statistics.median(ratios)
        found[way][name] = figures
    return found


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A table for people."""
    for way, figures in found["medians"].items():
        yield f"{way}, {found['bytes'] / GB:.2f} GB in {found['files']} files, CPU-s per GB:"
        for name, one in sorted(figures.items(), key=lambda item: item[1]["seconds"]):
            ratio = one.get(f"of_{YARDSTICK}")
            yield (
                f"  {name:15}{one['seconds']:7.2f} s {one['gb_per_s']:6.2f} GB/s   user {one['user']:.2f} "
                f"system {one['system']:.2f} server {one['server']:.2f}"
                + (f"   {ratio:.2f} of {YARDSTICK}'s rate" if ratio is not None else "")
            )
    for name, why in found["missing"].items():
        yield f"  {name:15}{why}"
