"""Long work on a thread of its own, so that the main thread can draw progress and hear signals."""

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from p2pcache.io.deadline_thread import Stopped

R = TypeVar("R")
LOOK_S = 0.25  # as often as an agent tells its progress


class Watched(Generic[R]):
    """One call of `work(progress)`, where progress is `progress(bytes_done, bytes_total)`."""

    def __init__(self, work: Callable[[Callable[[int, int], None]], R]) -> None:
        self._work = work
        self._state = (0, 0)
        self._stop = threading.Event()
        self._done = threading.Event()
        self._results: list[R] = []
        self._error: BaseException | None = None

    def progress(self) -> Iterator[tuple[int, int]]:
        """Start the work; (bytes done, bytes in all) about four times a second until it has ended.

        Leaving the loop early stops the work at its next sign of progress.
        """
        threading.Thread(target=self._run, name="work", daemon=True).start()
        try:
            while not self._done.wait(LOOK_S):
                yield self._state
        finally:
            self._stop.set()

    def result(self) -> R:
        """What the work returned, or its exception."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._note))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
        finally:
            self._done.set()

    def _note(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._state = (done, total)
