"""What an import has done so far, so that it goes on where it was killed: a journal, and the bytes if they are kept.

    FOLDER/journal.jsonl     a line for each file that is hashed, and for how much of one is durable
    FOLDER/<hex>.part        a file's bytes; <hex> is of its path
    FOLDER/lock              held by the import that runs, or by what deletes the folder

A folder is renamed before it is deleted, by its lock's holder: an import that begins meanwhile gets a new one, or is
refused. Lines are written after the bytes that they speak of are durable. A line that was interrupted in its middle
counts as not written.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from p2pcache.core.format.manifest import File
from p2pcache.core.units import counted
from p2pcache.errors import Conflict
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.disk.store_info import Pruned
from p2pcache.io.origins.retry import Abandoned
from p2pcache.io.sources.base import SourceFile

FOLDER = "imports"  # in a cache dir: the parent of all import folders
KEPT_S = 7 * 86400.0  # of an import that nobody goes on with
_JOURNAL = "journal.jsonl"
_LOCK = "lock"
_OURS = re.compile(r"[0-9a-f]{32}")
_DYING = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{8}\.gone")  # what a kill left of a deletion


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the journal. The fields that name the bytes come first: another validator means other bytes."""

    path: str
    key: str
    size: int
    validator: str
    durable: int = 0  # bytes of the part that are durable; of a whole file 0
    whole: bool = False
    lengths: list[int] = []
    digests: str = ""
    sha256: str = ""


class ImportFolder:
    """The folder of one import. Thread-safe as far as its files are: each is one thread's."""

    def __init__(self, folder: Path) -> None:
        """Open or create it, and take its lock, which goes with the process.

        Raises:
            Conflict: another import has it, or it is being deleted.
            NotAllowed, NoSpace: the disk refused.
        """
        self.path = folder
        self._whole: dict[SourceFile, File] = {}
        self._durable: dict[SourceFile, int] = {}
        self._writing = threading.Lock()  # a thread may outlive the import that it reads for
        with disk_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._lock = _take_lock(folder, os.O_CREAT)
            except (BlockingIOError, FileNotFoundError):
                raise Conflict(
                    "another import from this place runs right now; wait for its end, or cancel it"
                ) from None
            self._read()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._journal = os.open(folder / _JOURNAL, flags, 0o600)

    def whole(self, file: SourceFile) -> File | None:
        """The file's hashes, if all of it was read; its part may be missing."""
        return self._whole.get(_named(file))

    def durable(self, file: SourceFile) -> int:
        """Bytes of the file's part that are durable."""
        return self._durable.get(_named(file), 0)

    def part(self, path: str) -> Path:
        """Where a file's bytes are kept."""
        return self.path / f"{blake3(path.encode()).hexdigest()[:32]}.part"

    def lacks(self, file: SourceFile) -> int:
        """Bytes of a file that its part has still to take."""
        try:
            held = self.part(file.path).stat().st_size
        except OSError:
            held = 0
        return max(0, file.size - held)

    def on_durable(self, file: SourceFile, size: int) -> None:
        """Note that `size` bytes of a file's part are durable."""
        self._write(_Line(file.path, file.key, file.size, file.validator, size))
        self._durable[_named(file)] = size

    def on_whole(self, file: SourceFile, hashed: File) -> None:
        """Note the hashes of a file that was read."""
        self._write(
            _Line(
                file.path, file.key, file.size, file.validator, whole=True, lengths=hashed.lengths.tolist(),
                digests=hashed.digests.hex(), sha256=hashed.sha256.hex(),
            )
        )  # fmt: skip
        self._whole[_named(file)] = hashed

    def begin_anew(self, file: SourceFile) -> None:
        """Begin a file anew: its bytes were wrong."""
        with disk_errors(str(self.path)):
            self.part(file.path).unlink(missing_ok=True)
        self._whole.pop(_named(file), None)
        self.on_durable(file, 0)

    def drop_parts(self, paths: Iterable[str]) -> None:
        """Delete the bytes of these files; what is known of them stays for the next try.

        An import that was refused ends so. Other imports of the same place have their files here, too.

        Raises:
            NotAllowed, P2PCacheError: the disk refused.
        """
        with disk_errors(str(self.path)):
            for path in paths:
                self.part(path).unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete all of it, at the end of an import."""
        gone = self.path
        with suppress(OSError):
            gone = _renamed(self.path)
        self.close()
        if gone != self.path:
            shutil.rmtree(gone, ignore_errors=True)

    def close(self) -> None:
        """Let go of it; what is there stays for the next try. Again is no error."""
        with self._writing:
            if self._journal >= 0:
                os.close(self._journal)
                os.close(self._lock)
                self._journal = -1

    def _write(self, line: _Line) -> None:
        with self._writing, disk_errors(str(self.path)):
            if self._journal < 0:
                raise Abandoned("the import has ended")
            os.write(self._journal, msgspec.json.encode(line) + b"\n")
            os.fdatasync(self._journal)

    def _read(self) -> None:
        path = self.path / _JOURNAL
        if not path.exists():
            return
        good = 0
        with path.open("rb") as journal:
            for data in journal:
                try:
                    line = msgspec.json.decode(data, type=_Line)
                    digests, sha256 = bytes.fromhex(line.digests), bytes.fromhex(line.sha256)
                    lengths = array("I", line.lengths)
                except (msgspec.MsgspecError, ValueError, OverflowError):
                    break
                if not data.endswith(b"\n"):
                    break
                good += len(data)
                file = SourceFile(line.path, line.key, line.size, line.validator)
                if line.whole:
                    self._whole[file] = File(line.path, line.size, lengths, digests, sha256)
                else:
                    self._whole.pop(file, None)
                    self._durable[file] = line.durable
        os.truncate(path, good)


def folder_name(source: str, place: str) -> str:
    """The name of an import's folder."""
    return blake3(f"{source}\0{place}".encode()).hexdigest()[:32]


