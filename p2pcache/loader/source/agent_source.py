"""A model that the node's agent is still fetching, as a source.

The agent's arriving directory has the bytes and says which of them are proved (`io.models.arriving_dir`);
the attachment only wakes us and carries what we need to the agent. Each read is checked: bytes
that were withdrawn while they were read are waited for and read again.

When the agent is lost, what it has proved stays readable. If it doesn't come back within
`attachment.REATTACH_S`, the rest is read from the origin and proved here (`rescue`); a load that has
begun is never begun again.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from p2pcache.core.format.layout import Layout
from p2pcache.errors import NotFound, P2PCacheError, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.blobs.blob_file import OpenFile
from p2pcache.io.disk.disk import Disk, disk_errors
from p2pcache.io.http.client import AgentClient
from p2pcache.io.models.arriving_dir import Board
from p2pcache.loader.source.attachment import Attachment, Json, what_happened
from p2pcache.loader.source.base import Range, SourceStats
from p2pcache.loader.source.chunk_map import Buffers, Geometry
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.demand import Demands
from p2pcache.loader.source.directory import read_all
from p2pcache.loader.source.origin_fallback import Rescue

log = logging.getLogger(__name__)

LOOK_S = 0.05  # the bitmap is looked at so often even if no event comes
_WAIT_S = 1.0
OPEN_AHEAD = 128  # files are opened before the model's directories can change, up to so many


class SwarmSource:
    """Implements `Source` over an attached load. Use `SwarmSource.attach`."""

    def __init__(
        self,
        ref: Ref,
        models_dir: Path | None,
        origin: str,
        needed: bool,  # noqa: FBT001
    ) -> None:
        """Use `attach`."""
        self.name = str(ref)
        self.complete = False
        self._models_dir = models_dir
        self._origin = origin
        self._needed = needed
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._board: Board | None = None
        self._boards: list[Board] = []  # older ones, whose mappings may still be looked at
        self._tree: Path | None = None  # the published model, once there is one
        self._files: dict[int, OpenFile] = {}
        self._files_of = (-1, -1)  # board and withdrawals that the open files belong to
        self._error: P2PCacheError | None = None
        self._rescue: Rescue | None = None
        self._wanted: list[Range] = []
        self._demands = Demands(self._runs, self._has)
        self._progress: Json = {}
        self._local_bytes = 0
        self._notes: list[str] = []
        self._stopped = False
        self._closed = False
        self._final: SourceStats | None = None
        self._attachment: Attachment | None = None
        self.layout: Layout
        self._geometry: Geometry

    @classmethod
    def attach(
        cls,
        client: AgentClient,
        ref: Ref,
        *,
        needed: bool,
        models_dir: Path | None = None,
        origin: str = "",
        deadline: Deadline | None = None,
    ) -> "SwarmSource":
        """Attach to the agent and wait until it has said what the model is.

        Args:
            client: of the agent.
            ref: the model.
            needed: fetch only what this load needs.
            models_dir: where this process sees the agent's models directory; None: where the agent does.
            origin: URL to go on from when the agent is lost; "": there is none.
            deadline: the caller's; None: none.

        Raises:
            TimedOut: the agent has said nothing in time.
            NotFound: no such model; or its directory isn't visible here.
            Unreachable, P2PCacheError: the agent's own error.
        """
        source = cls(ref, models_dir, origin, needed)
        source._attachment = Attachment(
            client, ref, needed=needed, alone=not origin,
            on_event=source._on_event, on_lost=source._on_lost,
        )  # fmt: skip
        source._attachment.start()
        try:
            source._await_attached(deadline or Deadline(None, str(ref)))
        except BaseException:
            source.close()
            raise
        return source

    def _await_attached(self, deadline: Deadline) -> None:
        with self._changed:
            while self._board is None and self._tree is None:
                if self._error is not None:
                    raise self._error
                deadline.check()
                self._changed.wait(deadline.slice_s(_WAIT_S))

    @property
    def digest(self) -> str:
        """The model's identity (hex)."""
        return self._attachment.digest if self._attachment is not None else ""

    @property
    def tree(self) -> Path | None:
        """The published model's directory; while there is none: None."""
        return self._tree

    # -- what the attachment tells -------------------------------------------------------------

    def _on_event(self, event: Json) -> None:
        kind = event["event"]
        if self._closed:
            return
        if kind == "resolved":
            self._resolved(event)
        elif kind in ("ready", "progress", "done"):
            self._progress = event
            if "peers" in event:
                self._demands.neighbours = event["peers"]
        if kind == "done":
            self._tree = self._below(event, "path")
        with self._changed:
            if kind == "done":
                self.complete = True
            self._changed.notify_all()

    def _resolved(self, event: Json) -> None:
        folder = self._below(event, "arriving")
        try:
            board = Board(folder, str(event.get("digest")))
        except NotFound:
            raise NotFound(
                f"{folder} isn't visible here: mount the whole of the agent's models directory, and set "
                "P2PCACHE_MODELS_DIR to where it is"
            ) from None
        with self._changed:
            if self._closed:
                board.close()
                return
            if self._board is not None:
                self._boards.append(self._board)
                self._notes.append("attached again to an agent that was lost")
                self._demands.forget()  # whoever still waits says so again
            else:
                self.layout = board.layout
                self._geometry = Geometry(board.layout)
                self._local_bytes = int(event.get("bytes_had", 0))
            self._board = board
        if self._wanted:
            self._open_ahead(self._wanted)

    def _below(self, event: Json, key: str) -> Path:
        base = self._models_dir or Path(str(event.get("models_dir", "")))
        relative = Path(str(event.get(key, "")))
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise P2PCacheError(f"the agent named a strange path: {str(relative)!r}")
        return base / relative

    def _on_lost(self, error: P2PCacheError) -> None:
        rescue = None
        if isinstance(error, Unreachable) and self._board is not None:
            try:
                if not self._origin:
                    raise Unreachable(
                        f"{error}; set P2PCACHE_ORIGIN to go on from the storage in such a case"
                    )
                rescue = Rescue(self.layout, self._origin)
                told = what_happened(error)
                log.warning("%s: %s; the rest comes from %s", self.name, told, self._origin)
            except P2PCacheError as failed:
                error = failed
        with self._changed:
            if self._closed:
                return
            if rescue is None:
                self._error = error
            else:
                self._notes.append("the agent was lost; the rest came from the origin")
                self._rescue = rescue
                rescue.ask(self._missing(self._wanted))
            self._changed.notify_all()

    # -- Source ----------------------------------------------------------------------------------

    def files(self) -> list[tuple[str, int]]:
        """See `Source.files`."""
        return [(file.path, file.size) for file in self.layout.manifest.files]

    def available(self, path: str, start: int, end: int) -> bool:
        """See `Source.available`."""
        if self.complete:
            return True
        return all(map(self._has, self._geometry.runs(self._blob(path), start, end)))

    def want(self, ranges: Sequence[Range]) -> None:
        """See `Source.want`."""
        self._wanted = list(ranges)
        self._demands.planned = True
        self._open_ahead(ranges)
        missing = self._missing(ranges)
        if self._needed and missing and self._attachment is not None:
            self._attachment.demand(missing, urgent=False)
        if self._rescue is not None:
            self._rescue.ask(missing)

    def demand(self, path: str, start: int, end: int) -> None:
        """See `Source.demand`."""
        self._demand([Range(path, start, end)])

    def wait(self, ranges: Sequence[Range], timeout_s: float) -> list[int]:
        """See `Source.wait`."""
        ends = time.monotonic() + timeout_s
        patient_until = time.monotonic() + self._demands.patience_s(ranges)
        while True:
            there = [i for i, wanted in enumerate(ranges) if self.available(*wanted)]
            now = time.monotonic()
            if there or now >= ends:
                return there
            self._raise_trouble()
            if now >= patient_until:
                self._demand(self._demands.choose(ranges))
            with self._changed:
                self._changed.wait(min(LOOK_S, ends - now))

    def read(self, path: str, start: int, into: Sequence[memoryview]) -> None:
        """See `Source.read`."""
        length = sum(len(view) for view in into)
        number = self._blob(path)
        while True:
            board = self._board
            seen = board.withdrawals if board is not None else 0
            if length == 0 or self._read_once(path, number, start, length, into):
                if self._board is board and (board is None or board.withdrawals == seen):
                    return
            else:
                self.wait([Range(path, start, start + length)], LOOK_S * 4)

    def stop(self) -> None:
        """See `Source.stop`: whoever waits looks again within `LOOK_S`."""
        self._stopped = True

    def stats(self) -> SourceStats:
        """See `Source.stats`."""
        if self._final is not None:
            return self._final
        told, rescue = self._progress, self._rescue
        board = self._board
        stats = SourceStats(
            bytes_peers=int(told.get("bytes_peers", 0)),
            bytes_origin=int(told.get("bytes_origin", 0)) + (rescue.bytes_origin if rescue else 0),
            bytes_disk=self._local_bytes,
            notes=list(self._notes),
        )
        if board is not None:
            stats.digest = board.layout.digest
            runs = (r for r in range(self.layout.run_count) if self.complete or self._has(r))
            stats.verified_chunks = sum(len(self.layout.run_chunks(r)) for r in runs)
        return stats

    def close(self) -> None:
        """See `Source.close`."""
        if (
            os.getpid() != self._pid
        ):  # a fork has none of the threads, one of which may hold the lock
            return
        final = self.stats()
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._final = final
            self._files.clear()
            for board in [*self._boards, *([self._board] if self._board is not None else [])]:
                board.close()
        if self._attachment is not None:
            self._attachment.close()
        if self._rescue is not None:
            self._rescue.close()

    # -- where bytes are -------------------------------------------------------------------------

    def _read_once(
        self, path: str, number: int, start: int, length: int, into: Sequence[memoryview]
    ) -> bool:
        """Read what is here now; False: not all of it is."""
        rescue, board = self._rescue, self._board
        runs = self._geometry.runs(number, start, start + length)
        if self.complete or (board is not None and all(map(board.is_ready, runs))):
            read_all(self._file(number).fd, start, into, path)
            return True
        if rescue is None or not all(map(self._has, runs)):
            return False
        buffers = Buffers(into)
        for piece in self._geometry.pieces(number, start, start + length):
            inside = piece.offset
            for view in buffers.take(piece.length):
                if board is not None and board.is_ready(piece.run):
                    read_all(self._file(number).fd, start, [view], path)
                else:
                    rescue.read(piece.chunk, inside, view)
                inside += len(view)
                start += len(view)
        return True

    def _has(self, run: int) -> bool:
        board, rescue = self._board, self._rescue
        return (board is not None and board.is_ready(run)) or (
            rescue is not None and rescue.has_run(run)
        )

    def _runs(self, wanted: Range) -> tuple[int, ...]:
        return self._geometry.runs(self._blob(wanted.path), wanted.start, wanted.end)

    def _blob(self, path: str) -> int:
        number = self.layout.blob_of_file.get(path)
        if number is None:
            raise NotFound(f"{self.name}: no file {path!r} in it")
        return number

    def _missing(self, ranges: Sequence[Range]) -> int:
        runs = 0
        for wanted in ranges:
            for run in self._runs(wanted):
                if not runs >> run & 1 and not self._has(run):
                    runs |= 1 << run
        return runs

    def _demand(self, ranges: Sequence[Range]) -> None:
        runs = self._missing(ranges)
        if self._rescue is not None:
            self._rescue.ask(runs)
        elif (fresh := self._demands.tell(runs)) and self._attachment is not None:
            self._attachment.demand(fresh, urgent=True)

    def _raise_trouble(self) -> None:
        if self._stopped:
            raise P2PCacheError(f"{self.name}: the load was closed")
        rescue = self._rescue
        error = self._error or (rescue.error if rescue is not None else None)
        if error is not None:
            raise error

    def _file(self, number: int) -> OpenFile:
        """The blob's open file; opened anew when another one may lie under its name."""
        board = self._board
        with self._changed:
            state = (id(board), board.withdrawals if board is not None else 0)
            if state != self._files_of:
                self._files.clear()  # readers hold what they read from
                self._files_of = state
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = OpenFile(self._open(number))
            return file

    def _open(self, number: int) -> int:
        try:
            if self._board is not None:
                return self._board.open_blob(number)
        except NotFound:
            if self._tree is None:
                raise
        assert self._tree is not None
        path = next(p for p, blob in self.layout.blob_of_file.items() if blob == number)
        with disk_errors(str(self._tree)):
            folder = Disk().open_directory(None, str(self._tree))
            held = OpenFile(folder)
            return Disk().open_read(held.fd, path)

    def _open_ahead(self, ranges: Sequence[Range]) -> None:
        """Later the directory may be gone; what is open stays."""
        for number in list(dict.fromkeys(self._blob(r.path) for r in ranges))[:OPEN_AHEAD]:
            self._file(number)
