"""What commands print: lines and JSON on stdout, notes on stderr, tables."""

import errno
import json
import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence

from p2pcache.errors import NoSpace, P2PCacheError

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def emit(text: str) -> None:
    """One line on stdout. A reader that went away (`| head`) is no error: the work goes on."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        # What waits in the buffer must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        kind = NoSpace if error.errno == errno.ENOSPC else P2PCacheError
        raise kind(f"can't write to stdout: {error.strerror}") from error


def emit_json(value: Mapping[str, object]) -> None:
    """One JSON object as one line on stdout."""
    emit(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))


def emit_document(value: Mapping[str, object]) -> None:
    """One JSON document on stdout, for people and jq alike."""
    emit(json.dumps(value, ensure_ascii=False, indent=2))


def note(text: str) -> None:
    """One line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


def clean(text: object) -> str:
    """Text from elsewhere, made safe for a terminal: no control characters."""
    return _UNPRINTABLE.sub("?", str(text))


def table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()
) -> None:
    """Columns, two spaces apart; `right` are the indices of right-aligned ones.

    The same text on a terminal and in a pipe: what a person sees is what `awk` gets.
    """
    lines = [list(heads), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(_columns(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        cells = []
        for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
            padding = " " * (width - _columns(cell))
            cells.append(padding + cell if i in right else cell + padding)
        emit("  ".join(cells).rstrip())


def _columns(text: str) -> int:
    """How many columns a terminal gives a text: two to each Chinese, Japanese or Korean character."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)
