"""Blobs that a client sends: they are proved chunk by chunk as they come."""

from collections.abc import Iterable, Iterator

from blake3 import blake3

from p2pcache.core.format.layout import Blob, Layout
from p2pcache.errors import IntegrityError, UsageError
from p2pcache.io import pools
from p2pcache.io.blobs.chunk_writer import ChunkWriter
from p2pcache.io.http.bodies import Body
from p2pcache.io.models.model_chunks import ModelStore

PIECE_BYTES = 1 << 20  # handed to a thread at once; smaller costs wake-ups, larger memory


async def receive_blob(store: ModelStore, blob: Blob, body: Body) -> None:
    """Prove and store one blob from a request's body.

    Raises:
        IntegrityError: the bytes aren't those of the manifest.
        UsageError: the body is longer than the blob, or ends before.
    """
    layout = store.layout
    for group in _groups(layout, blob.chunks):
        size = sum(layout.lengths[chunk] for chunk in group)
        if size > PIECE_BYTES:
            await _receive_chunk(store, group[0], body)
        else:
            data = memoryview(await body.exactly(size))
            await pools.STEPS.run(_prove_group, store, group, data)
    if await body.part(1):
        raise UsageError("the body is longer than the blob")


def _groups(layout: Layout, chunks: Iterable[int]) -> Iterator[list[int]]:
    """Consecutive chunks that one thread proves at once, up to `PIECE_BYTES`; a larger chunk is alone."""
    group: list[int] = []
    size = 0
    for chunk in chunks:
        length = layout.lengths[chunk]
        if group and size + length > PIECE_BYTES:
            yield group
            group, size = [], 0
        group.append(chunk)
        size += length
    if group:
        yield group


def _prove_group(store: ModelStore, chunks: Iterable[int], data: memoryview) -> None:
    """Prove small chunks whose bytes have come."""
    offset = 0
    for chunk in chunks:
        length = store.layout.lengths[chunk]
        piece = data[offset : offset + length]
        writer = store.begin(chunk)
        if writer is not None:
            _write(writer, 0, piece)
            _believe(writer.finish())
        else:  # its sender must show that it has the bytes
            _believe(blake3(piece).digest() == store.layout.digest_of_chunk(chunk))
        offset += length


async def _receive_chunk(store: ModelStore, chunk: int, body: Body) -> None:
    """Prove one chunk. One that is here already is proved, too: its sender must show that it has the bytes."""
    layout = store.layout
    writer, hasher = await pools.STEPS.run(store.begin, chunk), blake3()
    offset, length = 0, layout.lengths[chunk]
    while offset < length:
        piece = memoryview(await body.exactly(min(PIECE_BYTES, length - offset)))
        if writer is not None:
            await pools.STEPS.run(_write, writer, offset, piece)
        else:
            await pools.STEPS.run(hasher.update, piece)
        offset += len(piece)
    if writer is not None:
        _believe(await pools.STEPS.run(writer.finish))
    else:
        _believe(hasher.digest() == layout.digest_of_chunk(chunk))


def _believe(right: bool) -> None:  # noqa: FBT001 - one word is the whole call
    if not right:
        raise IntegrityError(
            "the bytes sent are not those of the manifest; did the file change? push again"
        )


def _write(writer: ChunkWriter, offset: int, view: memoryview) -> None:
    writer.update(view)
    writer.put(offset, view)
