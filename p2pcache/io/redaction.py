"""Values that no message may show: the credentials in use, wherever somebody's words quote them.

Patterns find what looks like a credential (`io.log.redact`). They can't know a session token that
a library prints by itself; whoever holds such a value tells it here.
"""

import threading
from urllib.parse import quote

MARK = "***"
LEAST_CHARS = 6  # shorter ones guard nothing, and would blank out parts of common words
MOST_KEPT = 64  # of each kind; a storage client holds some, renewed ones come after them


class _Values:
    """Thread-safe; `hide` reads without a lock, for every line of a log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, None] = {}
        self._longest_first: tuple[str, ...] = ()

    def keep(self, values: tuple[str | None, ...]) -> None:
        words = [word for value in values if value for word in value.split()]
        forms = [form for word in words for form in (word, quote(word, safe=""), quote(word))]
        with self._lock:
            fresh = [form for form in forms if len(form) >= LEAST_CHARS and form not in self._kept]
            self._kept.update(dict.fromkeys(fresh))
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._longest_first = tuple(sorted(self._kept, key=len, reverse=True))

    def hide(self, text: str) -> str:
        for value in self._longest_first:
            text = text.replace(value, MARK)
        return text


_secrets = _Values()
_ids = _Values()


def keep(*secrets: str | None) -> None:
    """Hide these from now on, also where they are quoted for a URL, or without white space."""
    _secrets.keep(secrets)


def keep_ids(*ids: str | None) -> None:
    """Likewise in what others wrote.

    In our own lines they may be words: whose key is called `models` shall read `s3://models`.
    """
    _ids.keep(ids)


def hide(text: str) -> str:
    """Our own words without secrets."""
    return _secrets.hide(text)


def hide_in_quotes(text: str) -> str:
    """The words of a library or a server, without secrets and the ids of keys."""
    return _ids.hide(_secrets.hide(text))
