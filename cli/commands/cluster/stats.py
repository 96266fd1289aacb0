"""`stats`: watch this node, live on a terminal, once anywhere else."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from p2pcache.cli.support.client_options import Loaded, client_options
from p2pcache.cli.support.connect import need_agent
from p2pcache.cli.support.describe import history_result, status_lines
from p2pcache.cli.support.options import Command, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.cli.support.progress import peer_share
from p2pcache.core.units import format_bytes, format_duration, parse_duration
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io.http.client import AgentClient

if TYPE_CHECKING:
    from rich.text import Text

MIN_INTERVAL_S = 0.1  # people see no more, and each look costs the agent work
HISTORY_ROWS = 5
BAR_WIDTH = 24  # characters
DIRECTIONS = (("peer", "from peers"), ("origin", "from storage"), ("served", "served"))


@click.command(cls=Command)
@click.option("--interval", default="1s", metavar="DURATION", help="Between looks [default: 1s].")
@json_option
@client_options()
def stats(interval: str, as_json: bool, loaded: Loaded) -> None:
    """Watch this node: rates, pulls, what ended lately.

    Live on a terminal, until Ctrl-C. In a pipe, and with --json, it looks twice, --interval apart,
    and prints once: `p2pcache status` and the rates between the two looks.

    Examples:
      p2pcache stats
      p2pcache stats --json | jq .bytes_per_s
    """
    pause_s = parse_duration(interval)
    if pause_s < MIN_INTERVAL_S:
        raise UsageError(f"--interval {interval} is too short; at least {MIN_INTERVAL_S:g}s")
    watch = Watch(need_agent(loaded))
    watch.refresh()
    if sys.stdout.isatty() and not as_json:
        _live(watch, pause_s)
        return
    time.sleep(pause_s)
    watch.refresh()
    if as_json:
        emit_document({**watch.state, "rates": watch.rates, "history": watch.lately})
        return
    for line in watch.lines():
        emit(line)


class Watch:
    """The last answers of an agent, and the rates between the last two."""

    def __init__(self, client: AgentClient) -> None:
        self.state: dict[str, Any] = {}
        self.rates: dict[str, int] = {}  # bytes per second by direction
        self.lately: list[dict[str, Any]] = []  # rows of its history, the newest first
        self.trouble = ""  # why it didn't answer last
        self._client = client
        self._at = 0.0

    def refresh(self) -> None:
        """Ask the agent for its status and history, and compute the rates since the last time.

        Raises:
            P2PCacheError: it doesn't answer, or refuses.
        """
        state, lately = self._client.status(), self._client.history(HISTORY_ROWS)
        now = time.monotonic()
        before, passed = self.state.get("bytes", {}), now - self._at
        if before:
            # A restarted agent counts from zero: no rate is negative.
            self.rates = {
                name: max(0, round((count - before.get(name, 0)) / passed))
                for name, count in state["bytes"].items()
            }
        self.state, self.lately, self._at, self.trouble = state, lately, now, ""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the screen."""
        for label, text in status_lines(self.state, self._client.address):
            if label != "traffic:":
                yield f"{label:10}{text}"
        yield ""
        yield f"{'':14}{'now':>12}{'since start':>14}"
        moved = self.state.get("bytes", {})
        for name, label in DIRECTIONS:
            rate = f"{format_bytes(self.rates[name])}/s" if name in self.rates else "-"
            yield f"{label:14}{rate:>12}{format_bytes(moved.get(name, 0)):>14}"
        yield ""
        yield f"{self.state.get('load', 0)} uploads, {self.state.get('peers', 0)} peer connections"
        yield from _pulls(self.state.get("pulls", ()))
        yield from _ended(self.lately)
        if self.trouble:
            yield ""
            yield f"no answer: {clean(self.trouble)}; trying again"


def _waiting(pull: dict[str, Any]) -> str:
    """Say how many clients wait for a pull, or the kind of one that nobody waits for."""
    kind = pull.get("kind", "pull")
    return f"{pull.get('clients', 0)} waiting" if kind == "pull" else clean(kind)


def _pulls(pulls: list[dict[str, Any]]) -> Iterator[str]:
    yield ""
    yield "PULLS" if pulls else "no pull runs"
    for pull in pulls:
        done, total = pull["bytes_done"], max(1, pull["bytes_total"])
        full = BAR_WIDTH * done // total
        parts = (
            f"{done / total:4.0%}", f"of {format_bytes(total)}", f"{format_bytes(pull['rate'])}/s",
            f"ETA {format_duration(pull['eta_s'])}" if pull.get("eta_s") is not None else "",
            peer_share(pull), _waiting(pull),
        )  # fmt: skip
        yield f"{clean(pull['ref'])}"
        yield f"  {'#' * full}{'.' * (BAR_WIDTH - full)}  {'  '.join(p for p in parts if p)}"


def _ended(rows: list[dict[str, Any]]) -> Iterator[str]:
    if rows:
        yield ""
        yield "LATELY"
    for row in rows:
        at = time.strftime("%H:%M:%S", time.localtime(row["ended"]))
        size = format_bytes(row["bytes"])
        took = f", {size} in {format_duration(row['seconds'])}" if not row["code"] else ""
        yield clean(f"{at}  {row['action']} {row['ref']}  {history_result(row)}{took}")


def _live(watch: Watch, pause_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    with _interrupt_pipe() as interrupted, Live(
        _screen(watch), console=Console(), screen=True, auto_refresh=False
    ) as live:  # fmt: skip
        while not select.select([interrupted], [], [], pause_s)[0]:
            try:
                watch.refresh()
            except P2PCacheError as error:  # it may be restarting: the last answer stays on screen
                watch.trouble = str(error)
            live.update(_screen(watch), refresh=True)


def _screen(watch: Watch) -> "Text":
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    for line in watch.lines():
        heading = line in ("PULLS", "LATELY") or line.startswith("agent:")
        style = "bold" if heading else "red" if line.startswith("no answer") else ""
        text.append(line + "\n", style=style)
    return text


@contextmanager
def _interrupt_pipe() -> Iterator[int]:
    """Yield a file descriptor that can be read after Ctrl-C, so that a live view ends in order.

    The handler must not set an event: it would wait for the lock of a wait that it has interrupted.
    """
    reader, writer = os.pipe()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: os.write(writer, b"\0"))
    try:
        yield reader
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reader)
        os.close(writer)
