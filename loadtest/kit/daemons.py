"""Real daemons as child processes: started by the public command line, watched by their logs.

Each child is on a leash: when this process dies, even by SIGKILL, the kernel kills the child. What
this process started is also stopped at exit.
"""

import atexit
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

P2PCACHE = [sys.executable, "-m", "p2pcache.cli.main"]
READY_S = 60.0  # a daemon answers in about a second; a loaded CI machine gets more
STOP_S = 20.0  # above the agent's own limit for finishing uploads
POLL_S = 0.05
LOG_TAIL_LINES = 15

_running: "list[Daemon]" = []


class StartError(Exception):
    """A daemon didn't start; the text has the end of its log."""


class Daemon:
    """One daemon: its command, its process, its log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        *,
        ready: Callable[[], bool],
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        leash: bool = True,
    ) -> None:
        """Describe it; nothing is started yet.

        Args:
            name: for messages.
            command: the command line.
            log_path: stdout and stderr are appended here.
            ready: whether it answers; asked again and again after the start.
            environ: its whole environment; None: ours.
            prefix: put before the command, for example `ip netns exec NAME`.
            leash: die with us. False: the caller leaves it running on purpose.
        """
        self.name = name
        self.log_path = log_path
        self._leash = leash
        self._ready = ready
        self._environ = environ
        self.command = [*prefix, *(strap() if leash else []), *command]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running daemon."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers.

        Raises:
            StartError: it ended or doesn't answer in time.
        """
        assert not self.alive, f"{self.name} runs already"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        if self._leash:
            _running.append(self)
        if wait:
            self.wait_ready()

    def wait_ready(self, limit_s: float = READY_S) -> None:
        """Wait until it answers.

        Raises:
            StartError: it ended or doesn't answer in time.
        """
        try:
            wait_until(lambda: not self.alive or self._ready(), limit_s)
        except TimeoutError:
            raise StartError(
                f"{self.name} doesn't answer after {limit_s:.0f} s.\n{self.tail()}"
            ) from None
        if not self.alive:
            assert self.process is not None
            raise StartError(
                f"{self.name} ended with code {self.process.returncode}.\n{self.tail()}"
            )

    def stop(self, limit_s: float = STOP_S) -> int:
        """SIGTERM, then SIGKILL after `limit_s`.

        Returns:
            Its exit code; negative for a signal that it didn't handle.
        """
        self.terminate()
        return self.await_end(limit_s)

    def terminate(self) -> None:
        """SIGTERM without waiting."""
        if self.alive:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the daemon gets no chance to tidy up."""
        if self.alive:
            self._signal(signal.SIGKILL)
        self.await_end(STOP_S)

    def await_end(self, limit_s: float) -> int:
        """Wait until it has ended, SIGKILL after `limit_s`; its exit code, 0 if it never ran."""
        if self.process is None:
            return 0
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code = self.process.wait(STOP_S)
        if self in _running:
            _running.remove(self)
        return code

    def log(self) -> str:
        """Everything that it logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The end of its log, with the log's path."""
        text = self.log().splitlines()[-lines:]
        return "\n".join([f"the end of {self.log_path}:", *(f"  {line}" for line in text)])

    def wait_log(self, pattern: str, limit_s: float = READY_S) -> None:
        """Wait until its log matches the regular expression `pattern`."""
        expression = re.compile(pattern)
        try:
            wait_until(lambda: expression.search(self.log()) is not None, limit_s)
        except TimeoutError:
            raise AssertionError(f"{self.name} never logged {pattern!r}; {self.tail()}") from None

    def cpu_s(self) -> float:
        """CPU seconds of its process so far, user and system."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def anon_bytes(self) -> int:
        """Anonymous memory of its process now (RssAnon); page cache is not in it."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def stop_all(daemons: Sequence[Daemon], limit_s: float = STOP_S) -> None:
    """Stop several at once: SIGTERM to all, then wait for each."""
    for daemon in daemons:
        daemon.terminate()
    deadline = time.monotonic() + limit_s
    for daemon in daemons:
        daemon.await_end(max(0.1, deadline - time.monotonic()))


def wait_until(true: Callable[[], bool], limit_s: float, poll_s: float = POLL_S) -> None:
    """Poll a condition.

    Raises:
        TimeoutError: it isn't true within `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:.0f} s")
        time.sleep(poll_s)


def exit_on_signals() -> None:
    """SIGTERM and SIGHUP unwind like Ctrl-C does, so that `finally` blocks run."""

    def unwind(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)


def strap() -> list[str]:
    """Put before a command, it dies with the thread that started it, even by SIGKILL."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


@atexit.register
def _kill_leftovers() -> None:
    for daemon in _running.copy():
        daemon.kill()
