"""Work of a soak that runs beside each other, each piece on a thread of its own, and a log of what came of it."""

import heapq
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

AT_ONCE = 24  # jobs
LOOK_S = 0.05


class Stuck(Exception):
    """Something doesn't end; the text says what."""


class Job:
    """One pull (or push, ...) on a thread of its own."""

    def __init__(self, what: str, work: Callable[[], str]) -> None:
        self.what = what
        self.began = time.monotonic()
        self.outcome = ""
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], str]) -> None:
        try:
            self.outcome = work()
        except BaseException as error:  # noqa: BLE001 - it is a finding
            self.outcome = f"BROKEN {type(error).__name__}: {error}"

    @property
    def age_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began


class Jobs:
    """Starts jobs, judges those that have ended, does what was put off. It belongs to the main thread."""

    def __init__(self, log: Path, deadline_s: float) -> None:
        """Nothing runs yet.

        Args:
            log: gets a line for each thing that is done, and one for what came of it.
            deadline_s: a job that takes longer is stuck.
        """
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.began = time.monotonic()
        self._deadline_s = deadline_s
        self._log = log.open("w")
        self._jobs: list[Job] = []
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    @property
    def minute(self) -> float:
        """Since the start."""
        return (time.monotonic() - self.began) / 60

    def note(self, what: str, outcome: str = "") -> None:
        """One line of the log; findings are kept."""
        line = {"s": round(self.minute * 60, 2), "what": what, "outcome": outcome}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()
        if "BROKEN" in outcome:
            self.findings.append(f"{self.minute:.1f} min, {what}: {outcome}")
            print(f"FINDING {self.findings[-1]}", flush=True)

    def spawn(self, what: str, work: Callable[[], str]) -> int | None:
        """Start a job, as soon as there is a place for it; returns the number of its thread."""
        while len(self._jobs) >= AT_ONCE:
            self.let_pass(0.1)
        job = Job(what, work)
        self._jobs.append(job)
        return job.thread.ident

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """Do something later, on the main thread."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), what))

    def do_what_waits(self) -> None:
        """Do now what was put off."""
        while self._later:
            heapq.heappop(self._later)[2]()

    def let_pass(self, seconds: float) -> None:
        """Let time pass: what was put off is done, jobs that have ended are judged.

        Raises:
            Stuck: one doesn't end.
        """
        until = time.monotonic() + seconds
        while True:
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            self._collect()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, LOOK_S))

    def _collect(self) -> None:
        for job in [job for job in self._jobs if not job.thread.is_alive()]:
            self._jobs.remove(job)
            self.note(f"{job.what} ({job.age_s:.1f} s)", job.outcome)
            self.outcomes[f"{job.what.split()[0]}: {job.outcome[:60]}"] += 1
        stuck = [job.what for job in self._jobs if job.age_s > self._deadline_s]
        if stuck:
            raise Stuck(f"after {self._deadline_s:.0f} s still running: {', '.join(stuck)}")

    def all_ended(self, limit_s: float) -> list[str]:
        """Wait for all jobs; what came of them.

        Raises:
            Stuck: they don't end in time.
        """
        deadline = time.monotonic() + limit_s
        jobs = list(self._jobs)
        while self._jobs:
            if time.monotonic() > deadline:
                raise Stuck(f"{limit_s:.0f} s after all faults: {[job.what for job in self._jobs]}")
            self.let_pass(0.1)
        return [job.outcome for job in jobs]
