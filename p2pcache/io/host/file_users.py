"""Which other processes have files open or mapped, from /proc; and from leases where /proc doesn't show all."""

import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from p2pcache.io.host.processes import PROC, name_of

_FIRST_PID_NAMESPACE = (
    0xEFFFFFFC  # its inode in the kernel: whoever is in it sees the processes of all containers
)
_F_SETSIG = 10  # Python's fcntl has no name for it

FileId = tuple[int, int]
"""Device and inode."""


class FileUse(NamedTuple):
    """One process has one file open or mapped."""

    file: FileId
    process: str  # for people
    path: str  # by which it opened the file, as its own namespace shows it


class Look(NamedTuple):
    """What one look at all processes found."""

    uses: list[FileUse]
    blind: str  # why some processes can't be seen, for people; "": all were


def look(wanted: Collection[FileId], proc: Path = PROC) -> Look:
    """Find the other processes that have one of these files open (also by O_PATH), mapped, or as a directory."""
    uses: list[FileUse] = []
    hidden = 0
    inodes = {inode for _, inode in wanted}
    for pid in _processes(proc):
        try:
            found = {*_opened(proc / pid, inodes), *_mapped(proc / pid, inodes)}
        except PermissionError:
            hidden += _is_program(proc / pid)
            continue
        except OSError:  # it has ended
            continue
        named = name_of(int(pid), proc) if found else ""
        uses += [FileUse(file, named, path) for file, path in found if file in wanted]
    if hidden:
        return Look(uses, f"{hidden} processes of other users can't be seen (only root sees them)")
    if not _sees_all(proc):
        return Look(uses, "processes of other containers can't be seen (hostPID is off)")
    return Look(uses, "")


def held_by_anybody(path: str, folder: int) -> bool | None:
    """Whether any process of this machine has a regular file of ours open or mapped; None: the system can't say.

    A write lease is granted only if nobody has: whatever user, container or namespace. This process counts, too.

    Args:
        path: of the file.
        folder: descriptor of the directory that it is relative to.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        # Somebody may open it this very moment. The signal that tells so is ignored, unlike the usual SIGIO.
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(fd)
    return False


def opened_here(proc: Path = PROC) -> set[FileId]:
    """The files that this process has open."""
    found = set()
    for entry in (proc / "self" / "fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of this very loop
            found.add(_id(os.fstat(int(entry.name))))
    return found


def _processes(proc: Path) -> Iterator[str]:
    own = str(os.getpid())
    yield from (p.name for p in proc.iterdir() if p.name.isdigit() and p.name != own)


def _opened(process: Path, inodes: Collection[int]) -> Iterator[tuple[FileId, str]]:
    for entry in (process / "fdinfo").iterdir():
        try:
            # The inode first: a stat of a file on a share that is away would hang.
            if _inode(entry.read_text(errors="replace")) in inodes:
                link = process / "fd" / entry.name
                yield _id(link.stat()), str(link.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue


def _mapped(process: Path, inodes: Collection[int]) -> Iterator[tuple[FileId, str]]:
    with (process / "maps").open(errors="replace") as lines:
        for line in lines:
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) < 6 or int(parts[4]) not in inodes:
                continue
            major, minor = (int(part, 16) for part in parts[3].split(":"))
            file = os.makedev(major, minor), int(parts[4])
            # Of btrfs and overlayfs the line shows another device than stat does.
            with contextlib.suppress(OSError):
                file = _id((process / "map_files" / parts[0]).stat())
            yield file, parts[5]


def _inode(info: str) -> int:
    """The inode in the text of an fdinfo; -1: an old kernel doesn't say."""
    _, found, rest = info.partition("\nino:")
    return int(rest.split(maxsplit=1)[0]) if found else -1


def _id(info: os.stat_result) -> FileId:
    return info.st_dev, info.st_ino


def _is_program(process: Path) -> bool:
    """Whether it isn't one of the kernel's own threads, which have no files."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


def _sees_all(proc: Path) -> bool:
    try:
        return (proc / "self" / "ns" / "pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False
