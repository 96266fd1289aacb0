"""Giving back the disk space of some chunks of a blob while others stay.

A published blob may be mapped by anybody, also where we see no process, so it is never changed: what stays of it is
copied to a new file, which is a partial one, and the old file loses its name. A crash in between costs space and never
a wrong byte.

A partial blob gets holes, in two steps. First the chunks are believed no longer, on disk and then in memory: where
the disk refuses, nothing has changed. Then their space is punched out of the file, as soon as nobody can still be
sending them: a request that was accepted before may read its bytes for minutes.
"""

import os
from collections.abc import Collection, Iterable, Iterator

from p2pcache.io.blobs.blob_file import BLOCK_BYTES, BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.chunk_writer import Writers
from p2pcache.io.blobs.proving import take_place
from p2pcache.io.blobs.reservation import check
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.host.file_users import held_by_anybody

AT_ONCE = 64  # chunks that are punched under one hold of the lock: milliseconds


def believe_no_longer(pool: BlobPool, blob: BlobFile, positions: Collection[int]) -> None:
    """Believe these positions no longer, before this returns; a published blob becomes a partial one in a new file.

    No tree may show the blob.

    Raises:
        NotFound: its file is gone, and nothing of it is believed any more.
        NoSpace: a published blob stays as it is, since what stays of it has no room beside it.
        NotAllowed, P2PCacheError: the disk refused.
    """
    with pool.maintenance, cache_errors(pool, f"{pool.root}/partial/{blob.id}"):
        if blob.published:
            _into_new_file(pool, blob, set(positions))
        else:
            with pool.lock:
                holders = pool.files.holders(blob.id)
                if blob.on_disk:
                    if blob.dirty:
                        # A moment after a flush: the bitmap must not be ahead of the data.
                        pool.disk.sync_data(pool.writer(blob).fd)
                    pool.write_bitmap(blob, *_without(blob, positions))
                blob.readers += holders
                _forget(blob, positions)
                pool.files.drop(blob.id)
        pool.disk.sync(pool.folders.partial)
        pool.disk.sync(pool.folders.blobs)


def _into_new_file(pool: BlobPool, blob: BlobFile, positions: Collection[int]) -> None:
    """Turn a published blob into a partial one without these positions. Without the lock: a copy takes seconds."""
    with pool.lock:
        file = pool.reader(blob, check=False)
        stay = [p for p, bit in enumerate(blob.bits) if bit and p not in positions]
    if not stay:
        with pool.lock:
            pool.delete_files(blob.id)
            pool.on_deleted(blob)
            pool.records.remove_proofs([blob.id])
            blob.reserved = False
        return
    name = f"kept-{blob.id}"
    try:
        _copy(pool, blob, file, stay, name)
        with pool.lock:
            if not blob.published:  # deleted behind our back meanwhile
                return
            pool.write_bitmap(blob, *_without(blob, positions))
            pool.records.remove_proofs([blob.id])
            pool.proofs.pop(blob.id, None)
            take_place(pool, blob, name)
            blob.reserved = False
            _forget(blob, positions)
    finally:
        pool.disk.unlink(pool.folders.tmp, name)  # where it took no place


def _copy(
    pool: BlobPool, blob: BlobFile, file: OpenFile, positions: Iterable[int], name: str
) -> None:
    """Copy these positions of a file to one in `tmp/`, durably."""
    positions = list(positions)
    check(pool, sum(map(blob.lengths.__getitem__, positions)), 0)
    fd = pool.disk.open_write(pool.folders.tmp, name, create=True)
    try:
        pool.disk.truncate(fd, blob.size)
        for first, last in _stretches(positions):
            start, end = blob.offsets[first], blob.offsets[last] + blob.lengths[last]
            pool.disk.copy_range(file.fd, start, fd, start, end - start)
        pool.disk.sync(fd)
    finally:
        os.close(fd)


def _without(blob: BlobFile, positions: Iterable[int]) -> tuple[bytearray, int]:
    """The bits as they will be, and the bytes that they believe."""
    bits = bytearray(blob.bits)
    for position in positions:
        bits[position] = 0
    return bits, sum(length for length, bit in zip(blob.lengths, bits, strict=True) if bit)


def _forget(blob: BlobFile, positions: Collection[int]) -> None:
    """Believe positions no longer in memory; the bitmap on disk says so already. Under the lock."""
    for position in positions:
        blob.clear_suspect(position)
    blob.lose(positions)
    blob.dirty = blob.dirty and not blob.on_disk


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
                return False  # a loader reads it, since it was shown while it arrived
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
            # A thread that hashes these bytes now must not believe them afterwards (`proving.prove_suspects`).
            for position in range(first, last + 1):
                blob.clear_suspect(position)
            end = blob.offsets[last] + blob.lengths[last]
            pool.disk.punch(file.fd, blob.offsets[first], end - blob.offsets[first])
    return done


def _unused(blob: BlobFile, writers: Writers, positions: Iterable[int]) -> bool:
    """Whether nobody writes these positions, and none that was once believed is to be proved by reading."""
    return not any(
        writers.writes(blob.lengths[p], blob.digest(p))
        or (blob.suspect is not None and blob.suspect[p] and not blob.hoped)
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
