"""Making progress durable: data first, then the bitmap of it, then the published name.

A crash at any point loses at most what came after the last flush, never consistency:
1. bits are read, then the data behind them is synced (one `syncfs` when many files changed);
2. bitmaps of unfinished blobs are replaced;
3. whole blobs get their proof record, then move from `partial/` to `blobs/`;
4. both directories are synced.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from p2pcache.io.blobs.blob_file import BlobFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.agent_db import proof_of
from p2pcache.io.disk.cache_dir import cache_errors

FEW_FILES = 16  # up to this number files are synced one by one; for more, one syncfs is cheaper
BATCH_FILES = 256  # renames under one hold of the lock: a few ms


class _Snapshot(NamedTuple):
    blob: BlobFile
    bits: bytearray
    done_bytes: int


def flush_blobs(blobs: BlobPool, candidates: Iterable[BlobFile]) -> None:
    """Make the proved chunks of these blobs durable, and publish the whole blobs.

    Raises:
        NoSpace, NotAllowed, P2PCacheError: the disk refused; nothing is lost, flush again.
    """
    with blobs.maintenance:
        taken = _take(blobs, candidates)
        if not taken:
            return
        try:
            with cache_errors(blobs, f"flush of {blobs.root}"):
                _sync(blobs, [s.blob for s in taken])
                done = []
                for snapshot in taken:
                    if 0 not in snapshot.bits:
                        done.append(snapshot.blob)
                    elif not _lost_any(blobs, snapshot):
                        blobs.write_bitmap(*snapshot)
                for i in range(0, len(done), BATCH_FILES):
                    _publish(blobs, done[i : i + BATCH_FILES])
                blobs.disk.sync(blobs.folders.partial)
                if done:
                    blobs.disk.sync(blobs.folders.blobs)
        except BaseException:
            with blobs.lock:
                for snapshot in taken:
                    snapshot.blob.dirty = not snapshot.blob.published
            raise


def _take(blobs: BlobPool, candidates: Iterable[BlobFile]) -> list[_Snapshot]:
    taken = []
    with blobs.lock, cache_errors(blobs, f"flush of {blobs.root}"):
        for blob in candidates:
            if not blob.dirty or blob.published:
                continue
            if not blob.on_disk:
                if not blob.whole:
                    continue
                blobs.writer(blob)  # an empty file has no chunk that would have created it
            blob.dirty = False
            taken.append(_Snapshot(blob, bytearray(blob.bits), blob.done_bytes))
    return taken


def _lost_any(blobs: BlobPool, snapshot: _Snapshot) -> bool:
    """Whether a bit of the snapshot was cleared meanwhile; then the next flush writes the bitmap."""
    with blobs.lock:
        now = int.from_bytes(snapshot.blob.bits, "little")
        return int.from_bytes(snapshot.bits, "little") & ~now != 0


def _sync(blobs: BlobPool, changed: list[BlobFile]) -> None:
    if len(changed) > FEW_FILES:
        blobs.disk.sync_all(blobs.folders.root)
        return
    for blob in changed:
        blobs.disk.sync(blobs.writer(blob).fd)


def _publish(blobs: BlobPool, whole: list[BlobFile]) -> None:
    proofs = []
    for blob in whole:
        file = blobs.writer(blob)
        blobs.disk.chmod(file.fd, 0o444)
        proofs.append(proof_of(blob.id, os.fstat(file.fd)))
    blobs.records.add_proofs(proofs)
    with blobs.lock:
        for blob, proof in zip(whole, proofs, strict=True):
            if not blob.whole:  # a check found a bad chunk meanwhile
                continue
            folders = blobs.folders
            blobs.disk.rename(folders.partial, blob.id, folders.blobs, blob.id)
            blobs.disk.unlink(folders.partial, f"{blob.id}.have")
            blobs.on_published(blob, proof)