def sweep(parent: Path, now: float | None = None) -> None:
    """Delete the folders of imports that nobody has gone on with for a week."""
    now = time.time() if now is None else now
    if not parent.is_dir():
        return
    for folder in parent.iterdir():
        with suppress(OSError):
            if _DYING.fullmatch(folder.name):
                shutil.rmtree(folder)
            elif not _OURS.fullmatch(folder.name):
                continue
            elif now - (folder / _JOURNAL).stat().st_mtime > KEPT_S:
                with _locked(folder):
                    shutil.rmtree(_renamed(folder))


def remove_parts(parent: Path, *, dry_run: bool) -> Pruned:
    """Delete the folders of imports that were interrupted and have kept bytes; imports that run are left alone.

    A folder without bytes stays: what it knows saves the next try from reading them, and costs next to nothing.
    """
    removed: list[str] = []
    kept: list[str] = []
    freed = 0
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        known = f"interrupted import {folder.name[:32]}"
        try:
            if _DYING.fullmatch(folder.name):
                said, size = _parts(folder)
                if not dry_run:
                    shutil.rmtree(folder)
            elif _OURS.fullmatch(folder.name):
                with _locked(folder):
                    said, size = _parts(folder)
                    if size and not dry_run:
                        shutil.rmtree(_renamed(folder))
            else:
                continue
        except (BlockingIOError, FileNotFoundError, NotADirectoryError):
            continue  # it runs, or is gone, or is no folder of an import
        except OSError as error:
            kept.append(f"{known} ({(error.strerror or str(error)).lower()})")
            continue
        if size:
            removed.append(f"{known} ({said})")
            freed += size
    return Pruned(removed, freed, kept)


def _parts(folder: Path) -> tuple[str, int]:
    """What bytes are kept, for people, and what they take of the disk."""
    blocks = [part.stat().st_blocks for part in folder.glob("*.part")]
    said = counted(len(blocks), "file")
    with suppress(OSError, msgspec.MsgspecError), (folder / _JOURNAL).open("rb") as journal:
        said += f", from {msgspec.json.decode(journal.readline(), type=_Line).key}"
    return said, 512 * sum(blocks)


def _take_lock(folder: Path, flags: int = 0) -> int:
    """Take a folder's lock; returns its descriptor, which holds it.

    Raises:
        BlockingIOError: somebody has it.
        FileNotFoundError: there is none; or the folder was deleted meanwhile, and another may be in its place.
    """
    held = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held), (folder / _LOCK).stat()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    except OSError:
        os.close(held)
        raise
    return held


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    held = _take_lock(folder)
    try:
        yield
    finally:
        os.close(held)


def _renamed(folder: Path) -> Path:
    """Give a folder, whose lock we have, a name by which no import looks for it."""
    return folder.rename(folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.gone"))


def _named(file: SourceFile) -> SourceFile:
    return file._replace(sha256=b"")
