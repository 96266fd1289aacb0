"""A mounted directory as source: `file:///abs/dir`. Links are followed as long as they stay inside it."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from p2pcache.core.format.source_record import check_source_key
from p2pcache.errors import NotAllowed, NotFound, OriginUnavailable, UsageError
from p2pcache.io.files.indexing import find_files
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.folder import directory_of
from p2pcache.io.sources.base import SourceFile, SourceReader, changed


class DirectoryReader(SourceReader):
    """Files below a directory."""

    def __init__(self, url: str) -> None:
        """Open `file:///ABSOLUTE/DIRECTORY`.

        Raises:
            UsageError: another form of URL.
            NotFound: no such directory.
        """
        path = directory_of(url)
        self._root = Path(os.path.realpath(path))
        self.url = f"file://{os.path.normpath(path)}"
        if not self._root.is_dir():
            raise NotFound(f"the source directory {self._root} doesn't exist; is it mounted?")

    def files(self, place: str) -> Iterator[SourceFile]:
        """As `SourceReader.files`; `place` is a directory, or one file."""
        if place:
            check_source_key(place)
        with self._errors(place):
            found = self._root / place
            if found.is_file():
                yield self._listed(found.name, place, found)
                return
        prefix = f"{place}/" if place else ""
        for path, source in find_files(found).items():
            with self._errors(path):
                yield self._listed(path, prefix + path, source)

    def open(self, file: SourceFile, start: int, length: int) -> Body:
        """As `SourceReader.open`."""
        check_source_key(file.key)
        with self._errors(file.key):
            fd = os.open(self._root / file.key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                # What was opened counts, for a link may be swapped at any time.
                if not self._inside(str(Path(f"/proc/self/fd/{fd}").readlink())):
                    raise NotAllowed(
                        f"{self.url}/{file.key} is a link that leads out of the source"
                    )
                body = _FileBody(f"{self.url}/{file.key}", fd, file, start, length)
                body.check()
            except BaseException:
                os.close(fd)
                raise
            return body

    def close(self) -> None:
        """Nothing is held open."""

    def _listed(self, path: str, key: str, source: Path) -> SourceFile:
        if not self._inside(os.path.realpath(source)):
            raise UsageError(
                f"{key} in {self.url} is a link that leads out of the source; copy the file"
            )
        info = source.stat()
        return SourceFile(path, key, info.st_size, _validator(info))

    def _inside(self, path: str) -> bool:
        return Path(path).is_relative_to(self._root)

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{self.url}/{key}" if key else self.url
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise NotFound(f"{what} doesn't exist") from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
                raise NotAllowed(
                    f"{what}: {error.strerror}; check this user's permissions"
                ) from None
            raise OriginUnavailable(f"{what}: {error.strerror}") from None


class _FileBody(Body):
    def __init__(self, url: str, fd: int, file: SourceFile, start: int, length: int) -> None:
        self._url = url
        self._fd = fd
        self._file = file
        self._next = start
        self._end = start + length

    def check(self) -> None:
        """Refuse other bytes than those that were listed.

        Raises:
            OriginChanged: it is another file by now.
        """
        info = os.fstat(self._fd)
        if (
            not stat.S_ISREG(info.st_mode)
            or info.st_size != self._file.size
            or _validator(info) != self._file.validator
        ):
            changed(self._url)

    def readinto(self, buffer: memoryview) -> int:
        if self._next == self._end:
            return 0
        try:
            count = os.preadv(self._fd, [buffer[: self._end - self._next]], self._next)
        except OSError as error:
            raise OriginUnavailable(f"{self._url}: {error.strerror}") from None
        self._next += count
        if not count or self._next == self._end:
            self.check()  # somebody may have written into it meanwhile
        if not count:
            raise OriginUnavailable(f"{self._url} ended while it was read")
        return count

    def close(self) -> None:
        os.close(self._fd)


def _validator(info: os.stat_result) -> str:
    return f"mtime:{info.st_mtime_ns}"
