"""How long a caller waits for a load."""

import math
import numbers
import time
from typing import Any

from p2pcache.errors import TimedOut, UsageError


class Deadline:
    """The caller's own time limit."""

    def __init__(self, timeout_s: float | None, model: str) -> None:
        self._model = model
        self._timeout_s = timeout_s
        told: Any = timeout_s  # whatever somebody wrote
        number = isinstance(told, numbers.Real) and not math.isnan(told)
        if timeout_s is not None and not number:
            raise UsageError(f"timeout_s {timeout_s!r}: expected seconds, or None for no limit")
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Nothing, while there is time.

        Raises:
            TimedOut: the time is up.
        """
        if self._ends is not None and time.monotonic() > self._ends:
            raise TimedOut(
                f"{self._model}: not all that was needed arrived within {self._timeout_s:g} s; "
                "load it again to go on from there"
            )

    def slice_s(self, most_s: float) -> float:
        """How long to block now."""
        if self._ends is None:
            return most_s
        return max(0.0, min(most_s, self._ends - time.monotonic()))
