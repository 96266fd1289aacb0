"""One incoming stream of one chunk, and the fence between streams of the same chunk.

The first writer of a chunk (the *primary*) writes straight into the partial blob. Writers that begin
meanwhile write into nameless scratch files. So do all writers of a published blob that is being
demoted: it is filled when that is done. The first writer that proves its bytes fences the others: their later
puts do nothing, and their running ones are waited for. Only then is the region filled (from the
scratch file, if a second writer won), copied to the chunk's other places, and marked. So a proved
region is never written again, and no byte of an unproved stream can follow a proof. Slots are kept by
chunk (length and digest, since a manifest could lie about one of them), for models share blobs and
chunks.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from blake3 import blake3

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk
from p2pcache.errors import LocalProtocolError, NotFound, P2PCacheError, from_code
from p2pcache.io.blobs.blob_file import BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.disk.region_hash import hash_region


class Target(Protocol):
    """The model that a chunk is written for."""

    layout: Layout

    def has_chunk(self, chunk: int) -> bool:
        """Whether every place of the chunk is proved."""

    def open_places(self, chunk: int) -> Iterator[tuple[BlobFile, int]]:
        """Places (blob, position) of the chunk that aren't proved yet."""


class Slot:
    """The writers of one chunk, whichever model they write for. Guarded by the pool's lock."""

    __slots__ = ("chunk", "failure", "primary", "proving", "writers")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.writers: list[ChunkWriter] = []
        self.primary: ChunkWriter | None = None
        self.proving = False  # a winner is filling the places
        self.failure: P2PCacheError | None = None  # why a winner couldn't


class Writers:
    """Hands out chunk writers, so that no two ever share a region."""

    def __init__(self, blobs: BlobPool) -> None:
        self.blobs = blobs
        self._slots: dict[Chunk, Slot] = {}

    def begin(self, model: Target, chunk: int) -> "ChunkWriter | None":
        """A writer for a chunk that isn't proved; None if it is.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the file can't be opened.
        """
        blobs = self.blobs
        key = Chunk(model.layout.lengths[chunk], model.layout.digest_of_chunk(chunk))
        with blobs.lock:
            place = next(model.open_places(chunk), None)
            if place is None:
                return None
            slot = self._slots.get(key) or Slot(key)
            blob, position = place
            if slot.primary is None and not slot.proving and not blob.published:
                writer = ChunkWriter(self, slot, model, chunk, blobs.writer(blob),
                                     blob.offsets[position])  # fmt: skip
                slot.primary = writer
            else:
                with cache_errors(blobs, f"scratch file in {blobs.root}"):
                    scratch = OpenFile(blobs.disk.open_scratch(blobs.folders.tmp))
                writer = ChunkWriter(self, slot, model, chunk, scratch, 0)
            slot.writers.append(writer)
            self._slots[key] = slot
            return writer

    def writes(self, length: int, digest: bytes) -> bool:
        """Whether somebody writes a chunk. Under the lock."""
        return Chunk(length, digest) in self._slots

    def stop(self, model: Target) -> None:
        """End every writer of a model that is being removed, and wait until none writes."""
        with self.blobs.lock:
            mine = [w for s in self._slots.values() for w in s.writers if w.model is model]
            for writer in mine:
                writer.abort()
            self.blobs.changed.wait_for(lambda: all(w.idle for w in mine))

    def release(self, writer: "ChunkWriter") -> None:
        """Forget a writer that has ended and is idle. Under the lock."""
        slot = writer.slot
        if writer not in slot.writers:
            return
        # botocore's errors keep the frames of their callers, and these keep writers, until garbage is
        # collected. A removed model's bytes would stay on the disk until then.
        del writer.file
        slot.writers.remove(writer)
        if slot.primary is writer:
            slot.primary = None
        if not slot.writers:
            self._slots.pop(slot.chunk, None)

    def prove(self, winner: "ChunkWriter") -> bool:
        """Fence the other writers, fill every place and mark them.

        Raises:
            P2PCacheError: the places couldn't be filled (disk); nothing is marked.
        """
        blobs, slot = self.blobs, winner.slot
        with blobs.lock:
            blobs.changed.wait_for(
                lambda: not slot.proving and (winner.fenced or not _demoted_now(slot.writers))
            )
            if winner.model.has_chunk(winner.chunk):
                return True
            if winner.fenced:
                raise slot.failure or NotFound("the model was removed from this cache meanwhile")
            winner.check_complete()
            slot.proving = True
            winner.busy()  # `stop` waits until its file has been read
            others = [w for w in slot.writers if w is not winner]
            for writer in others:
                writer.fenced = True
            blobs.changed.wait_for(lambda: all(w.idle for w in others))
            places = _places(slot.writers)
        try:
            self._fill(winner, places)
        except P2PCacheError as error:
            # A copy of the error: the frames of the original have files open.
            slot.failure = from_code(error.exit_code, str(error))
            raise
        else:
            with blobs.lock:
                for blob, positions in places:
                    blob.gain(positions)
        finally:
            with blobs.lock:
                slot.proving = False
                winner.done()
                blobs.changed.notify_all()
        return True

    def _fill(self, winner: "ChunkWriter", places: Iterable[tuple[BlobFile, list[int]]]) -> None:
        blobs = self.blobs
        for blob, positions in places:
            target = blobs.writer(blob)
            with cache_errors(blobs, f"{blobs.root}/partial/{blob.id}"):
                for position in positions:
                    offset = blob.offsets[position]
                    if target is winner.file and offset == winner.base:
                        continue
                    blobs.disk.copy_range(winner.file.fd, winner.base, target.fd, offset,
                                          winner.length)  # fmt: skip


