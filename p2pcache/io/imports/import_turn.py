"""Whose turn it is to import a model that many nodes want: a record in the origin, by conditional put.

p2pcache/v1/imports/<namespace>/<name>/<tag>    JSON: the node, and a number that it raises while it works

Nodes' clocks aren't compared. A node is taken for dead when its record hasn't changed for a while on the clock of the
one that waits.
"""

import contextlib

import msgspec

from p2pcache.errors import Conflict, NotFound, UsageError
from p2pcache.ids import NodeId, Ref, format_node
from p2pcache.io.origins.base import ABSENT, Expect, NoContainer
from p2pcache.io.origins.repo import ROOT
from p2pcache.io.origins.retry import Retrying

RENEW_S = 10.0  # between two changes of the record: a put takes milliseconds to seconds
DEAD_S = 45.0  # without a change: longer than a put that is retried for half a minute
_MAX_BYTES = 4096  # a record has some 50


class _Record(msgspec.Struct):
    node: str
    beat: int


class ImportTurn:
    """One node's part in the question who imports one tag. Blocking; for one thread at a time."""

    def __init__(self, origin: Retrying, ref: Ref, node: NodeId) -> None:
        """Nobody is asked yet.

        Raises:
            UsageError: the storage can't put conditionally.
        """
        if not origin.conditional_put:
            raise UsageError(
                f"{origin.url} ignores conditional writes, so several nodes would read the source; import "
                f"{ref.short} by hand, once"
            )
        self._origin = origin
        self._key = f"{ROOT}/imports/{ref.namespace}/{ref.name}/{ref.tag}"
        self._node = format_node(node)
        self._beat = 0
        self._version: str | None = None  # of our own record
        self._seen = ""  # version of another's record
        self._since = 0.0

    def attempt(self, now: float) -> bool:
        """Take the turn if nobody has it, or if its holder is dead; `now` in seconds of any steady clock."""
        try:
            _, version = self._origin.get(self._key, limit=_MAX_BYTES)
        except NoContainer:
            raise
        except NotFound:
            return self._put(ABSENT)
        if version != self._seen:
            self._seen, self._since = version, now
            return False
        return now - self._since >= DEAD_S and self._put(version)

    def renew(self) -> bool:
        """Show that we still work; False: somebody took us for dead."""
        return self._put(self._version)

    def give_back(self) -> None:
        """End the turn."""
        self._origin.delete(self._key)

    def _put(self, expect: Expect) -> bool:
        self._beat += 1
        data = msgspec.json.encode(_Record(self._node, self._beat))
        with contextlib.suppress(Conflict):
            self._version = self._origin.put(self._key, data, expect=expect)
            return True
        return False
