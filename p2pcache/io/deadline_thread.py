"""One blocking call on a thread of its own, with a deadline that holds even if the call never ends."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from p2pcache.errors import TimedOut

T = TypeVar("T")


class Stopped(Exception):
    """Raised inside the work by its progress callback, when its caller has given up."""


class DeadlineThread(Generic[T]):
    """Started when made. The thread is never joined: one that hangs dies with the process."""

    def __init__(self, work: Callable[[], T], *, limit_s: float, what: str) -> None:
        """Start.

        Args:
            work: called once.
            limit_s: from now on.
            what: named when the time is over.
        """
        self._work = work
        self._what = what
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=what, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, so long at most; whether it has come."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """Wait for the end; return what `work` returned, or raise its error.

        Raises:
            TimedOut: it took too long.
        """
        if not self._done.wait(max(0.0, self._deadline - time.monotonic())):
            raise TimedOut(f"{self._what}: no answer in {self._limit_s:.0f} s")
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        self._done.set()
