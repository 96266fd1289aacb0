"""The warms under way, in the cache dir: no client waits for them, so the agent must resume them itself."""

import logging
import threading
from pathlib import Path

import msgspec

from p2pcache.errors import UsageError
from p2pcache.ids import Ref
from p2pcache.io.notes.json_note import read_page, write_page

log = logging.getLogger(__name__)

FORMAT = 1


class _Page(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    warms: list[str]


class PendingWarms:
    """Refs that are being warmed, in order of request."""

    def __init__(self, path: Path) -> None:
        """Read the note of an earlier process."""
        self._path = path
        self._lock = threading.Lock()  # two threads may write
        page = read_page(path, _Page)
        self._refs = dict.fromkeys(page.warms if page and page.format == FORMAT else ())

    def refs(self) -> list[Ref]:
        """All refs; an entry that isn't a ref is left out, with a warning."""
        found = []
        for text in self._refs:
            try:
                found.append(Ref.parse(text))
            except UsageError as error:
                log.warning("ignoring %r in %s: %s", text, self._path, error)
        return found

    def remember(self, ref: Ref) -> None:
        """Add a ref whose warm begins. Blocking."""
        with self._lock:
            if ref.full not in self._refs:
                self._refs[ref.full] = None
                self._write()

    def forget(self, ref: Ref) -> None:
        """Remove a ref whose warm has ended. Blocking."""
        with self._lock:
            if ref.full in self._refs:
                del self._refs[ref.full]
                self._write()

    def _write(self) -> None:
        write_page(self._path, msgspec.json.encode(_Page(FORMAT, list(self._refs))))
