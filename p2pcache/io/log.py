"""The human log: to stderr, as text or JSON lines, friendly to journald, without secrets.

Messages may quote strangers, so control characters are escaped (no forged lines, no terminal
tricks), and everything that looks like a credential is blanked out.
"""

import datetime as dt
import logging
import os
import re
import sys
from typing import Literal, TextIO

import msgspec

from p2pcache.io import redaction

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_CREDENTIALS = re.compile(
    r"(?i)(?<=//)[^/@\s]+(?=@)"  # user:password@ in a URL
    r"|(?<=authorization: )[^\r\n]+"
    r"|(?<=bearer )[\w.~+/=-]+"
    r"|(?<=p2pc1\.)[\w.-]+"  # a client's token
    r"|(?<=x-amz-signature=)[^&\s]+"
    r"|(?<=x-amz-credential=)[^&\s]+"
    r"|(?<=x-amz-security-token=)[^&\s]+"
    r"|(?<=x-amz-security-token:)[^\r\n]+"
    r"|\bAWS4-HMAC-SHA256\b[^\r\n]*"  # the header that botocore makes, and the text that it signs
    r"|(?<=\bsignature=)[^&\s,;'\"]+"
    r"|(?<=\bcredential=)[^&\s,;'\"]+"
    r"|(?<=accesskeyid=)[^&\s,;'\"]+"  # presigned in the old way
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CLIENTS = ("botocore", "urllib3")
# syslog severities, as journald reads them from a "<n>" prefix
_SEVERITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def setup(level: str = "info", log_format: Format = "text", stream: TextIO | None = None) -> None:
    """Send the project's log to `stream` (default stderr). Called once, by a daemon's main.

    Args:
        level: one of `LEVELS`.
        log_format: "text" for people, "json" for collectors.
        stream: where to; under journald text lines carry a severity and no time of their own.
    """
    out = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(out)
    journal = "JOURNAL_STREAM" in os.environ and not out.isatty()
    handler.setFormatter(_Json() if log_format == "json" else _Text(journal=journal))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries: only warnings
    # It logs a trace for each malformed request: strangers could fill the disk. `io.http.server` logs our bugs.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("p2pcache").setLevel(level.upper())


def redact(text: str) -> str:
    """Blank out credentials and escape control characters; a tab and a newline stay."""
    text = _CREDENTIALS.sub(redaction.MARK, redaction.hide(text))
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def _message(record: logging.LogRecord) -> str:
    return redact(record.getMessage()).replace("\n", "\\n")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The trace of an error; of a storage client's own warning only the kind, for it may quote keys."""
    assert record.exc_info
    if record.name.partition(".")[0] in _CLIENTS:
        return getattr(record.exc_info[0], "__name__", "")
    return redact(redaction.hide_in_quotes(formatter.formatException(record.exc_info)))


class _Text(logging.Formatter):
    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("p2pcache.")
        line = f"{record.levelname.lower()} {name}: {_message(record)}"
        trace = ""
        if record.exc_info:
            trace = "\n" + _trace(self, record)
        if self._journal:
            mark = f"<{_SEVERITY.get(record.levelno, 6)}>"
            return mark + line + trace.replace("\n", "\n" + mark)
        return f"{_stamp(record)} {line}{trace}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        fields = getattr(record, "audit", None)  # see io/http/audit_log.py
        if isinstance(fields, dict):
            entry["audit"] = {
                key: redact(value) if isinstance(value, str) else value
                for key, value in fields.items()
            }
        if record.exc_info:
            entry["trace"] = _trace(self, record)
        return msgspec.json.encode(entry).decode()


def _stamp(record: logging.LogRecord) -> str:
    when = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
