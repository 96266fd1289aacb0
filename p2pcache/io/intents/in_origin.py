"""Intents at an origin: which models are to be kept, and which nodes are to be emptied.

p2pcache/v1/intent/keep/<namespace>/<name>/<tag>    JSON KeepRecord, changed by conditional put
p2pcache/v1/intent/drain/<node id>                  JSON DrainRecord, the same
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from p2pcache.core.format.keep_record import (
    MAX_RECORD_BYTES,
    DrainRecord,
    KeepRecord,
    R,
    decode_record,
    encode_record,
)
from p2pcache.errors import Conflict, IntegrityError, NotFound, UsageError
from p2pcache.ids import NodeId, Ref, format_node, parse_node
from p2pcache.io.origins.base import ABSENT, NoContainer
from p2pcache.io.origins.repo import ROOT, ref_below
from p2pcache.io.origins.retry import Retrying

MAX_INTENTS = 10_000  # that are read; more than anybody keeps models
_TRIES = 20  # a change races with other operators only
_KEEP, _DRAIN = f"{ROOT}/intent/keep/", f"{ROOT}/intent/drain/"


class Read(NamedTuple):
    """All intents that last, and which ones are over."""

    keeps: dict[Ref, KeepRecord]
    drains: dict[NodeId, DrainRecord]
    bad: dict[str, str]  # keys of records that can't be read, and why; their intents are unknown
    over: set[str]  # keys of records of intents that were ended


class Intents:
    """The intents of one origin. Thread-safe; blocking."""

    def __init__(self, origin: Retrying) -> None:
        """`origin`: from `open_origin`; this doesn't close it."""
        self._origin = origin

    def read_all(self) -> Read:
        """All intents that last.

        Raises:
            P2PCacheError: they can't be listed, or the origin doesn't answer.
        """
        found = Read({}, {}, {}, set())
        for key in self._keys(_KEEP):
            ref = ref_below(_KEEP, key)
            record = self._readable(key, KeepRecord, found) if ref else None
            if ref and record is not None:
                found.keeps[ref] = record
        for key in self._keys(_DRAIN):
            node = _node_of(key)
            drain = self._readable(key, DrainRecord, found) if node else None
            if node and drain is not None:
                found.drains[node] = drain
        return found

    def change_keep(self, ref: Ref, change: Callable[[KeepRecord], KeepRecord]) -> KeepRecord:
        """Change how a model is kept.

        Args:
            ref: the model's name; its digest is passed over.
            change: from the record that is there, or an empty one; may be called again.

        Raises:
            Conflict: others change it all the time.
            IntegrityError: what is there is no record.
        """
        return self._change(keep_key(ref), KeepRecord, change)

    def change_drain(self, node: NodeId, change: Callable[[DrainRecord], DrainRecord]) -> DrainRecord:  # fmt: skip
        """Change whether a node is emptied; as `change_keep`."""
        return self._change(drain_key(node), DrainRecord, change)

    def _change(self, key: str, kind: type[R], change: Callable[[R], R]) -> R:
        for _ in range(_TRIES):
            record, version = self._record(key, kind)
            before = kind() if record is None else record
            wanted = change(before)
            if wanted == before:
                return before
            expect = ABSENT if version is None else version
            try:
                self._origin.put(
                    key, encode_record(wanted), expect=expect if self._origin.conditional_put else None
                )  # fmt: skip
            except Conflict:
                continue
            return wanted
        raise Conflict(f"{self._origin.url}/{key} changes faster than we can write it; try again")

    def _record(self, key: str, kind: type[R]) -> tuple[R | None, str | None]:
        try:
            data, version = self._origin.get(key, limit=MAX_RECORD_BYTES)
        except NoContainer:
            raise
        except NotFound:
            return None, None
        try:
            return decode_record(data, kind), version
        except IntegrityError as error:
            raise IntegrityError(f"{self._origin.url}/{key}: {error}; delete that object") from None

    def _readable(self, key: str, kind: type[R], found: Read) -> R | None:
        """A record that lasts."""
        try:
            record = self._record(key, kind)[0]
        except IntegrityError as error:
            found.bad[key] = str(error)
            return None
        if record is None or record.lasts:
            return record
        found.over.add(key)
        return None

    def _keys(self, prefix: str) -> Iterator[str]:
        for count, info in enumerate(self._origin.list(prefix)):
            if count >= MAX_INTENTS:
                raise UsageError(
                    f"more than {MAX_INTENTS} objects below {self._origin.url}/{prefix}"
                )
            yield info.key


def keep_key(ref: Ref) -> str:
    """Key of a model's record."""
    return f"{_KEEP}{ref.namespace}/{ref.name}/{ref.tag}"


def drain_key(node: NodeId) -> str:
    """Key of a node's record."""
    return f"{_DRAIN}{format_node(node)}"


def _node_of(key: str) -> NodeId:
    try:
        return parse_node(key.removeprefix(_DRAIN))
    except UsageError:
        return 0
