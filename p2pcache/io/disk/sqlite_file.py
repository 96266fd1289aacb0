"""A SQLite file of our own: opened, brought to our schema, written in durable transactions."""

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p2pcache.errors import Busy, IntegrityError, NoSpace, P2PCacheError, UsageError
from p2pcache.io.disk.disk import MAKE_INODES, is_read_only, no_inodes, translate
from p2pcache.io.disk.reserve_file import OPENING_BYTES, SPARE_BYTES, Spare

# SQLite's errors where not one block is left: for its log, and for the log's index.
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


# What it makes of a write that a read-only disk refuses.
_REFUSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_REMEDY = "stop the agent and remove this file: models stay and are proved again"
_KIND = 0xFF  # the lower byte of an error's code, without its details
LOCK_WAIT_S = 1.5  # for another program's lock: no caller is silent for long


class SqliteFile:
    """One connection, serialised by a lock; every write is one durable transaction."""

    def __init__(self, path: Path, schemas: Sequence[str], spare: Spare | None = None) -> None:
        """Open or create the database.

        Args:
            path: of its file.
            schemas: SQL of each step, the step to version n at n - 1.
            spare: space that is given up where the disk is too full to open it or to delete rows.

        Raises:
            UsageError: a newer release wrote it.
            NoSpace: the disk is full.
            NotAllowed: it is read-only.
            Busy: another program has locked it.
            IntegrityError: it's damaged.
            P2PCacheError: it's unreadable.
        """
        self._lock = threading.Lock()
        self._path = path
        self._schemas = schemas
        self._spare = spare
        self._with_spare(OPENING_BYTES, self._open)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    def _open(self) -> None:
        with self._errors():
            self._db = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=LOCK_WAIT_S
            )
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        self._db.execute("pragma journal_mode=wal").fetchone()
        self._db.execute(
            "pragma synchronous=full"
        )  # a record never outlives the file that it is about
        (version,) = self._db.execute("pragma user_version").fetchone()
        newest = len(self._schemas)
        if version > newest:
            raise UsageError(
                f"the cache records in {self._path} were written by a newer release (schema "
                f"{version}, this one knows {newest}); upgrade p2pcache or choose another cache dir"
            )
        if version < newest:
            steps = "".join(self._schemas[version:])
            self._db.executescript(f"begin; {steps} pragma user_version={newest}; commit;")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in (*_FULL, sqlite3.SQLITE_CANTOPEN) and no_inodes(self._path.parent):
                raise NoSpace(
                    f"cache records {self._path}: no inodes left; {MAKE_INODES}"
                ) from error
            if code in _FULL:
                raise NoSpace(
                    f"cache records {self._path}: the disk is full to the last block; make room with "
                    "`p2pcache rm` or `p2pcache prune --all`"
                ) from error
            if code is not None and code & _KIND in _LOCKED:
                raise Busy(
                    f"cache records {self._path} are locked by another program (a backup, somebody's sqlite3): end "
                    f"it (`fuser -v {self._path}` names it), then try again",
                    retry_after_s=1.0,
                ) from error
            if code is not None and code & _KIND in _REFUSED and is_read_only(self._path.parent):
                refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
                raise translate(refused, f"cache records {self._path}") from error
            if code is not None and code & _KIND in _DAMAGED:
                raise IntegrityError(
                    f"cache records {self._path} are damaged ({error}): {_REMEDY}"
                ) from error
            raise P2PCacheError(
                f"cache records {self._path}: {error}; if the file is damaged, {_REMEDY}"
            ) from error

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors():
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled it back already
                    self._db.execute("rollback")
                raise

    def _delete(self, *deletes: tuple[str, Iterable[tuple[object, ...]]]) -> None:
        """Delete or change rows; on a full disk, in the space that is kept back for it.

        Args:
            deletes: statements, each with the values of all its rows.
        """
        self._with_spare(SPARE_BYTES, lambda: self._delete_all(deletes))

    def _with_spare(self, size_bytes: int, work: Callable[[], None]) -> None:
        try:
            work()
        except NoSpace:
            if self._spare is not None:
                self._spare.give_up(size_bytes)
            try:
                work()
            except NoSpace as error:
                folder = self._path.parent
                raise NoSpace(
                    f"the disk of {folder} is full to the last block: nothing can even be removed; make room "
                    f"among the other files of that disk (`df {folder}` names it), then try again"
                ) from error

    def _delete_all(self, deletes: Iterable[tuple[str, Iterable[tuple[object, ...]]]]) -> None:
        with self._write() as db:
            for statement, rows in deletes:
                db.executemany(statement, rows)

    def _all(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        with self._lock, self._errors():
            return self._db.execute(query, values).fetchall()
