"""The one vocabulary of `--json`: an agent's answers in it, whatever words its API has.

The API keeps its words, for agents and commands of two releases talk to each other. docs/cli.md lists the shapes.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from p2pcache.ids import is_digest

SCHEMA = 1  # of all documents and events; a key that goes or changes its meaning makes it 2

_NAMES = {  # a key of the API, and its name here
    "cached_bytes": "bytes_cached",
    "free_bytes": "bytes_free",
    "quota_bytes": "bytes_quota",
    "capacity_bytes": "bytes_capacity",
    "limit_bytes": "bytes_limit",
    "used_bytes": "bytes_used",
    "held_bytes": "bytes_held",
    "kept_bytes": "bytes_kept",
    "evictable_bytes": "bytes_evictable",
    "missing_bytes": "bytes_missing",
    "size": "bytes",  # of a file
    "rate": "bytes_per_s",
    "rates": "bytes_per_s",
    "peak_rate": "peak_bytes_per_s",
    "ended": "ended_at",
    "began": "began_at",
    "started": "started_at",
    "last_used": "last_used_at",
    "made": "made_at",
    "ends": "ends_at",
    "changed_at": "changed_at",
    "last_heartbeat": "last_heartbeat_at",
}
_TIMES = {"ended", "began", "started", "last_used", "made", "ends", "changed_at", "last_heartbeat"}
_MOVED = {"peer": "peers"}  # in counts by where bytes came from or went


def document(value: Mapping[str, object]) -> dict[str, object]:
    """An answer or event in the vocabulary, with the schema's version."""
    return {"schema": SCHEMA, **_object(value)}


def rfc3339(unix_s: float) -> str | None:
    """A time in UTC, for example `2026-11-26T08:17:47.123Z`; None for 0: it never was."""
    if not unix_s:
        return None
    text = datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def _object(value: Mapping[str, object]) -> dict[str, object]:
    spoken: dict[str, object] = {}
    for key, found in value.items():
        if key == "bytes" and isinstance(found, Mapping):
            spoken |= {f"bytes_{_MOVED.get(name, name)}": n for name, n in found.items()}
        elif key == "rates" and isinstance(found, Mapping):
            spoken[_NAMES[key]] = {_MOVED.get(name, name): n for name, n in found.items()}
        elif key in _TIMES and isinstance(found, int | float):
            spoken[_NAMES[key]] = rfc3339(found)
        else:
            spoken[_NAMES.get(key, key)] = _SPECIAL.get(key, _any)(found)
    return spoken


def _any(value: object) -> object:
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, list | tuple):
        return [_any(each) for each in value]
    return value


def _digest(value: object) -> object:
    return f"blake3:{value}" if isinstance(value, str) and is_digest(value) else value


_SPECIAL: dict[str, Callable[[Any], object]] = {"digest": _digest}
