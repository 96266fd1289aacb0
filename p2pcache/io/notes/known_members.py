"""The last known members, in the cache dir: nodes to dial while the tracker is gone.

Losing the note loses nothing while the tracker lives. Nodes that are long gone cost failed dials, so each is forgotten
a week after the tracker named it last. Nodes that only named themselves, when they dialled this one, never take the
place of nodes that the tracker named: whoever has the key can call under any number of ids.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from p2pcache.core.protocol.address import can_be_tried
from p2pcache.core.protocol.messages import Member
from p2pcache.ids import NodeId
from p2pcache.io.notes.json_note import read_page, write_page

FORMAT = 1
MAX_MEMBERS = 20_000  # as many as a large cluster has, twice
MAX_CALLERS = 1000  # that the tracker didn't name
KEPT_S = 7 * 86_400.0  # since the tracker named a node
FRESH_S = (
    86_400.0  # the note is written again for a newer time only if the old one is older than this
)


class _Page(msgspec.Struct):
    format: int
    members: list[Member]
    seen: list[float] = []  # unix seconds, of each member; 0: only the node itself named it


class KnownMembers:
    """Members by id, the latest ones at the end. Not for use by two threads at once."""

    def __init__(self, path: Path, *, wall: Callable[[], float] = time.time) -> None:
        """Read the note of an earlier process; empty, with a warning, if it can't be read.

        Args:
            path: of the note.
            wall: unix seconds.
        """
        self._named: dict[int, Member] = {}
        self._seen: dict[
            int, float
        ] = {}  # when the tracker named each of them last, as the note has it
        self._callers: dict[int, Member] = {}
        self._path = path
        self._wall = wall
        self._changed = False
        page = read_page(path, _Page)
        if page is not None and page.format == FORMAT:
            self._take(page)

    @property
    def members(self) -> dict[int, Member]:
        """All of them: those that only named themselves first."""
        self._forget_old()
        return self._callers | self._named

    def remember(self, members: Iterable[Member]) -> None:
        """Add members that the tracker named."""
        now = self._wall()
        for member in members:
            node = member.node
            fresh = now - self._seen.get(node, 0.0) < FRESH_S
            if not fresh or self._named.get(node) != member:
                self._changed, self._seen[node] = True, now
            self._callers.pop(node, None)
            self._named.pop(node, None)
            self._named[node] = member
        while len(self._named) > MAX_MEMBERS:
            self._drop(next(iter(self._named)))

    def add_caller(self, member: Member) -> None:
        """Add a node that named itself."""
        if member.node in self._named or not can_be_tried(member.address):
            return
        self._changed = self._changed or self._callers.get(member.node) != member
        self._callers.pop(member.node, None)
        self._callers[member.node] = member
        if len(self._callers) > MAX_CALLERS:
            del self._callers[next(iter(self._callers))]

    def page(self) -> bytes | None:
        """The page to write; None if nothing changed since the last call."""
        self._forget_old()
        if not self._changed:
            return None
        self._changed = False
        members = [*self._callers.values(), *self._named.values()]
        return msgspec.json.encode(
            _Page(FORMAT, members, [self._seen.get(one.node, 0.0) for one in members])
        )

    def write(self, page: bytes) -> None:
        """Write a page atomically. Blocking; errors are logged."""
        write_page(self._path, page)

    def _take(self, page: _Page) -> None:
        written = 0.0  # a note of an older release has no times
        with contextlib.suppress(OSError):
            written = self._path.stat().st_mtime
        seen = page.seen if len(page.seen) == len(page.members) else [written] * len(page.members)
        for member, at in zip(page.members, seen, strict=True):
            if at:
                self._named[member.node], self._seen[member.node] = member, at
            else:
                self._callers[member.node] = member
        for kept, most in ((self._callers, MAX_CALLERS), (self._named, MAX_MEMBERS)):
            for node in list(kept)[: max(0, len(kept) - most)]:
                del kept[node]
        self._forget_old()

    def _forget_old(self) -> None:
        since = self._wall() - KEPT_S
        for node in [node for node, at in self._seen.items() if at < since]:
            self._drop(node)

    def _drop(self, node: NodeId) -> None:
        self._named.pop(node, None)
        self._seen.pop(node, None)
        self._changed = True
