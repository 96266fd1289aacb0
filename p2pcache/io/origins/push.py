"""Uploading a model's blobs, several at once.

Every byte is hashed on its way out, in the same pass: a file that changed since it was indexed
ends the push before anything of it is visible, instead of as exit 6 on every node.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

from blake3 import blake3

from p2pcache.core.format.layout import Layout
from p2pcache.errors import IntegrityError, NotAllowed
from p2pcache.io.origins.base import Readable

_QUESTIONS = 16  # HEADs and small uploads at once: thousands of small files take seconds
_LIST_FROM = 200  # blobs: for fewer, a listing of a full storage may cost more than asking
_LIST_KEYS_EACH = 20  # keys listed at most for each blob; they cost a third of a request for it
_LARGE_BYTES = 32 * 1024 * 1024  # from here a blob's own parts fill the link
_LARGE_AT_ONCE = 2  # the next one starts while the last parts of the first end
_SLICE_BYTES = 512 * 1024  # read and hashed at once: it is still in the processor's cache

OpenBlob = Callable[[int], int]
"""From an index into `layout.blobs` to a descriptor, which the push closes."""


class PushResult(NamedTuple):
    """The result of a push."""

    digest: str
    generation: int
    bytes_uploaded: int
    blobs_uploaded: int


class Blobs(Protocol):
    """The part of `OriginRepo` that uploads need."""

    def has_blob(self, blob: str, size: int) -> bool:
        """Whether it is stored with this size."""

    def stored_blobs(self) -> Iterator[tuple[str, int]]:
        """Every blob that is stored, with its size, in no certain order."""

    def put_blob(
        self, blob: str, source: Readable, size: int, *, progress: Callable[[int], None] | None
    ) -> None:
        """Store it."""


def upload_blobs(
    repo: Blobs,
    layout: Layout,
    open_blob: OpenBlob,
    *,
    progress: Callable[[int], None] | None = None,
    repair: bool = False,
) -> list[int]:
    """Upload the blobs that the origin lacks; returns their indices.

    Args:
        repo: where to.
        layout: of the model.
        open_blob: the source of each missing blob.
        progress: told how many bytes more the origin has (blobs that it had count at once); one
            call at a time, from several threads.
        repair: upload all, since an origin only knows a blob's name and size, not its bytes.

    Raises:
        IntegrityError: a file isn't what it was when it was indexed.
    """
    lock = threading.Lock()

    def told(count: int) -> None:
        if progress is not None and count:
            with lock:
                progress(count)

    def upload(index: int) -> None:
        blob = layout.blobs[index]
        fd = open_blob(index)
        try:
            repo.put_blob(blob.id, ProvingSource(layout, index, fd), blob.size, progress=told)
        finally:
            os.close(fd)

    missing = list(range(len(layout.blobs))) if repair else missing_blobs(repo, layout)
    known = set(missing)
    told(sum(b.size for i, b in enumerate(layout.blobs) if i not in known))
    large = [i for i in missing if layout.blobs[i].size >= _LARGE_BYTES]
    small = [i for i in missing if layout.blobs[i].size < _LARGE_BYTES]
    _in_parallel(small, upload, _QUESTIONS)
    _in_parallel(large, upload, _LARGE_AT_ONCE)
    return missing


def missing_blobs(repo: Blobs, layout: Layout) -> list[int]:
    """Indices of `layout.blobs` that the origin lacks, in order."""
    sizes, whole = _listed(repo, len(layout.blobs))
    unseen = [i for i, blob in enumerate(layout.blobs) if sizes.get(blob.id) != blob.size]
    if whole:
        return unseen
    missing: list[int] = []

    def ask(index: int) -> None:
        if not repo.has_blob(layout.blobs[index].id, layout.blobs[index].size):
            missing.append(index)

    _in_parallel(unseen, ask, _QUESTIONS)
    return sorted(missing)


def _listed(repo: Blobs, count: int) -> tuple[dict[str, int], bool]:
    """Sizes of stored blobs, as many as are worth it to ask less about `count`; whether that is all."""
    if count < _LIST_FROM:
        return {}, False
    sizes: dict[str, int] = {}
    with contextlib.suppress(NotAllowed):  # a client that may write may not be allowed to list
        for blob, size in repo.stored_blobs():
            if len(sizes) >= count * _LIST_KEYS_EACH:
                return sizes, False
            sizes[blob] = size
        return sizes, True
    return sizes, False


def _in_parallel(items: Iterable[int], action: Callable[[int], None], workers: int) -> None:
    """Run `action` on each; the first failure is raised, and stops those that haven't begun."""
    with contextlib.ExitStack() as cleanup:
        pool = cleanup.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="push"))
        futures = [pool.submit(action, item) for item in items]
        cleanup.callback(pool.shutdown, wait=True, cancel_futures=True)
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()


class ProvingSource:
    """The bytes of one blob, in order, each chunk checked before its last byte is given out."""

    def __init__(self, layout: Layout, blob: int, fd: int) -> None:
        """Read from the start of `fd`'s file, whose position is neither used nor moved."""
        self._fd = fd
        self._layout = layout
        self._offset = 0
        self._size = layout.blobs[blob].size
        self._chunks = self._expected(blob)
        self._left, self._digest = next(self._chunks, (0, b""))
        self._hasher = blake3()

    def readinto(self, buffer: memoryview, /) -> int:
        """Read some bytes into `buffer`; 0 at the end.

        Raises:
            IntegrityError: the file isn't what the layout says.
        """
        view = buffer[: min(_SLICE_BYTES, self._size - self._offset)]
        count = os.preadv(self._fd, [view], self._offset)
        if not count and self._offset < self._size:
            raise self._changed()
        self._prove(view[:count])
        self._offset += count
        return count

    def _prove(self, view: memoryview) -> None:
        while view:
            piece = view[: self._left]
            self._hasher.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
            if not self._left:
                if self._hasher.digest() != self._digest:
                    raise self._changed()
                self._left, self._digest = next(self._chunks, (0, b""))
                self._hasher = blake3()

    def _expected(self, blob: int) -> Iterator[tuple[int, bytes]]:
        for chunk in self._layout.blobs[blob].chunks:
            yield self._layout.lengths[chunk], self._layout.digest_of_chunk(chunk)

    def _changed(self) -> IntegrityError:
        return IntegrityError(
            "a file changed between indexing and upload; nothing was published, push again"
        )
