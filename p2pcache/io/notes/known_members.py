"""The last known members, in the cache dir: nodes to dial while the tracker is gone.

Losing the note loses nothing while the tracker lives. An entry of a node that is long gone costs a
failed dial.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from p2pcache.core.protocol.messages import Member
from p2pcache.io.notes.json_note import read_page, write_page

FORMAT = 1
MAX_MEMBERS = 20_000  # as many as a large cluster has, twice


class _Page(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    members: list[Member]


class KnownMembers:
    """Members by id, the latest ones at the end. Not for use by two threads at once."""

    def __init__(self, path: Path) -> None:
        """Read the note of an earlier process; empty, with a warning, if it can't be read."""
        self.members: dict[int, Member] = {}
        self._path = path
        self._changed = False
        page = read_page(path, _Page)
        if page is not None and page.format == FORMAT:
            self.members = {member.node: member for member in page.members[-MAX_MEMBERS:]}

    def remember(self, members: Iterable[Member]) -> None:
        """Add members that the tracker named."""
        for member in members:
            self._changed = self._changed or self.members.get(member.node) != member
            self.members.pop(member.node, None)
            self.members[member.node] = member
        while len(self.members) > MAX_MEMBERS:
            del self.members[next(iter(self.members))]

    def page(self) -> bytes | None:
        """The page to write; None if nothing changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        return msgspec.json.encode(_Page(FORMAT, list(self.members.values())))

    def write(self, page: bytes) -> None:
        """Write a page atomically. Blocking; errors are logged."""
        write_page(self._path, page)
