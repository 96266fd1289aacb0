"""Giving back the disk space of some chunks of a blob while others stay: the blob gets holes.

Two steps, so that a crash between them costs space and never a wrong byte. First the chunks are believed no longer, on
disk and then in memory: where the disk refuses, nothing has changed. Then their space is punched out of the file, as
soon as nobody can still be sending them: a request that was accepted before may read its bytes for minutes.
"""

import os
from collections.abc import Iterable, Iterator

from p2pcache.io.blobs.blob_file import BLOCK_BYTES, BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import Writers
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.host.file_users import held_by_anybody

AT_ONCE = 64  # chunks that are punched under one hold of the lock: milliseconds


def believe_no_longer(pool: BlobPool, blob: BlobFile, positions: Iterable[int]) -> None:
    """Believe these positions no longer, before this returns; a published blob becomes a partial one.

    No tree may show the blob.

    Raises:
        NotFound: its file is gone, and nothing of it is believed any more.
        NoSpace, NotAllowed, P2PCacheError: the disk refused.
    """
    chosen = list(positions)
    with pool.maintenance, cache_errors(pool, f"{pool.root}/partial/{blob.id}"):
        with pool.lock:
            holders = pool.files.holders(blob.id)
            if blob.published:
                _make_partial(pool, blob, chosen)
            elif blob.on_disk:
                if blob.dirty:  # a moment after a flush: the bitmap must not be ahead of the data
                    pool.disk.sync_data(pool.writer(blob).fd)
                _write_without(pool, blob, chosen)
            blob.readers += holders
            for position in chosen:
                blob.clear_suspect(position)
            blob.lose(chosen)
            blob.dirty = blob.dirty and not blob.on_disk  # its bitmap on disk says the same
            pool.files.drop(blob.id)
        pool.disk.sync(pool.folders.partial)
        pool.disk.sync(pool.folders.blobs)


def _make_partial(pool: BlobPool, blob: BlobFile, positions: list[int]) -> None:
    """Turn a published blob into a partial one, on disk without these positions. Under the lock."""
    file = pool.reader(blob, check=False)
    _write_without(
        pool, blob, positions
    )  # of no file until the rename: a crash leaves nothing of it
    pool.records.remove_proofs([blob.id])
    pool.proofs.pop(blob.id, None)
    pool.disk.chmod(file.fd, 0o600)
    pool.disk.rename(pool.folders.blobs, blob.id, pool.folders.partial, blob.id)
    pool.on_demoted(blob)
    blob.allocated = os.fstat(file.fd).st_blocks * 512


def _write_without(pool: BlobPool, blob: BlobFile, positions: Iterable[int]) -> None:
    """Write the bitmap as it will be."""
    bits = bytearray(blob.bits)
    for position in positions:
        bits[position] = 0
    done_bytes = sum(length for length, bit in zip(blob.lengths, bits, strict=True) if bit)
    pool.write_bitmap(blob, bits, done_bytes)


def free_holes(pool: BlobPool, writers: Writers, blob: BlobFile) -> bool:
    """Give back the disk space of all that isn't proved of a partial blob, for which nobody waits.

    Returns:
        Whether that is done; False: somebody may still be reading or writing, try again later.

    Raises:
        NoSpace, NotAllowed, P2PCacheError: the disk refused.
    """
    with pool.maintenance, cache_errors(pool, f"{pool.root}/partial/{blob.id}"):
        with pool.lock:
            if blob.published or not blob.on_disk:
                return True
            if blob.dirty:
                return False  # the bitmap on disk may still believe what would be punched
            blob.readers = [reader for reader in blob.readers if reader() is not None]
            if blob.readers:
                return False
            pool.files.drop(blob.id)  # our own would count
            if held_by_anybody(blob.id, pool.folders.partial):
                return False  # a file that was shown may be mounted in a container: it would have holes
            blob.reserved = False
            if not any(blob.bits) and _unused(blob, writers, range(len(blob.bits))):
                pool.delete_files(blob.id)
                pool.on_deleted(blob)
                return True
            file = pool.writer(blob)
        done = True
        for first in range(0, len(blob.bits), AT_ONCE):
            some = range(first, min(first + AT_ONCE, len(blob.bits)))
            done &= _punch(pool, writers, blob, file, some)
        blob.allocated = os.fstat(file.fd).st_blocks * 512
        return done


def linked_elsewhere(pool: BlobPool, blob: BlobFile) -> bool:
    """Whether a blob that no tree shows has another hard link, of which we know nothing."""
    folder = pool.folders.blobs if blob.published else pool.folders.partial
    try:
        return os.stat(blob.id, dir_fd=folder, follow_symlinks=False).st_nlink > 1
    except FileNotFoundError:
        return False


def has_holes_to_free(blob: BlobFile) -> bool:
    """Whether a partial blob's file takes much more space than its proved chunks."""
    slack = BLOCK_BYTES * (2 + len(blob.bits))
    return not blob.published and blob.on_disk and blob.allocated > blob.done_bytes + slack


def _punch(
    pool: BlobPool, writers: Writers, blob: BlobFile, file: OpenFile, positions: Iterable[int]
) -> bool:
    """Punch what isn't proved of these positions; whether nothing of it is being written."""
    done = True
    with pool.lock:
        for first, last in _stretches(p for p in positions if not blob.bits[p]):
            if not _unused(blob, writers, range(first, last + 1)):
                done = False
                continue
            end = blob.offsets[last] + blob.lengths[last]
            pool.disk.punch(file.fd, blob.offsets[first], end - blob.offsets[first])
    return done


def _unused(blob: BlobFile, writers: Writers, positions: Iterable[int]) -> bool:
    """Whether nobody writes these positions, and none is to be proved by reading."""
    return not any(
        writers.writes(blob.lengths[p], blob.digest(p))
        or (blob.suspect is not None and blob.suspect[p])
        for p in positions
    )


def _stretches(positions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each stretch of consecutive positions."""
    first = last = -1
    for position in positions:
        if position != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = position
        last = position
    if first >= 0:
        yield first, last
