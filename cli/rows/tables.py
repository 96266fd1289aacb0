"""Tables on stdout: all columns in a pipe; on a terminal only what fits, unless `-o wide` asks for all."""

import functools
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from p2pcache.cli.support.options import json_option
from p2pcache.cli.support.output import LEAST_COLUMNS, clean, columns, emit, shortened

GAP = "  "
SHORT_DIGEST = 12  # hex digits, as docker shows: enough to tell models apart on a screen
LAST_COLUMNS = 6  # of a cell on a terminal so narrow that all texts are cut


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that prints a table with --json and -o; it gets `as_json` and `wide`."""

    @functools.wraps(function)
    def command(*, output: str | None, as_json: bool, **values: Any) -> Any:
        return function(as_json=as_json or output == "json", wide=output == "wide", **values)

    option = click.option(
        "-o", "--output", type=click.Choice(["wide", "json"]),
        help="wide: all columns, also on a narrow terminal; json: as --json.",
    )  # fmt: skip
    return option(json_option(command))


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[int] = (),
    *,
    drop: Sequence[str] = (),
    short: Mapping[str, Sequence[str]] | None = None,
    cut: Sequence[str] = (),
    wide: bool = False,
) -> None:
    """Print columns, two spaces apart.

    Args:
        heads: titles of the columns.
        rows: cells, which may come from elsewhere.
        right: indices of right-aligned columns.
        drop: titles of columns that go on a narrow terminal, the first one first.
        short: cells, by title, that a column gets when that isn't enough.
        cut: titles of columns whose cells are cut when that isn't enough: the last one at its end, others in
            the middle, so that a ref keeps its tag. When not even that is enough, all that isn't right-aligned is cut.
        wide: nothing of this.
    """
    lines = [list(heads), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(columns(line[i]) for line in lines) for i in range(len(heads))]
    shown = list(range(len(heads)))
    if not wide and (limit := _terminal_columns()):
        shown = _fitting(heads, widths, drop, limit)
        if _width(widths, shown) > limit:
            for title, cells in (short or {}).items():
                i = heads.index(title)
                for line, cell in zip(lines[1:], cells, strict=True):
                    line[i] = clean(cell)
                widths[i] = max(columns(line[i]) for line in lines)
        due = [heads.index(title) for title in cut if title in heads]
        _cut(lines, widths, shown, due, limit)
        texts = [i for i in shown if i not in right and i not in due]
        _cut(lines, widths, shown, [*texts, *due], limit, least=LAST_COLUMNS)
    for line in lines:
        cells = []
        for i in shown:
            padding = " " * (widths[i] - columns(line[i]))
            cells.append(padding + line[i] if i in right else line[i] + padding)
        emit(GAP.join(cells).rstrip())


def _terminal_columns() -> int:
    """The width of the terminal; 0: stdout is none."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 0


def _width(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1)


def _fitting(
    heads: Sequence[str], widths: Sequence[int], drop: Sequence[str], limit: int
) -> list[int]:
    """Indices of the columns that are left when as many as needed are dropped."""
    shown = list(range(len(heads)))
    for title in drop:
        if _width(widths, shown) <= limit:
            break
        shown.remove(heads.index(title))
    return shown


def _cut(
    lines: list[list[str]],
    widths: list[int],
    shown: Sequence[int],
    cut: Sequence[int],
    limit: int,
    *,
    least: int = LEAST_COLUMNS,
) -> None:
    """Cut the cells of some columns, the widest column first, until all fits or nothing more can be cut."""
    due = [i for i in cut if i in shown]
    over = _width(widths, shown) - limit
    while over > 0 and (longest := max(due, key=lambda i: widths[i], default=-1)) >= 0:
        others = [widths[i] for i in due if i != longest]
        next_one = max(others, default=0)
        floor = max(least, next_one) if next_one < widths[longest] else least
        aim = max(floor, widths[longest] - over)
        if aim >= widths[longest]:
            due.remove(longest)
            continue
        over -= widths[longest] - aim
        widths[longest] = aim
    for line in lines:
        for i in cut:
            line[i] = shortened(line[i], widths[i], end=i == cut[-1])
