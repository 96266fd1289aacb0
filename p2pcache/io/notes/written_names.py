"""How names of models are written, in the cache dir: the links of the hub view say so only while a model is shown."""

import threading
from pathlib import Path

import msgspec

from p2pcache.ids import Ref, is_spelling_of
from p2pcache.io.notes.json_note import read_page, write_page

FILE = "names.json"
FORMAT = 1
MOST = 20_000  # names; a cache has thousands of models


class _Page(msgspec.Struct):
    format: int
    written: list[str]


class WrittenNames:
    """Names with capitals, the latest ones at the end. Thread-safe; changes block for disk."""

    def __init__(self, path: Path) -> None:
        """Read the note of an earlier process; empty, with a warning, if it can't be read."""
        self._path = path
        self._lock = threading.Lock()
        page = read_page(path, _Page)
        known = page.written if page is not None and page.format == FORMAT else []
        self._written = {name.lower(): name for name in known}

    def of(self, ref: Ref) -> str:
        """How a name is written: `[namespace/]name`; "": in lower case, as far as is known here."""
        return self._written.get(ref.full_name, "")

    def remember(self, ref: Ref, spelling: str) -> None:
        """A name is written so."""
        if not is_spelling_of(spelling, ref) or (self.of(ref) or ref.full_name) == spelling:
            return
        with self._lock:
            self._written.pop(ref.full_name, None)
            if spelling != ref.full_name:
                self._written[ref.full_name] = spelling
            if len(self._written) > MOST:
                del self._written[next(iter(self._written))]
            page = _Page(FORMAT, list(self._written.values()))
            write_page(self._path, msgspec.json.encode(page))
