"""Proving what this disk has already: suspect bytes, and chunks that lie in other blobs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import Chunk, File
from p2pcache.errors import IntegrityError, NotFound
from p2pcache.ids import RunSet
from p2pcache.io.blobs import proving
from p2pcache.io.blobs.blob_file import BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import ChunkWriter
from p2pcache.io.disk.cache_dir import cache_errors

Others = Callable[[set[str]], Iterable[File]]
"""Gives the files of other models that have one of some chunks, by their digests (hex)."""


class Target(Protocol):
    """The model that is filled (`model_chunks.ModelStore`)."""

    @property
    def layout(self) -> Layout:
        """Index tables of its manifest."""
        ...

    @property
    def files(self) -> Sequence[BlobFile]:
        """Its blobs, in the layout's order."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every chunk is proved."""
        ...

    def have_runs(self) -> RunSet:
        """The proved runs."""
        ...

    def has_chunk(self, chunk: int) -> bool:
        """Whether a chunk is proved."""
        ...

    def begin(self, chunk: int) -> ChunkWriter | None:
        """A writer for a chunk; None if it's proved."""
        ...


def copy_local(model: Target, blobs: BlobPool, others: Others) -> RunSet:
    """Prove suspect bytes of a model, then copy chunks within it and from other models' files.

    Args:
        model: the model to fill.
        blobs: the pool.
        others: gives files of other models; only asked when chunks are missing.

    Returns:
        The runs that became complete.

    Raises:
        NoSpace, NotAllowed, P2PCacheError: the disk refused.
    """
    before = model.have_runs()
    for blob in model.files:
        if blob.suspect is not None:
            proving.prove_suspects(blobs, blob, blob.suspects())
    if not model.complete:
        _copy_within(model, blobs)
        _copy_from(model, blobs, others)
    return model.have_runs() & ~before


def fill_from(model: Target, blobs: BlobPool, number: int, parent: int, name: str) -> None:
    """Copy the missing chunks of a blob from a file that has all of its bytes.

    Args:
        model: the model to fill.
        blobs: the pool.
        number: of the blob.
        parent: the open directory in which the file lies.
        name: of the file there.

    Raises:
        IntegrityError: the file has other bytes.
        NoSpace, NotAllowed, P2PCacheError: the disk refused.
    """
    layout, offset = model.layout, 0
    with cache_errors(blobs, name):
        file = OpenFile(blobs.disk.open_read(parent, name))
    for chunk in layout.blobs[number].chunks:
        writer = None if model.has_chunk(chunk) else model.begin(chunk)
        if writer is not None:
            try:
                writer.copy_from(file, offset)
                if not writer.finish():
                    raise IntegrityError(
                        "bytes that were kept for a model were changed on disk; import it again"
                    )
            finally:
                writer.abort()
        offset += layout.lengths[chunk]


def _missing(model: Target) -> list[int]:
    return [chunk for chunk in range(model.layout.chunk_count) if not model.has_chunk(chunk)]


def _copy_within(model: Target, blobs: BlobPool) -> None:
    """Fill repeated chunks from a place of theirs that is proved."""
    for chunk in _missing(model):
        for place in model.layout.places(chunk):
            blob = model.files[place.blob]
            if _copy(model, blobs, blob, blob.position(place.offset), chunk):
                break


def _copy_from(model: Target, blobs: BlobPool, others: Others) -> None:
    layout = model.layout
    wanted = {
        Chunk(layout.lengths[c], layout.digest_of_chunk(c)): c for c in _missing(model)
    }  # fmt: skip
    if not wanted:
        return
    own = {blob.id for blob in model.files}
    for file in others({chunk.digest.hex() for chunk in wanted}):
        if not wanted:
            return
        hits = [position for position, chunk in enumerate(file.chunks) if chunk in wanted]
        if not hits or file.blob_id in own:
            continue
        blob = blobs.peek(file.blob_id, file)
        for position in hits:
            key = Chunk(blob.lengths[position], blob.digest(position))
            if key in wanted and _copy(model, blobs, blob, position, wanted[key]):
                del wanted[key]


def _copy(model: Target, blobs: BlobPool, source: BlobFile, position: int, chunk: int) -> bool:
    """Copy one chunk; False if the source doesn't have it. A rotten source is believed no longer."""
    with blobs.lock:
        if not source.bits[position]:
            return False
        try:
            file = blobs.reader(source)
        except NotFound:
            return False
    writer = model.begin(chunk)
    if writer is None:
        return True
    try:
        writer.copy_from(file, source.offsets[position])
        if writer.finish():
            return True
    finally:
        writer.abort()
    proving.take_back(blobs, source, [position])
    return False
