"""Values that no message may show: the credentials in use, wherever somebody's words quote them.

Patterns find what looks like a credential (`io.log.redact`). They can't know a session token that
a library prints by itself; whoever holds such a value tells it here.
"""

import threading
from urllib.parse import quote

MARK = "***"
LEAST_CHARS = 6  # shorter ones guard nothing, and would blank out parts of common words
MOST_KEPT = 64  # each storage client holds three; renewed ones come after them

_lock = threading.Lock()
_kept: dict[str, None] = {}
_longest_first: tuple[str, ...] = ()


def keep(*values: str | None) -> None:
    """Hide these values from now on, also where they are quoted for a URL, or without white space."""
    global _longest_first  # noqa: PLW0603 - read without the lock by every log line
    words = [word for value in values if value for word in value.split()]
    shown = [form for word in words for form in (word, quote(word, safe=""), quote(word))]
    with _lock:
        fresh = [form for form in shown if len(form) >= LEAST_CHARS and form not in _kept]
        if not fresh:
            return
        _kept.update(dict.fromkeys(fresh))
        while len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
        _longest_first = tuple(sorted(_kept, key=len, reverse=True))


def hide(text: str) -> str:
    """The text without them."""
    for value in _longest_first:
        text = text.replace(value, MARK)
    return text
