"""A copy of a directory that may still be written to: a snapshot of one moment, or none."""

import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from p2pcache.errors import NotFound, TimedOut, UsageError
from p2pcache.io.disk.disk import disk_errors

# Longer than the tick of a file's time stamp (10 ms at worst): two writes never look like one.
SETTLE_S = 1.0
MAX_PAUSE_S = 8.0  # between tries, doubled from SETTLE_S

Stamps = dict[str, tuple[int, int, int]]
"""By path inside: (inode, bytes, mtime in ns)."""


def steady_copy(
    source: Path, target: Path, *, skip: Callable[[str], bool], patience_s: float
) -> dict[str, int]:
    """Copy a directory's files as they were at one moment.

    The copy is repeated until nothing changed in the second before it and during it. Links to files
    inside are followed; empty directories leave no trace.

    Args:
        source: the directory.
        target: an empty directory of the caller's own.
        skip: called with the name of each file; true: leave it out.
        patience_s: how long to try, in seconds.

    Returns:
        The mtime in ns of each file, by path inside.

    Raises:
        NotFound: there is no such directory, or no file in it.
        UsageError: a link that leads out of it, or something that is neither file nor directory.
        TimedOut: it never stood still.
        NoSpace, NotAllowed: the disk refused.
    """
    if not source.is_dir():
        raise NotFound(f"{source}: no such directory; has the engine compiled anything yet?")
    root, deadline, pause = source.resolve(), time.monotonic() + patience_s, SETTLE_S
    while True:
        before = _stamps(root, skip)
        time.sleep(SETTLE_S)
        if _copied(root, target, before) and _stamps(root, skip) == before:
            break
        if time.monotonic() + pause > deadline:
            raise TimedOut(
                f"{source} was written to all the time; save it when the engine is ready and idle"
            )
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_S)
    if not before:
        raise NotFound(f"{source} holds no files; has the engine compiled anything yet?")
    return {path: mtime for path, (_, _, mtime) in before.items()}


def _stamps(root: Path, skip: Callable[[str], bool]) -> Stamps:
    found: Stamps = {}
    pending = [root]
    while pending:
        folder = pending.pop()
        try:
            with disk_errors(str(folder)), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    elif not skip(entry.name):
                        _add(found, root, entry)
        except NotFound:  # removed meanwhile: the next stamps will differ, too
            found[f"{folder} went away at {time.monotonic_ns()}"] = (0, 0, 0)
    return found


def _add(found: Stamps, root: Path, entry: "os.DirEntry[str]") -> None:
    inside = os.path.relpath(entry.path, root)
    try:
        info = entry.stat()
    except FileNotFoundError:
        found[inside] = (0, 0, time.monotonic_ns())
        return
    if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root):
        raise UsageError(f"{inside} is a link that leads out of {root}; a cache is saved alone")
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"{inside} in {root} is neither a file nor a directory; remove it")
    found[inside] = (info.st_ino, info.st_size, info.st_mtime_ns)


def _copied(root: Path, target: Path, files: Stamps) -> bool:
    """Copy all files; False if one was removed meanwhile."""
    with disk_errors(str(target)):
        for left in target.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        for path in files:
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(root / path, place)
            except FileNotFoundError:
                return False
    return True
