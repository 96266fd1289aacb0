"""Output of commands: lines and JSON on stdout, notes on stderr."""

import contextlib
import errno
import json
import os
import re
import select
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any

from p2pcache.cli.support.vocabulary import document
from p2pcache.errors import NoSpace, P2PCacheError

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LEAST_COLUMNS = 10  # of a text that is cut


def emit(text: str) -> None:
    """Print one line on stdout. If its reader has gone (`| head`), go on without output.

    Raises:
        NoSpace: stdout is a file on a full disk.
        P2PCacheError: stdout can't be written for another reason.
    """
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        abandon_stdout()
        if isinstance(error, BrokenPipeError):
            return
        raise stdout_error(error) from error


def abandon_stdout() -> None:
    """Send the interpreter's last flush to /dev/null: it must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Whether nobody reads stdout any more (`| head`)."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def stdout_error(error: OSError) -> P2PCacheError:
    """The error of our tree for a stdout that can't be written."""
    kind = NoSpace if error.errno in _FULL else P2PCacheError
    return kind(f"can't write to stdout: {error.strerror}")


def emit_json(value: Mapping[str, object]) -> None:
    """Print an event as one line of JSON on stdout, in the vocabulary of `--json`."""
    emit(_json(document(value), separators=(", ", ": ")))


def emit_document(value: Mapping[str, object]) -> None:
    """Print an indented JSON document on stdout, in the vocabulary of `--json`."""
    emit(_json(document(value), indent=2))


def _json(value: Mapping[str, object], **how: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, **how)
    return text.encode(errors="backslashreplace").decode()  # a name's bytes that aren't UTF-8


def note(text: str) -> None:
    """Print one line for people on stderr. A stderr that can't be written (a log on a full disk) is no fault."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def end_notes() -> None:
    """Give up what stderr wouldn't take; the interpreter's last flush would fail, and change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def clean(text: object) -> str:
    """Make a text from elsewhere safe for a terminal: "?" for each control character."""
    return _UNPRINTABLE.sub("?", str(text))


def columns(text: str) -> int:
    """The width of a text on a terminal: a Chinese, Japanese or Korean character takes two columns."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def shortened(text: str, width: int, *, end: bool = False) -> str:
    """A text cut to a width, with an ellipsis in the middle, or at its end."""
    if columns(text) <= width:
        return text
    tail = "" if end else _last(text, (width - 1) // 2)
    head = ""
    for character in text:
        if columns(head + character) + 1 + columns(tail) > width:
            break
        head += character
    return f"{head}…{tail}"


def _last(text: str, width: int) -> str:
    tail = ""
    for character in reversed(text):
        if columns(character + tail) > width:
            break
        tail = character + tail
    return tail
