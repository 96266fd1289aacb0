"""The readable bytes of a model that the node's agent is fetching.

They lie in the agent's arriving directory (`io.models.arriving_dir`), whose map says which runs are
proved. When the model is complete they lie in its published directory. When the agent is lost, the
missing ones come from the origin (`origin_fallback`).
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from p2pcache.core.format.layout import Layout
from p2pcache.errors import NotFound
from p2pcache.ids import RunIndex, RunSet
from p2pcache.io.blobs.blob_file import OpenFile
from p2pcache.io.disk.disk import Disk, disk_errors
from p2pcache.io.models.arriving_dir import Board
from p2pcache.loader.source.base import Range
from p2pcache.loader.source.chunk_map import BufferCursor, ChunkMap
from p2pcache.loader.source.directory import read_all
from p2pcache.loader.source.origin_fallback import OriginFallback

OPEN_AHEAD = 128  # files that are opened before the model's directories can change


class ArrivingFiles:
    """Which runs are readable, and the reads themselves. Thread-safe until `close`.

    `use_board` must have been called once before anything that needs the layout.
    """

    def __init__(self, name: str) -> None:
        """Nothing is readable yet.

        Args:
            name: of the model, for messages.
        """
        self.board: Board | None = None  # of the agent that is attached, or was attached last
        self.tree: Path | None = None  # the published model's directory, once there is one
        self.complete = False
        self.fallback: OriginFallback | None = None
        self.layout: Layout
        self._name = name
        self._chunk_map: ChunkMap
        self._earlier: list[Board] = []  # another thread may still look at their mappings
        self._lock = threading.Lock()  # of open files
        self._open: dict[int, OpenFile] = {}  # by blob
        self._open_of = (-1, -1)  # the board and its withdrawals when they were opened

    def use_board(self, board: Board) -> None:
        """Read from this board's directory from now on; the boards before it stay open until `close`."""
        if self.board is None:
            self.layout = board.layout
            self._chunk_map = ChunkMap(board.layout)
        else:
            self._earlier.append(self.board)
        self.board = board

    def has_run(self, run: RunIndex) -> bool:
        """Whether the run is proved and readable."""
        board, fallback = self.board, self.fallback
        return (board is not None and board.is_ready(run)) or (
            fallback is not None and fallback.has_run(run)
        )

    def runs_of(self, wanted: Range) -> tuple[RunIndex, ...]:
        """The runs in which a range of a file lies."""
        return self._chunk_map.runs(self._blob(wanted.path), wanted.start, wanted.end)

    def available(self, wanted: Range) -> bool:
        """Whether every byte of the range is proved and readable."""
        return self.complete or all(map(self.has_run, self.runs_of(wanted)))

    def missing(self, ranges: Sequence[Range]) -> RunSet:
        """The runs of these ranges that aren't readable."""
        runs = 0
        for wanted in ranges:
            for run in self.runs_of(wanted):
                if not runs >> run & 1 and not self.has_run(run):
                    runs |= 1 << run
        return runs

    def verified_chunks(self) -> int:
        """How many chunks are proved."""
        runs = (r for r in range(self.layout.run_count) if self.complete or self.has_run(r))
        return sum(len(self.layout.run_chunks(run)) for run in runs)

    def read_files(self, wanted: Range, into: Sequence[memoryview]) -> bool:
        """Read a range, once.

        Args:
            wanted: the range.
            into: buffers, filled one after the other; together as long as the range.

        Returns:
            False: not all of it was readable, or something was withdrawn meanwhile. Then the
            buffers hold anything.

        Raises:
            IntegrityError, NotFound, P2PCacheError: the file can't be read.
        """
        blob = self._blob(wanted.path)
        board = self.board
        withdrawals = board.withdrawals if board is not None else 0
        if wanted.start < wanted.end and not self._read(wanted, blob, into):
            return False
        return self.board is board and (board is None or board.withdrawals == withdrawals)

    def _read(self, wanted: Range, blob: int, into: Sequence[memoryview]) -> bool:
        path, start, end = wanted
        fallback, board = self.fallback, self.board
        runs = self._chunk_map.runs(blob, start, end)
        if self.complete or (board is not None and all(map(board.is_ready, runs))):
            read_all(self._file(blob).fd, start, into, path)
            return True
        if fallback is None or not all(map(self.has_run, runs)):
            return False
        buffers = BufferCursor(into)
        for part in self._chunk_map.parts(blob, start, end):
            offset = part.offset
            for view in buffers.take(part.length):
                if board is not None and board.is_ready(part.run):
                    read_all(self._file(blob).fd, start, [view], path)
                else:
                    fallback.read_chunk(part.chunk, offset, view)
                offset += len(view)
                start += len(view)
        return True

    def _blob(self, path: str) -> int:
        number = self.layout.blob_of_file.get(path)
        if number is None:
            raise NotFound(f"{self._name}: no file {path!r} in it")
        return number

    def open_ahead(self, ranges: Sequence[Range]) -> None:
        """Open the files of these ranges: an open file stays readable when its directory is removed."""
        for blob in list(dict.fromkeys(self._blob(r.path) for r in ranges))[:OPEN_AHEAD]:
            self._file(blob)

    def _file(self, blob: int) -> OpenFile:
        """The blob's open file. It is opened anew after a withdrawal: its name may mean another file."""
        board = self.board
        with self._lock:
            state = (id(board), board.withdrawals if board is not None else 0)
            if state != self._open_of:
                self._open.clear()  # a reader holds the file that it reads
                self._open_of = state
            file = self._open.get(blob)
            if file is None:
                file = self._open[blob] = OpenFile(self._open_blob(blob))
            return file

    def _open_blob(self, blob: int) -> int:
        try:
            if self.board is not None:
                return self.board.open_blob(blob)
        except NotFound:
            if self.tree is None:
                raise
        assert self.tree is not None
        path = next(p for p, number in self.layout.blob_of_file.items() if number == blob)
        with disk_errors(str(self.tree)):
            folder = Disk().open_directory(None, str(self.tree))
            held = OpenFile(folder)
            return Disk().open_read(held.fd, path)

    def close(self) -> None:
        """Close files and mappings, and end the fallback. More than once does no harm."""
        with self._lock:
            self._open.clear()
            for board in [*self._earlier, *([self.board] if self.board is not None else [])]:
                board.close()
        if self.fallback is not None:
            self.fallback.close()
