"""`pull --to DIR`: a published tree, made the caller's own.

Standard library only: the CLI's fast path uses it.
The directory appears complete or not at all: it's built beside its final name and renamed. A
directory that can't be renamed onto, because it is a mount (an `emptyDir` in a pod) or its parent
is closed to us, is filled in place: the next command removes the leftovers of a killed one.
"""

import contextlib
import errno
import filecmp
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from p2pcache.errors import NoSpace, NotFound, UsageError
from p2pcache.io.disk import syscalls
from p2pcache.io.disk.disk import OF_FILE_SYSTEMS, disk_errors

_MARK = ".p2pcache-"  # in the names of directories that are being filled
Mode = Literal["auto", "copy", "hard", "symlink"]
Finish = Callable[[int], None]
"""Called with the descriptor of a filled directory before others may enter it."""


def materialise(tree: Path, to: Path, mode: Mode = "auto", *, finish: Finish | None = None) -> None:
    """Put a model's files into a directory of the caller's.

    Args:
        tree: the published directory.
        to: the target; missing, empty, or filled with the same files.
        mode: "auto" shares blocks where the file system can and copies otherwise, "copy" always
            copies, "hard" and "symlink" link to the cache.
        finish: sets the modes of the files before others see them. A `to` that isn't a mount then
            gets mode 0700.

    Raises:
        UsageError: `to` holds something else, or links can't reach it.
        NotFound: the tree isn't there (any more).
        NoSpace, NotAllowed, P2PCacheError: the disk refused.
    """
    files = list(_files(tree))
    with disk_errors(str(to)):
        in_the_way = to.is_symlink() or (to.exists() and not to.is_dir())
    if in_the_way:
        raise UsageError(f"{to} exists and is not a directory; choose another one")
    target = to.absolute()
    with disk_errors(str(to)):
        in_place = target.is_dir() and _fixed(target)
        if in_place:
            _tidy(tree, target)
        filled = target.is_dir() and any(entries_of(target))
    if filled:
        if _same(tree, to, files, mode):
            return
        raise UsageError(f"{to} holds other files; choose another directory or remove it first")
    folder = target if in_place else target.parent
    with disk_errors(str(to)):
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        folder_fd = os.open(folder, flags | (os.O_NOFOLLOW if in_place else 0))
        try:
            rename_to = None if in_place else target.name
            _build(tree, files, folder_fd, rename_to, target.name, mode, finish)
        except OSError as error:
            _explain(error, to)
            raise
        finally:
            os.close(folder_fd)


def _build(
    tree: Path, files: list[Path], folder: int, rename_to: str | None, name: str, mode: Mode,
    finish: Finish | None,
) -> None:  # fmt: skip
    """Place all files into a marked directory in `folder`, then show them under their names.

    From here on everything goes by descriptor and no link is followed: others may be able to
    write where the caller wants the files.
    """
    temporary = f".{name}{_MARK}{secrets.token_hex(6)}"
    root = -1
    try:
        os.mkdir(temporary, 0o777 if finish is None else 0o700, dir_fd=folder)
        root = _enter(folder, temporary)
        if os.fstat(root).st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "somebody else's directory is in the way")
        _Builder(root, mode).place_all(tree, files)
        if finish is not None:
            finish(root)
        syscalls.syncfs(root)
        if rename_to is None:
            _move_up(root, folder)
            os.rmdir(temporary, dir_fd=folder)
            return
        os.rename(temporary, rename_to, src_dir_fd=folder, dst_dir_fd=folder)
        shown = os.stat(rename_to, dir_fd=folder, follow_symlinks=False)
        if not os.path.samestat(shown, os.fstat(root)):
            raise FileExistsError(errno.EEXIST, "somebody else's directory took its place")
    finally:
        if root >= 0:
            os.close(root)
        shutil.rmtree(temporary, ignore_errors=True, dir_fd=folder)


def _move_up(root: int, folder: int) -> None:
    """Move all entries of a directory into the one above, or none: half a model must not look whole."""
    moved: list[str] = []
    try:
        for entry in sorted(os.listdir(root)):
            os.rename(entry, entry, src_dir_fd=root, dst_dir_fd=folder)
            moved.append(entry)
    except BaseException:
        for entry in moved:
            os.rename(entry, entry, src_dir_fd=folder, dst_dir_fd=root)
        raise


def _enter(parent: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


class _Builder:
    """Creates a tree below an open directory, one folder after the other."""

    def __init__(self, root: int, mode: Mode) -> None:
        self._root = root
        self._mode = mode

    def place_all(self, tree: Path, files: list[Path]) -> None:
        for parent, group in itertools.groupby(sorted(files), key=lambda path: path.parent):
            folder = self._folder(parent)
            try:
                for path in group:
                    self._place(tree / path, folder, path.name)
            finally:
                os.close(folder)

    def _folder(self, path: Path) -> int:
        """Open a folder below the root, made where it is missing."""
        here = os.dup(self._root)
        for name in path.parts:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=here)
                deeper = _enter(here, name)
            finally:
                os.close(here)
            here = deeper
        return here

    def _place(self, source: Path, folder: int, name: str) -> None:
        if self._mode == "hard":
            os.link(source, name, dst_dir_fd=folder, follow_symlinks=False)
        elif self._mode == "symlink":
            os.symlink(source.absolute(), name, dir_fd=folder)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(name, flags, 0o666, dir_fd=folder)
            try:
                _copy(source, target, share=self._mode == "auto")
            finally:
                os.close(target)


