"""Values that no message may show: the credentials in use, whatever text quotes them.

Patterns find text that looks like a credential (`io.log.redact`). They can't know a session token that
a library prints by itself, so the code that holds a credential registers it here.
"""

import threading
from urllib.parse import quote

MARK = "***"
LEAST_CHARS = 6  # shorter ones guard nothing, and would blank out parts of common words
MOST_KEPT = 64  # of each kind; a storage client has a few, and renews them


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
    """Register secrets: they are hidden from now on, also quoted for a URL or without white space."""
    _secrets.keep(secrets)


def keep_ids(*ids: str | None) -> None:
    """Register ids of keys: they are hidden from now on in texts of libraries and servers.

    Not in our own lines, where an id may be a common word: with a key called `models` people must
    still read `s3://models`.
    """
    _ids.keep(ids)


def hide(text: str) -> str:
    """Blank out secrets in a text of our own."""
    return _secrets.hide(text)


def hide_in_quotes(text: str) -> str:
    """Blank out secrets and ids of keys in a text of a library or a server."""
    return _ids.hide(_secrets.hide(text))
