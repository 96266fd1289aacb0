"""The time limit that a caller gives a load."""

import math
import numbers
import time
from typing import Any

from p2pcache.errors import TimedOut, UsageError


class Deadline:
    """A caller's time limit, on the monotonic clock."""

    def __init__(self, timeout_s: float | None, model: str) -> None:
        """Begin now.

        Args:
            timeout_s: seconds; None: no limit.
            model: its name, for messages.

        Raises:
            UsageError: `timeout_s` is no number.
        """
        self._model = model
        self._timeout_s = timeout_s
        given: Any = timeout_s  # callers aren't type-checked
        number = isinstance(given, numbers.Real) and not math.isnan(given)
        if timeout_s is not None and not number:
            raise UsageError(f"timeout_s {timeout_s!r}: expected seconds, or None for no limit")
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Raise an error once the time is up.

        Raises:
            TimedOut: the time is up.
        """
        if self._ends is not None and time.monotonic() > self._ends:
            raise TimedOut(
                f"{self._model}: not all that was needed arrived within {self._timeout_s:g} s; "
                "load it again to go on from there"
            )

    def slice_s(self, most_s: float) -> float:
        """Seconds to block now: `most_s`, or the time that is left if that is less."""
        if self._ends is None:
            return most_s
        return max(0.0, min(most_s, self._ends - time.monotonic()))
