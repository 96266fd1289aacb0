"""Progress of pull, push and verify: a bar, a line now and then, NDJSON, or nothing.

A reporter takes the events of docs/api.md. rich is imported when the first bar is drawn: a command
that waits for nothing does without.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from p2pcache.cli.support.output import LEAST_COLUMNS, clean, columns, emit_json, note, shortened
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import P2PCacheError
from p2pcache.io.http.client import Events

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from p2pcache.io.files.indexing import Progress as Hashed

Event = dict[str, Any]
PHASES = {
    "index": "hashing",
    "send": "sending to the agent",
    "upload": "uploading",
    "import": "reading",
    "fetch": "fetching",
}
EVENT_EVERY_S = 0.25  # ten thousand small files must not become ten thousand events
WAITING_S = 3.0  # longer silence looks like a fault
LINE_EVERY_S = 4.0  # often enough to see that it lives, seldom enough for a pod's log
FIRST_LINE_S = 3.0  # the command itself has taken a second to start
BAR_COLUMNS = 16
TITLE_COLUMNS = 24  # that a long title gets at least


class Reporter(Protocol):
    """Shows the events of one command."""

    def update(self, event: Event) -> None:
        """Take an event that isn't the last."""

    def close(self) -> None:
        """End the display: no more events come."""

    def done(self, event: Event, summary: str) -> None:
        """Take the last event, and a summary of it for people."""


def hashing_progress(reporter: Reporter) -> "Callable[[Hashed], None]":
    """Return a callback that reports the progress of hashing, four times a second at most."""
    due = 0.0

    def tell(progress: "Hashed") -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + EVENT_EVERY_S
            reporter.update({
                "event": "progress", "phase": "index",
                "bytes_done": progress.bytes_done, "bytes_total": progress.bytes_total,
            })  # fmt: skip

    return tell


def make_reporter(title: str, *, as_json: bool, quiet: bool) -> Reporter:
    """Choose the reporter by flags and terminal.

    Args:
        title: of the display, for example `pulling team/llama:v3`.
        as_json: NDJSON on stdout.
        quiet: print nothing.
    """
    if as_json:
        return JsonReporter()
    if quiet:
        return QuietReporter()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return BarReporter(title)
    return LineReporter(title)


def follow(events: Events, reporter: Reporter) -> Event:
    """Give the events to the reporter, up to `done`, which is returned.

    The caller reports `done` itself, after what it still has to do.

    Raises:
        P2PCacheError: an error event, or no last event.
    """
    with closing(reporter), closing(events):
        for event in events:
            if event["event"] == "done":
                return event
            reporter.update(event)
    raise P2PCacheError("the agent ended without a last event")


