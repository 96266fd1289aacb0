"""The last known members, in the cache dir: whom to look for while the tracker is gone.

Losing it loses nothing while the tracker lives. Entries of nodes that are long gone cost a failed
dial each, no more.
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


class MemberBook:
    """Members by id, the ones heard of last at the end. Not for use by two threads at once."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier life wrote; what can't be read is worth a warning, not an end."""
        self.members: dict[int, Member] = {}
        self._path = path
        self._fresh = False
        page = read_page(path, _Page)
        if page is not None and page.format == FORMAT:
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
        write_page(self._path, page)
