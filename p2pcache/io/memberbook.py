"""The last known members, in the cache dir: whom to look for while the tracker is gone.

Losing it loses nothing while the tracker lives. Entries of nodes that are long gone cost a failed
dial each, no more.
"""

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from p2pcache.core.messages import Member

log = logging.getLogger(__name__)

FORMAT = 1
MAX_MEMBERS = 20_000  # as many as a large cluster has, twice
MAX_FILE_BYTES = 8 << 20


class _Page(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    members: list[Member]


class MemberBook:
    """Members by id, the ones heard of last at the end. Not for use by two threads at once."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier life wrote; what can't be read is worth a warning, not an end."""
        self.members: dict[int, Member] = {}
        self._path = path
        self._fresh = False
        try:
            with path.open("rb") as file:
                page = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_Page)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("ignoring %s: %s", path, error)
            return
        if page.format == FORMAT:
            self.members = {member.node: member for member in page.members[-MAX_MEMBERS:]}

    def note(self, members: Iterable[Member]) -> None:
        """The tracker named these."""
        for member in members:
            self._fresh = self._fresh or self.members.get(member.node) != member
            self.members.pop(member.node, None)
            self.members[member.node] = member
        while len(self.members) > MAX_MEMBERS:
            del self.members[next(iter(self.members))]

    def page(self) -> bytes | None:
        """What is to be written, once; None if nothing is news since the last time."""
        if not self._fresh:
            return None
        self._fresh = False
        return msgspec.json.encode(_Page(FORMAT, list(self.members.values())))

    def write(self, page: bytes) -> None:
        """Write a page, atomically. Blocking; problems are logged."""
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            fresh.write_bytes(page)
            fresh.replace(self._path)
        except OSError as error:
            log.warning("can't write %s: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
