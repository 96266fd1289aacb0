"""How far a load is: a bar for a person, a line now and then for a log."""

import importlib
import importlib.util
import logging
import sys
import time
from typing import Any

from p2pcache.core.units import format_bytes

log = logging.getLogger("p2pcache.loader")
LINE_S = 10.0  # between two lines: a load of an hour writes 360
BAR_AFTER_S = 1.0  # loads that end sooner show no bar


class Progress:
    """Of one load. `tick` is cheap: call it often, also while waiting."""

    def __init__(self, model: str, total_bytes: int, *, bar: bool | None = None) -> None:
        """Begin to count; nothing is shown yet.

        Args:
            model: its name.
            total_bytes: that the load will hand out.
            bar: show one; None: on a terminal or in a notebook, where tqdm is installed. Without a bar
                there are lines, at INFO.
        """
        self._model = model
        self._total_bytes = total_bytes
        self._wants_bar = _for_a_person() if bar is None else bar
        self._bar: Any = None
        self._began = time.monotonic()
        self._due = self._began + (BAR_AFTER_S if self._wants_bar else LINE_S)

    def tick(self, done_bytes: int) -> None:
        """Show the state, if it is time to.

        Args:
            done_bytes: handed out so far.
        """
        now = time.monotonic()
        if now < self._due:
            return
        if not self._wants_bar:
            self._due = now + LINE_S
            self._log(done_bytes, now - self._began)
            return
        if self._bar is None:
            self._bar = _make_bar(self._model, self._total_bytes)
        self._bar.update(done_bytes - self._bar.n)

    def close(self, done_bytes: int) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.update(done_bytes - self._bar.n)
            self._bar.close()

    def _log(self, done_bytes: int, seconds: float) -> None:
        share = 100 * done_bytes / self._total_bytes if self._total_bytes else 100.0
        log.info(
            "loading %s: %s of %s (%.0f%%), %s/s", self._model, format_bytes(done_bytes),
            format_bytes(self._total_bytes), share, format_bytes(done_bytes / seconds),
        )  # fmt: skip


def _for_a_person() -> bool:
    notebook = "ipykernel" in sys.modules
    seen = notebook or (sys.stderr is not None and sys.stderr.isatty())
    return seen and importlib.util.find_spec("tqdm") is not None


def _make_bar(model: str, total_bytes: int) -> Any:
    return importlib.import_module("tqdm.auto").tqdm(
        desc=model, total=total_bytes, unit="B", unit_scale=True
    )