def _fixed(target: Path) -> bool:
    """Whether a directory can't be replaced by a rename: a mount, or below a directory closed to us."""
    return not os.access(target.parent, os.W_OK | os.X_OK) or _is_mount(target)


def _is_mount(target: Path) -> bool:
    return _mount_of(target) != _mount_of(target.absolute().parent)


def _mount_of(folder: Path) -> str:
    """The id of the mount that a directory lies on; tells bind mounts apart, as `st_dev` doesn't."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    finally:
        os.close(fd)
    return next((line for line in lines if line.startswith("mnt_id:")), "")


def entries_of(target: Path) -> list[Path]:
    """The entries of a directory, without those that its file system made: a fresh volume isn't empty.

    Only in a mount: elsewhere somebody else made them.
    """
    entries = list(target.iterdir())
    if any(path.name in OF_FILE_SYSTEMS for path in entries) and _is_mount(target):
        return [path for path in entries if path.name not in OF_FILE_SYSTEMS]
    return entries


def unfinished(target: Path) -> list[Path]:
    """Marked directories in `target`: of a command that fills it in place, or of one that was killed."""
    return marked(target, target.iterdir())


def marked(target: Path, entries: Iterable[Path]) -> list[Path]:
    """The marked ones among `target`'s entries: they show that it is being filled."""
    return [path for path in entries if path.name.startswith(f".{target.name}{_MARK}")]


def _tidy(tree: Path, target: Path) -> None:
    """Remove the leftovers of a killed command in `target`: its marked directory, and entries that it moved up."""
    left_over = unfinished(target)
    if not left_over:
        return
    for entry in tree.iterdir() if tree.is_dir() else ():
        path = target / entry.name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in left_over:
        shutil.rmtree(path)


def _files(tree: Path, left_out: Collection[str] = ()) -> Iterator[Path]:
    """Regular files below `tree`, relative to it, without the entries `left_out` at its top."""
    if not tree.is_dir():
        raise NotFound(f"{tree} isn't there; pull the model again")
    pending = [Path()]
    while pending:
        folder = pending.pop()
        with disk_errors(str(tree / folder)), os.scandir(tree / folder) as entries:
            for entry in entries:
                path = folder / entry.name
                if str(path) in left_out:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield path


def _copy(source: Path, target: int, *, share: bool) -> None:
    with source.open("rb") as reader:
        info = os.fstat(reader.fileno())
        if not (share and syscalls.reflink(reader.fileno(), target)):
            _copy_bytes(reader.fileno(), target, info.st_size, share=share)
        # The same time stamp tells a second call cheaply that the copy is still the same.
        os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))


def _copy_bytes(source: int, target: int, size: int, *, share: bool) -> None:
    if share:
        syscalls.copy_range(source, 0, target, 0, size)
        return
    os.lseek(source, 0, os.SEEK_SET)
    done = 0
    while done < size:
        n = os.sendfile(target, source, done, size - done)
        if n == 0:
            raise OSError(errno.EIO, "the source file is shorter than it was")
        done += n


def _same(tree: Path, to: Path, files: list[Path], mode: Mode) -> bool:
    with disk_errors(str(to)):
        wanted, found = set(files), 0
        left_out = OF_FILE_SYSTEMS if _is_mount(to) else ()
        for path in _files(
            to, left_out
        ):  # may be a whole home directory: the first other file decides
            if path not in wanted:
                return False
            found += 1
        return found == len(wanted) and all(
            _same_file(tree / path, to / path, mode) for path in files
        )


def _same_file(source: Path, target: Path, mode: Mode) -> bool:
    if mode == "symlink" or target.is_symlink():
        return mode == "symlink" and target.is_symlink() and target.readlink() == source.absolute()
    ours, theirs = source.stat(), target.stat()
    if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
        return mode == "hard"
    if mode == "hard" or ours.st_size != theirs.st_size:
        return False
    return ours.st_mtime_ns == theirs.st_mtime_ns or filecmp.cmp(source, target, shallow=False)


def _explain(error: OSError, to: Path) -> None:
    """Raise an error with advice for an error of the system that the caller can mend."""
    if error.errno == errno.EXDEV:
        raise UsageError(
            f"{to} is on another file system (or mount) than the cache: hard links can't reach it; "
            "leave --link out to copy"
        ) from error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # not the cache's disk, mostly
        raise NoSpace(
            f"{to}: {error.strerror}; make room there, or choose another directory; the model itself "
            "is in the cache"
        ) from error
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        raise UsageError(
            f"{to} was filled by somebody else meanwhile; choose another directory"
        ) from error
