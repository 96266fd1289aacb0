"""A mounted directory as origin: `file:///abs/dir`, local or NFS.

Objects are plain files. Writers fill a temporary file, sync it and rename it, so readers see the
old or the new bytes; conditional writers also hold a lock on the whole directory.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from p2pcache.errors import (
    Conflict,
    IntegrityError,
    NoSpace,
    NotAllowed,
    NotFound,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.origins.base import (
    ABSENT,
    Body,
    Expect,
    NoContainer,
    ObjectInfo,
    Origin,
    Readable,
    check_key,
    check_prefix,
)
from p2pcache.io.origins.folder import Folder, directory_of
from p2pcache.io.process_limits import limit_reached

_COPY_BYTES = 1024 * 1024  # per read of the source: progress stays smooth, calls stay few


class FileOrigin(Origin):
    """Objects in a directory. The directory must exist: an unmounted share must not look empty."""

    def __init__(self, url: str) -> None:
        """Open `file:///ABSOLUTE/DIRECTORY`.

        Raises:
            UsageError: another form of URL.
            NotFound: no such directory.
        """
        root = Path(os.path.normpath(directory_of(url)))
        self.url = f"file://{root}"
        self._folder = Folder(root)
        with self._errors(""):
            if not root.is_dir():
                raise _missing(root)

    @property
    def conditional_put(self) -> bool:
        """Always: lock and rename."""
        return True

    def get(self, key: str, *, limit: int) -> tuple[bytes, str]:
        """As `Origin.get`."""
        with self._errors(key), self._opened(key) as fd:
            found = os.fstat(fd)
            if found.st_size > limit:
                raise IntegrityError(
                    f"{self.url}/{key} has {found.st_size} bytes, over its limit of {limit}"
                )
            data = bytearray(found.st_size)
            view = memoryview(data)
            done = 0
            while done < len(data):
                count = os.preadv(fd, [view[done:]], done)
                if not count:
                    raise OriginUnavailable(f"{self.url}/{key} ended while it was read")
                done += count
            return bytes(data), _version(found)

    def stat(self, key: str) -> ObjectInfo | None:
        """As `Origin.stat`."""
        try:
            with self._errors(key), self._opened(key) as fd:
                found = os.fstat(fd)
        except NotFound:
            return None
        return ObjectInfo(key, found.st_size, _version(found))

    def open(self, key: str, start: int, length: int) -> Body:
        """As `Origin.open`."""
        with self._errors(key):
            body = _FileBody(self, key, self._folder.open_file(check_key(key)), start, length)
            if body.size < start + length:
                body.close()
                raise OriginChanged(
                    f"{self.url}/{key} has {body.size} bytes where at least {start + length} were "
                    "pushed; push it again"
                )
            return body

    def put(self, key: str, data: bytes, *, expect: Expect = None) -> str:
        """As `Origin.put`."""
        with self._errors(key), self._folder.staged() as (staging, name, fd):
            _write(fd, data)
            os.fsync(fd)
            version = _version(os.fstat(fd))
            with contextlib.ExitStack() as lock:
                if expect is not None:
                    lock.enter_context(self._folder.locked())
                    self._check(key, expect)
                self._publish(key, staging, name)
            return version

    def put_file(
        self,
        key: str,
        source: Readable,
        size: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """As `Origin.put_file`."""
        with self._errors(key), self._folder.staged() as (staging, name, fd):
            done, buffer = 0, memoryview(bytearray(min(_COPY_BYTES, size)))
            while done < size:
                count = source.readinto(buffer[: size - done])
                if not count:
                    raise IntegrityError(f"the source of {key} ended after {done} of {size} bytes")
                _write(fd, buffer[:count])
                done += count
                if progress is not None:
                    progress(count)
            os.fsync(fd)
            self._publish(key, staging, name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As `Origin.list`."""
        with self._errors(prefix):
            for path, info in self._folder.walk(check_prefix(prefix)):
                yield ObjectInfo(prefix + path, info.st_size, _version(info))

    def delete(self, key: str) -> None:
        """As `Origin.delete`."""
        segments = check_key(key)
        with (
            contextlib.suppress(NotFound),
            self._errors(key),
            self._folder.parent(segments, create=False) as parent,
        ):
            os.unlink(segments[-1], dir_fd=parent)
            os.fsync(parent)

    def rest(self) -> None:
        """Nothing is held open."""

    def close(self) -> None:
        """Nothing is held open."""

    def failure(self, key: str, error: OSError) -> P2PCacheError:
        """The error of our tree for an `OSError` about `key`."""
        what = f"{self.url}/{key}"
        if limited := limit_reached(error):
            return OriginUnavailable(f"{what}: {limited}")  # it may pass: others close theirs
        reason = os.strerror(error.errno) if error.errno else str(error)
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                with contextlib.suppress(OSError):
                    if not self._folder.root.is_dir():
                        return _missing(self._folder.root)
                return NotFound(f"{what} doesn't exist")
            case errno.EACCES | errno.EPERM | errno.EROFS | errno.ELOOP:
                return NotAllowed(
                    f"{what}: {reason}; check the mount's options and this user's permissions"
                )
            case errno.ENAMETOOLONG:
                return UsageError(f"{what}: {reason}; choose another directory")
            case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
                return NoSpace(f"the origin directory {self._folder.root} is full ({reason})")
        return OriginUnavailable(f"{what}: {reason}")

    def _publish(self, key: str, staging: int, name: str) -> None:
        segments = check_key(key)
        with self._folder.parent(segments, create=True) as parent:
            os.rename(name, segments[-1], src_dir_fd=staging, dst_dir_fd=parent)
            os.fsync(parent)

    def _check(self, key: str, expect: Expect) -> None:
        """Check the expected version, under the lock. `stat` opens the file, so NFS asks the server anew."""
        found = self.stat(key)
        if expect is ABSENT and found is not None:
            raise Conflict(f"{self.url}/{key} exists already")
        if expect is not ABSENT and (found is None or found.version != expect):
            raise Conflict(f"{self.url}/{key} was changed by somebody else")

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        fd = self._folder.open_file(check_key(key))
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.failure(key, error) from error


def _missing(root: Path) -> NoContainer:
    return NoContainer(
        f"the origin directory {root} doesn't exist; mount it, or create it with mkdir -p"
    )


class _FileBody(Body):
    """A range that is read by position; owns its descriptor."""

    def __init__(self, origin: FileOrigin, key: str, fd: int, start: int, length: int) -> None:
        self._origin = origin
        self._key = key
        self._fd = fd
        self._next = start
        self._end = start + length
        self.size = os.fstat(fd).st_size

    def readinto(self, buffer: memoryview) -> int:
        want = min(len(buffer), self._end - self._next)
        if not want:
            return 0
        try:
            count = os.preadv(self._fd, [buffer[:want]], self._next)
        except OSError as error:
            raise self._origin.failure(self._key, error) from error
        if not count:
            raise OriginUnavailable(f"{self._origin.url}/{self._key} ended while it was read")
        self._next += count
        return count

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