def _demoted_now(writers: "list[ChunkWriter]") -> bool:
    """Whether a place of the chunk lies in a published file, which a partial copy is about to replace."""
    return any(
        blob.published
        for model, chunk in {(writer.model, writer.chunk) for writer in writers}
        for blob, _ in model.open_places(chunk)
    )


def _places(writers: "list[ChunkWriter]") -> list[tuple[BlobFile, list[int]]]:
    """The unproved places of the chunk in every model that has a writer for it, each once."""
    found: dict[str, tuple[BlobFile, dict[int, None]]] = {}
    for model, chunk in dict.fromkeys((writer.model, writer.chunk) for writer in writers):
        for blob, position in model.open_places(chunk):
            found.setdefault(blob.id, (blob, {}))[1][position] = None
            blob.clear_suspect(position)
    return [(blob, list(positions)) for blob, positions in found.values()]


class ChunkWriter:
    """One stream of one chunk. `update` in stream order; `put` on any thread, in any order.

    End it with exactly one `finish` or `abort`; after either, puts do nothing.
    """

    __slots__ = (
        "_active", "_ended", "_hasher", "_put", "_seen", "_writers", "base", "chunk", "fenced", "file",
        "length", "model", "slot",
    )  # fmt: skip

    def __init__(
        self, writers: Writers, slot: Slot, model: Target, chunk: int, file: OpenFile, base: int
    ) -> None:
        self._writers = writers
        self.slot = slot
        self.model = model
        self.chunk = chunk
        self.file = file
        self.base = base  # where in the file the chunk begins
        self.length = slot.chunk.length
        self.fenced = False  # puts do nothing any more
        self._ended = False  # its owner finished or aborted it
        self._active = 0  # calls that read or write `file` now
        self._hasher = blake3()
        self._seen = 0
        self._put = 0

    @property
    def idle(self) -> bool:
        """Whether no call reads or writes its file now. Under the lock."""
        return self._active == 0

    def busy(self) -> None:
        """A call reads or writes its file until `done`. Under the lock."""
        self._active += 1

    def done(self) -> None:
        """The end of `busy`. Under the lock."""
        self._active -= 1
        self._settle()

    def update(self, data: memoryview) -> None:
        """Hash the next bytes of the stream."""
        self._seen += len(data)
        if self._seen > self.length:
            raise LocalProtocolError(f"more than {self.length} bytes for chunk {self.chunk}")
        self._hasher.update(data)

    def put(self, offset: int, data: memoryview) -> None:
        """Write bytes at an offset within the chunk, unless the writer is fenced.

        Raises:
            NoSpace, NotAllowed, P2PCacheError: the disk refused.
        """
        if offset < 0 or offset + len(data) > self.length:
            raise LocalProtocolError(f"bytes outside of chunk {self.chunk}")
        blobs = self._writers.blobs
        with blobs.lock:
            if self.fenced:
                return
            self.busy()
        written = 0
        try:
            with self.file.writing, cache_errors(blobs, f"write into {blobs.root}"):
                blobs.disk.write_at(self.file.fd, data, self.base + offset)
            written = len(data)
        finally:
            with blobs.lock:
                self._put += written
                self.done()

    def copy_from(self, source: OpenFile, offset: int) -> None:
        """Take the whole chunk from another file of this disk, instead of `update` and `put`.

        The bytes are hashed in the target, after the copy.
        """
        blobs = self._writers.blobs
        with blobs.lock:
            if self.fenced:
                return
            self.busy()
        try:
            with cache_errors(blobs, f"copy into {blobs.root}"):
                blobs.disk.copy_range(source.fd, offset, self.file.fd, self.base, self.length)
                hash_region(self.file.fd, self.base, self.length, self._hasher)
        finally:
            with blobs.lock:
                self._seen = self._put = self.length
                self.done()

    def finish(self) -> bool:
        """End the stream once all its bytes are updated and put.

        Returns:
            True if the chunk is proved now (by this writer, or by another one meanwhile, when
            these bytes matched too); False if these bytes don't match the manifest.

        Raises:
            LocalProtocolError: bytes are missing.
            P2PCacheError: the disk refused, or the model was removed; nothing is marked.
        """
        try:
            if self._seen != self.length:
                raise LocalProtocolError(f"chunk {self.chunk}: {self._seen} of {self.length} bytes")
            return self._hasher.digest() == self.slot.chunk.digest and self._writers.prove(self)
        finally:
            self.abort()

    def check_complete(self) -> None:
        """Refuse to prove a chunk that wasn't written in full. Under the lock."""
        if self._active or self._put != self.length:
            raise LocalProtocolError(f"chunk {self.chunk}: {self._put} of {self.length} bytes put")

    def abort(self) -> None:
        """Give up, or release the file after `finish`. Never blocks; running puts end by themselves."""
        with self._writers.blobs.lock:
            self.fenced = self._ended = True
            self._settle()
            self._writers.blobs.changed.notify_all()  # its own `finish` may wait for a place

    def _settle(self) -> None:
        if self._active == 0 and self.fenced:
            if self._ended:
                self._writers.release(self)
            self._writers.blobs.changed.notify_all()
