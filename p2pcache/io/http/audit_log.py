"""The audit log: one line for each request, with its caller and its result, on a logger of its own.

The lines are written at any log level, as `key=value` text, or with `log_format = "json"` as
an object under "audit". docs/operations.md lists the fields.
"""

import logging
import time
from types import TracebackType
from typing import Self

from p2pcache.errors import P2PCacheError

LOGGER = "p2pcache.audit"
MAX_VALUE_CHARS = 300  # a message may quote strangers

_log = logging.getLogger(LOGGER)
_log.setLevel(logging.INFO)  # a quiet human log must not lose the record


def write(who: str, action: str, *, result: str, **more: object) -> None:
    """Write one line.

    Args:
        who: the caller, for example `uid=1000 pid=77` or `token=ci id=3f..`.
        action: pull, warm, push, rm, prune, verify, or call for everything else.
        result: ok, refused, failed or left (the client went away first).
        more: further fields; None and "" are left out.
    """
    fields: dict[str, object] = {"who": who, "action": action, **more, "result": result}
    fields = {k: _short(v) for k, v in fields.items() if v not in (None, "")}
    text = " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())
    _log.info("%s", text, extra={"audit": fields})


class Entry:
    """A long action: `with Entry(...) as entry:` writes the line at the end of the block.

    The result is `failed` after an error, `left` if the client went away first, else `ok`.
    """

    def __init__(self, who: str, action: str, **more: object) -> None:
        self.fields: dict[str, object] = dict(more)  # callers add fields while it runs
        self._who = who
        self._action = action
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        result, more = "ok", dict(self.fields)
        if isinstance(error, P2PCacheError):
            result, more = "failed", more | {"code": error.exit_code, "why": str(error)}
        elif isinstance(error, Exception):
            result, more = "failed", more | {"code": 1, "why": type(error).__name__}
        elif error is not None:  # cancelled, or its reader closed it
            result = "left"
        seconds = round(time.monotonic() - self._began, 3)
        write(self._who, self._action, result=result, **more, seconds=seconds)


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        return value[:MAX_VALUE_CHARS] + "..."
    return value


def _quoted(value: object) -> str:
    text = str(value)
    if any(c.isspace() or c in '"=' for c in text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
