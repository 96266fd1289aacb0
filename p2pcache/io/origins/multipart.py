"""One large object in parts: several at once, each retried by itself, all or nothing."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from p2pcache.errors import IntegrityError, NotFound, P2PCacheError
from p2pcache.io.origins.base import Readable
from p2pcache.io.origins.retry import RetryPolicy

log = logging.getLogger(__name__)

MAX_PARTS = 10_000  # S3's limit
_ROUND_BYTES = 1024 * 1024
_SMALL_BYTES = 1024 * 1024  # uploads up to this size need no slot: their memory doesn't matter


class Calls(Protocol):
    """Calls of the storage for one key. They raise our errors and retry nothing."""

    def whole(self, data: bytearray) -> None:
        """Put the object in one piece."""

    def create(self) -> str:
        """Begin an upload; returns its id."""

    def part(self, upload: str, number: int, data: bytearray) -> str:
        """Send part `number` (from 1); returns its tag."""

    def complete(self, upload: str, tags: dict[int, str]) -> None:
        """Make the object of its parts."""

    def abort(self, upload: str) -> None:
        """Throw the parts away."""

    def size(self) -> int | None:
        """Size of the object as it is now."""


class Uploader:
    """The threads and buffers that all uploads of one origin share: that bounds the parts in memory too."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.slots = threading.Semaphore(parts)
        self.threads = ThreadPoolExecutor(parts, thread_name_prefix="s3-part")
        self._lock = threading.Lock()
        self._uploads = 0
        self._buffers: list[
            bytearray
        ] = []  # of parts that were sent; kept while anything is uploaded

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Inside the block an object is uploaded."""
        with self._lock:
            self._uploads += 1
        try:
            yield
        finally:
            with self._lock:
                self._uploads -= 1
                if not self._uploads:
                    self._buffers.clear()

    def take_buffer(self, size: int) -> bytearray:
        """Memory for one part. Its holder has one of the slots."""
        # Fresh memory costs more processor time than the bytes that are read into it.
        with contextlib.suppress(IndexError):
            if len(buffer := self._buffers.pop()) == size:
                return buffer
        return bytearray(size)

    def keep_buffer(self, buffer: bytearray) -> None:
        """A part was sent, or won't be."""
        with self._lock:
            if self._uploads:
                self._buffers.append(buffer)

    def close(self) -> None:
        """Wait for running parts."""
        self.threads.shutdown(wait=True, cancel_futures=True)


class Multipart:
    """The upload of one object."""

    def __init__(
        self, calls: Calls, policy: RetryPolicy, progress: Callable[[int], None] | None
    ) -> None:
        self._calls = calls
        self._policy = policy
        self._progress = progress
        self._lock = threading.Lock()
        self._tags: dict[int, str] = {}

    def upload(self, uploader: Uploader, source: Readable, size: int, part_bytes: int) -> None:
        """Upload `size` bytes of `source`.

        Raises:
            P2PCacheError: the first failure of a part, or of the source; nothing is visible then.
        """
        part_bytes = part_size(size, part_bytes)
        if size <= part_bytes:
            with uploader.slots if size > _SMALL_BYTES else contextlib.nullcontext():
                data = bytearray(size)
                _fill(source, data)
                self._policy.call(lambda: self._calls.whole(data))
            self._count(size)
            return
        upload = self._policy.call(self._calls.create)
        try:
            with uploader.uploading():
                self._send(uploader, upload, source, size, part_bytes)
            self._complete(upload, size)
        except BaseException:
            self._abort(upload)
            raise

    def _send(
        self, uploader: Uploader, upload: str, source: Readable, size: int, part_bytes: int
    ) -> None:
        running: set[Future[None]] = set()
        try:
            for number, start in enumerate(range(0, size, part_bytes), 1):
                uploader.slots.acquire()
                try:
                    data = uploader.take_buffer(min(part_bytes, size - start))
                    _fill(source, data)
                    future = uploader.threads.submit(self._part, upload, number, data)
                except BaseException:
                    uploader.slots.release()
                    raise
                future.add_done_callback(lambda _, data=data: _sent(uploader, data))  # type: ignore[misc]
                running.add(future)
                running = _raise_failed(running, timeout=0)
            while running:
                running = _raise_failed(running, timeout=None)
        finally:
            for future in running:
                future.cancel()
            wait(running)  # an abort beside a running part would leave that part's bytes behind

    def _part(self, upload: str, number: int, data: bytearray) -> None:
        tag = self._policy.call(lambda: self._calls.part(upload, number, data))
        with self._lock:
            self._tags[number] = tag
        self._count(len(data))

    def _complete(self, upload: str, size: int) -> None:
        try:
            self._policy.call(lambda: self._calls.complete(upload, self._tags))
        except NotFound:
            # A retry after a lost answer finds no upload any more: it was completed.
            if self._policy.call(self._calls.size) != size:
                raise

    def _abort(self, upload: str) -> None:
        try:
            self._calls.abort(upload)
        except P2PCacheError as error:
            log.warning("parts of a failed upload are left behind at the origin: %s", error)

    def _count(self, size: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._progress(size)


def part_size(size: int, part_bytes: int) -> int:
    """Bytes of each part (the last one less): equal ones, since some stores insist on that."""
    needed = -(-size // MAX_PARTS)
    return max(part_bytes, -(-needed // _ROUND_BYTES) * _ROUND_BYTES)


def _raise_failed(running: set[Future[None]], timeout: float | None) -> set[Future[None]]:
    done, left = wait(running, timeout=timeout, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return left


def _sent(uploader: Uploader, data: bytearray) -> None:
    uploader.keep_buffer(data)
    uploader.slots.release()


def _fill(source: Readable, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        count = source.readinto(view)
        if not count:
            raise IntegrityError(f"the source ended {len(view)} bytes early; push again")
        view = view[count:]