class QuietReporter:
    """Prints nothing."""

    def update(self, event: Event) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Do nothing."""

    def done(self, event: Event, summary: str) -> None:
        """Ignore it."""


class JsonReporter(QuietReporter):
    """Prints each event as one line of JSON on stdout."""

    def update(self, event: Event) -> None:
        """Print the event as it came."""
        emit_json(event)

    def done(self, event: Event, summary: str) -> None:
        """Print the event as it came."""
        emit_json(event)


class LineReporter:
    """Prints one line on stderr every few seconds."""

    def __init__(self, title: str) -> None:
        self._title = clean(title)
        self._meter = Meter()
        self._next = time.monotonic() + FIRST_LINE_S

    def update(self, event: Event) -> None:
        """Print a line, if the last one is old enough."""
        if event["event"] != "progress":
            _note_other(self._title, event)
            return
        now = time.monotonic()
        parts = self._meter.on_event(event, now)
        if now >= self._next:
            self._next = now + LINE_EVERY_S
            told = (_phase(event), *parts, _trouble(event))
            note(f"{self._title}: {', '.join(p for p in told if p)}")

    def close(self) -> None:
        """Do nothing."""

    def done(self, event: Event, summary: str) -> None:
        """Print the summary."""
        note(summary)


class BarReporter:
    """Draws a bar on a terminal's stderr, and removes it when the work is done."""

    def __init__(self, title: str) -> None:
        self._title = clean(title)
        self._meter = Meter()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def update(self, event: Event) -> None:
        """Draw the bar."""
        if event["event"] != "progress":
            _note_other(self._title, event)
            return
        told = (*self._meter.on_event(event, time.monotonic()), _phase(event), _trouble(event))
        if self._bar is None:
            self._bar = _rich_bar()
            self._task = self._bar.add_task(self._title, total=1.0, text="")
            self._bar.start()
        assert self._task is not None
        title, text = fit_bar(self._title, told, self._bar.console.width)
        self._bar.update(
            self._task, description=title, completed=self._meter.share, text=text, refresh=True
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def done(self, event: Event, summary: str) -> None:
        """Replace the bar by the summary."""
        self.close()
        note(summary)


class Meter:
    """Computes share done, rate, time left and share from peers from progress events."""

    def __init__(self) -> None:
        self.share = 0.0
        self._phase: object = None
        self._since = 0.0
        self._bytes = 0
        self._rate = 0.0

    def on_event(self, event: Event, now: float) -> tuple[str, str, str, str, str]:
        """Return (percent, amount, rate, ETA, share from peers) as texts; "" where not known.

        Args:
            event: of progress.
            now: monotonic seconds.
        """
        done, total = int(event.get("bytes_done", 0)), int(event.get("bytes_total", 0))
        self._measure(event, done, now)
        self.share = done / total if total else 0.0
        eta = f"ETA {format_duration((total - done) / self._rate)}" if self._rate > 1 else ""
        return (
            f"{self.share:.0%}" if total else "",
            f"{format_bytes(done)} of {format_bytes(total)}" if total else format_bytes(done),
            f"{format_bytes(self._rate)}/s" if self._rate > 1 else "",
            eta,
            peer_share(event),
        )

    def _measure(self, event: Event, done: int, now: float) -> None:
        """Take the rate from the event; without one measure it, smoothed over about 3 s."""
        if event.get("phase") != self._phase or not self._since:
            self._phase, self._since, self._bytes, self._rate = event.get("phase"), now, done, 0.0
        if isinstance(event.get("rate"), int | float):
            self._rate = float(event["rate"])
            return
        passed = now - self._since
        if passed < 0.2:  # the time is too short to measure
            return
        fresh = max(0, done - self._bytes) / passed
        weight = min(1.0, passed / 3.0) if self._rate else 1.0
        self._rate += weight * (fresh - self._rate)
        self._since, self._bytes = now, done


def peer_share(event: Event) -> str:
    """Say `87% from 12 peers`; "" when nothing came over the network yet."""
    peers, origin = int(event.get("bytes_peers", 0)), int(event.get("bytes_origin", 0))
    if not peers + origin:
        return ""
    count = event.get("peers")
    who = f"{count} peers" if isinstance(count, int) and count > 1 else "peers"
    return f"{peers / (peers + origin):.0%} from {who}"


def fit_bar(
    title: str, told: tuple[str, str, str, str, str, str, str], width: int
) -> tuple[str, str]:
    """Return title and text that leave room for the bar: a long ref is cut, then what matters less goes.

    Args:
        title: of the display.
        told: percent, amount, rate, ETA, share from peers, phase, trouble.
        width: columns of the terminal.
    """
    room = width - BAR_COLUMNS - len(" " * 3)  # two gaps; the last column stays free
    room -= min(columns(title), TITLE_COLUMNS)
    shown = list(told)
    if told[6]:  # then nothing else moves
        shown[6] = shortened(told[6], max(LEAST_COLUMNS, room - columns(told[0]) - 2), end=True)
    kept: set[int] = set()
    for part in (0, 6, 5, 2, 3, 1, 4):  # what matters most comes first
        cost = columns(shown[part]) + (2 if kept else 0)
        if shown[part] and cost <= room:
            kept.add(part)
            room -= cost
    text = "  ".join(shown[part] for part in sorted(kept))
    return shortened(title, min(columns(title), TITLE_COLUMNS) + room), text


def _note_other(title: str, event: Event) -> None:
    """Print what else people should know: what we wait for, or that a tag may be old."""
    if event["event"] == "waiting":
        seconds = format_duration(float(event.get("seconds", 0)))
        why = f": {_trouble(event)}" if event.get("trouble") else ""
        note(f"{title}: waiting for {clean(event.get('for'))} to answer ({seconds}){why}")
    if event["event"] == "warning":
        note(f"warning: {clean(event.get('message'))}")
    if event.get("stale"):
        ref = clean(event.get("ref"))
        why = _trouble(event) or "neither tracker nor storage answers"
        note(f"note: {ref} is taken as this cache last knew it: {why}")


def _trouble(event: Event) -> str:
    """Return why storage or the tracker fails, while we wait for it; "" if that isn't known."""
    return clean(event.get("trouble") or "")


def _phase(event: Event) -> str:
    return PHASES.get(str(event.get("phase")), "")


def _rich_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=BAR_COLUMNS),
        TextColumn("{task.fields[text]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # each event refreshes it
    )
