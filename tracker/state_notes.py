"""The tracker's notes in its state dir: the members of each swarm. Only a restart reads them.

A restarted tracker waits for the members in them before it grants leases. Lost notes do no harm, because members
announce the same.
"""

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from p2pcache.errors import NotAllowed, UsageError
from p2pcache.ids import NodeId, format_node, is_digest, parse_node

_log = logging.getLogger(__name__)

FILE = "members.json"
FORMAT = 1
MAX_FILE_BYTES = 64 << 20  # 10,000 members in 300 swarms
STALE_S = 600.0  # older notes are ignored: their storms are over


class _Probe(msgspec.Struct):
    format: int


class _Notes(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    saved: float  # unix seconds
    swarms: dict[str, list[str]]


class StateNotes:
    """The notes of one tracker. Without a `root` it keeps none."""

    def __init__(self, root: Path | None) -> None:
        """Make the directory if it is missing.

        Raises:
            UsageError, NotAllowed: it can't be made or written.
        """
        self._path = None if root is None else root / FILE
        self._saved: dict[str, list[NodeId]] = {}
        if root is None:
            return
        try:
            root.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            kind = NotAllowed if isinstance(error, PermissionError) else UsageError
            raise kind(f"can't use the state dir {root}: {error.strerror}") from None
        if not os.access(root, os.W_OK | os.X_OK):
            raise NotAllowed(f"can't write into the state dir {root}")

    def load_members(self, wall: float) -> dict[str, list[NodeId]]:
        """Node ids by manifest digest, as last saved; {} if the notes are too old or can't be read.

        `wall` is the time now, unix seconds.
        """
        if self._path is None or not self._path.exists():
            return {}
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES)
            written = msgspec.json.decode(data, type=_Probe).format
            if written != FORMAT:
                _log.warning(
                    "ignoring %s: it has format %d, this release knows %d; the members tell the same",
                    self._path, written, FORMAT,
                )  # fmt: skip
                return {}
            notes = msgspec.json.decode(data, type=_Notes)
            known = {d: [parse_node(n) for n in nodes] for d, nodes in notes.swarms.items()}
        except (OSError, msgspec.MsgspecError, UsageError, UnicodeDecodeError) as error:
            _log.warning("ignoring %s: %s", self._path, error)
            return {}
        if not 0 <= wall - notes.saved <= STALE_S:
            return {}
        return {digest: nodes for digest, nodes in known.items() if is_digest(digest)}

    def save_members(self, swarms: dict[str, list[NodeId]], wall: float) -> None:
        """Write the notes atomically. It blocks, and logs errors.

        It writes an unchanged list again, because `load_members` looks at its age.
        """
        if self._path is None or (not swarms and not self._saved):
            return
        lists = {digest: [format_node(n) for n in nodes] for digest, nodes in swarms.items()}
        fresh = self._path.with_name(FILE + ".new")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(_Notes(FORMAT, wall, lists)))
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self._path)
        except OSError as error:
            _log.warning("can't write %s: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            return
        self._saved = swarms
