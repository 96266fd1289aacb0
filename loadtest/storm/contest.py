"""One contest of a rival's processes on the storm's own hosts: started together, timed, compared, scored."""

import os
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from loadtest.kit.daemons import strap
from loadtest.kit.models import check_tree, total_bytes
from loadtest.kit.netns import Host
from loadtest.storm.arena import Arena
from loadtest.storm.plan import VOID_BUSY, Links, bound_s
from loadtest.storm.race import busy_share

READY_S = 60.0  # sixteen interpreters start on two cores
STOP_S = 10.0  # libtorrent and aria2 flush what they hold
LIMIT_FACTOR = 8  # of T_LB: who isn't done by then hangs
LIMIT_EXTRA_S = 60.0
TAIL_LINES = 5


class RivalError(Exception):
    """A rival's process failed; the text says which and has the end of what it said."""


@dataclass(slots=True)
class Score:
    """What a rival did. Times in seconds since the start; None: not all nodes got there.

    Attributes:
        size_bytes: F.
        t_lb: the bound for these bytes on the measured links.
        alpha_interface: all bytes that left the origin's interface, headers included, / F.
        cpu_busy: share of all cores, 0 to 1.
        cpu_s_per_gb: CPU seconds of the nodes' processes per GB received by all of them.
        failure: why it doesn't count; empty: every file of every node equals the source.
    """

    size_bytes: int
    t_lb: float
    t_last: float | None = None
    t_median: float | None = None
    alpha_interface: float = 0.0
    cpu_busy: float = 0.0
    cpu_s_per_gb: float = 0.0
    failure: str = ""

    @property
    def void(self) -> bool:
        """The CPU was measured, not the protocol."""
        return self.cpu_busy > VOID_BUSY

    @property
    def eta(self) -> float | None:
        """T_LB / T_last; None for a rival that failed."""
        return self.t_lb / self.t_last if self.t_last and not self.failure else None

    def as_json(self) -> dict[str, Any]:
        """Its place in the document that `--json` writes."""
        found = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}
        eta = self.eta
        return found | {"eta": eta and round(eta, 4), "void": self.void}


class Racer:
    """A process on one host. It prints `ready`, reads a line to start, prints `done`; SIGTERM ends it."""

    def __init__(
        self, host: Host, command: Sequence[str], folder: Path, *,
        tree: Path | None = None, environ: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Describe it.

        Args:
            host: where it runs.
            command: without the prefix of its namespace.
            folder: made for it; its log goes there.
            tree: where the copy will be; None: in the folder, by the name of its source.
            environ: its whole environment; None: ours.
        """
        self.host = host
        self.folder = folder
        self._tree = tree
        self._environ = environ
        self._command = [*host.prefix, *strap(), *command]
        self._heard: dict[str, float] = {}
        self._ended = False
        self._news = threading.Condition()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=self._environ, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._news:
                self._heard.setdefault(line.strip(), time.monotonic())
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def tree(self, name: str) -> Path:
        """Where its copy of a source of this name is."""
        return self._tree or self.folder / name

    def hear(self, word: str, limit_s: float) -> float:
        """When it said `word`, on the monotonic clock; waits for it.

        Raises:
            RivalError: it ended without a word, or said nothing in time.
        """
        with self._news:
            self._news.wait_for(lambda: word in self._heard or self._ended, max(0.0, limit_s))
            if word in self._heard:
                return self._heard[word]
            what = "ended" if self._ended else "took too long"
        log = (self.folder / "log").read_text(errors="replace").splitlines()[-TAIL_LINES:]
        raise RivalError(" | ".join([f"{self.host.port} {what} before it was {word}", *log]))

    @property
    def heard(self) -> list[str]:
        """Every word so far."""
        with self._news:
            return list(self._heard)

    def go(self) -> None:
        """Let it start."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `hear` will say how it ended
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def cpu_s(self) -> float:
        """CPU seconds so far, ended children included; 0 once it is gone."""
        assert self._process is not None
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system + times.children_user + times.children_system)

    def stop(self) -> None:
        """SIGTERM, SIGKILL if that doesn't help; a second time does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(STOP_S)
                break
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def contest(
    arena: Arena, links: Links, source: Path, racers: Sequence[Racer], helpers: Sequence[Racer] = ()
) -> Score:
    """Let the racers fetch `source` at the same moment; each leaves its copy in its `tree`.

    Args:
        arena: the hosts; its agents are idle meanwhile.
        links: the goodput of this run.
        source: the model's directory.
        racers: one for each node.
        helpers: what serves them on the origin's host; already ready when the racers start.
    """
    size = total_bytes(source)
    score = Score(size, bound_s(arena.plan, links, size, len(racers)))
    with ExitStack() as stack:
        stack.callback(_remove, [racer.folder for racer in (*racers, *helpers)])
        try:
            for group in (helpers, racers):
                for racer in group:
                    stack.enter_context(racer)
                for racer in group:
                    racer.hear("ready", READY_S)
            _time(arena, score, racers)
            for racer in racers:
                racer.stop()  # what it still holds reaches its files
                check_tree(racer.tree(source.name), source)
        except (RivalError, AssertionError, OSError) as error:
            score.failure = str(error)
    return score


def _time(arena: Arena, score: Score, racers: Sequence[Racer]) -> None:
    """The timed part."""
    sent = arena.fabric.sent_bytes(arena.origin_host)
    cpu = sum(racer.cpu_s() for racer in racers)
    stat = psutil.cpu_times()
    start = time.monotonic()
    for racer in racers:
        racer.go()
    deadline = start + LIMIT_FACTOR * score.t_lb + LIMIT_EXTRA_S
    times = [racer.hear("done", deadline - time.monotonic()) - start for racer in racers]
    score.cpu_busy = busy_share(stat, psutil.cpu_times())
    spent = sum(racer.cpu_s() for racer in racers) - cpu
    score.cpu_s_per_gb = spent / (len(racers) * score.size_bytes / 1e9)
    score.alpha_interface = (arena.fabric.sent_bytes(arena.origin_host) - sent) / score.size_bytes
    score.t_last, score.t_median = max(times), statistics.median(times)


def _remove(folders: Sequence[Path]) -> None:
    """Their copies would fill the disk, and their dirty pages disturb the next rival."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
