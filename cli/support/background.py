"""Long work on a thread of its own, so that the main thread draws progress and hears signals."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from p2pcache.cli.support.output import clean, note
from p2pcache.core.units import format_duration
from p2pcache.io.deadline_thread import Stopped

R = TypeVar("R")
WAITING_S = 3.0  # between two notes, as an agent, which sends an event
PROGRESS_EVERY_S = 0.25  # as often as an agent sends progress


class Watched(Generic[R]):
    """One call of `work(report)` on a thread. The work calls `report(bytes_done, bytes_total)`."""

    def __init__(self, work: Callable[[Callable[[int, int], None]], R]) -> None:
        self._work = work
        self._state = (0, 0)
        self._stop = threading.Event()
        self._done = threading.Event()
        self._results: list[R] = []
        self._error: BaseException | None = None

    def progress(self) -> Iterator[tuple[int, int]]:
        """Start the work; yield (bytes done, bytes in all) every `PROGRESS_EVERY_S` until it has ended.

        If the loop is left early, the next report raises `Stopped` inside the work.
        """
        threading.Thread(target=self._run, name="work", daemon=True).start()
        try:
            while not self._done.wait(PROGRESS_EVERY_S):
                yield self._state
        finally:
            self._stop.set()

    def result(self) -> R:
        """Wait for the end of the work; return its result or raise its exception."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._report))
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self._done.set()

    def _report(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._state = (done, total)


@contextmanager
def patience_said(text: str, why: Callable[[], str], *, quiet: bool) -> Iterator[None]:
    """Say every few seconds that we wait, until the block ends.

    Args:
        text: what we wait for.
        why: returns the reason; "" if it isn't known.
        quiet: say nothing.
    """
    ended = threading.Event()

    def say() -> None:
        began = time.monotonic()
        while not ended.wait(WAITING_S):
            known = f": {clean(trouble)}" if (trouble := why()) else ""
            note(f"{text} ({format_duration(time.monotonic() - began)}){known}")

    if not quiet:
        threading.Thread(target=say, name="patience", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
