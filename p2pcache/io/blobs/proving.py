"""Whether the bytes of blobs are believed: proved by reading, doubted, taken back.

A proved chunk of a published blob rests on the blob's proof record. When its bytes turn out wrong the
blob is demoted: it becomes partial again, and its bad chunks are mended in place.
"""

import os
from collections.abc import Iterable

from p2pcache.io.blobs.blob_file import BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.agent_db import Proof
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.disk.region_hash import proves
from p2pcache.io.disk.syscalls import is_hole


def recheck(pool: BlobPool, blob: BlobFile) -> None:
    """Compare a published file with its proof record; a file that was changed is believed no longer."""
    with pool.lock:
        if not blob.published or not blob.whole:
            return  # it is being proved already
        try:
            info = os.stat(blob.id, dir_fd=pool.folders.blobs, follow_symlinks=False)
            if pool.proofs.get(blob.id) == Proof(info.st_size, info.st_mtime_ns):
                return
            blob.doubt()
        except FileNotFoundError:
            pool.on_deleted(blob)
        pool.files.drop(blob.id)


def doubt_unreadable(pool: BlobPool, blob: BlobFile) -> bool:
    """Believe nothing of a file that the disk failed to read; False: nothing was believed already."""
    with pool.lock:
        believed = any(blob.bits)
        if believed:
            blob.doubt()
            pool.files.drop(blob.id)
        return believed


def prove_suspects(pool: BlobPool, blob: BlobFile, positions: Iterable[int]) -> None:
    """Prove suspect positions by reading them; a published file with a bad one is demoted."""
    bad = False
    for position in positions:
        with pool.lock:
            if blob.suspect is None or not blob.suspect[position]:
                continue
            file = pool.reader(blob, check=False)
        good = _proves(blob, position, file)
        with pool.lock:
            # A cleared flag means that a writer began meanwhile: the bytes that we read may be old.
            if blob.clear_suspect(position):
                if good:
                    blob.gain([position])
                bad = bad or not good
    if blob.published and bad:
        demote(pool, blob)
    elif blob.published and blob.whole:
        _renew_proof(pool, blob)


def take_back(pool: BlobPool, blob: BlobFile, positions: Iterable[int]) -> None:
    """Believe these positions no longer, in memory and on disk, before this returns."""
    with pool.lock:
        blob.lose(positions)
    if blob.published:
        demote(pool, blob)
    else:
        with pool.maintenance:
            pool.write_bitmap(blob, blob.bits, blob.done_bytes)


def demote(pool: BlobPool, blob: BlobFile) -> None:
    """Make a published blob partial again, so that its bad chunks can be mended in place.

    Trees that show it are removed first: a model's path is complete or absent. The proof record
    goes before the file moves, so a crash in between believes nothing. Engines may go on reading
    the file: only proved bytes are written into it from here on, and it is never cut.
    """
    with pool.maintenance, cache_errors(pool, f"{pool.root}/blobs/{blob.id}"):
        pool.before_demote(blob.id)
        with pool.lock:
            if not blob.published:
                return
            pool.proofs.pop(blob.id, None)
            pool.records.remove_proofs([blob.id])
            file = pool.reader(blob, check=False)
            if os.fstat(file.fd).st_size > blob.size:
                _start_over(pool, blob)
                return
            pool.write_bitmap(blob, blob.bits, blob.done_bytes)
            pool.disk.chmod(file.fd, 0o644)  # loaders may have it in an arriving directory
            pool.disk.rename(pool.folders.blobs, blob.id, pool.folders.partial, blob.id)
            pool.on_demoted(blob)
            blob.allocated = os.fstat(file.fd).st_blocks * 512
            pool.disk.truncate(pool.writer(blob).fd, blob.size)
            blob.dirty = True
        pool.disk.sync(pool.folders.partial)
        pool.disk.sync(pool.folders.blobs)


def _start_over(pool: BlobPool, blob: BlobFile) -> None:
    """Give up a published file that was made longer: cutting it would harm readers that have it mapped."""
    pool.files.drop(blob.id)
    pool.disk.unlink(pool.folders.blobs, blob.id)
    pool.on_deleted(blob)


def _proves(blob: BlobFile, position: int, file: OpenFile) -> bool:
    offset, length = blob.offsets[position], blob.lengths[position]
    if not blob.published and is_hole(file.fd, offset, length):
        return False  # never written
    return proves(file.fd, offset, length, blob.digest(position))


def _renew_proof(pool: BlobPool, blob: BlobFile) -> None:
    with pool.maintenance, pool.lock:
        info = os.fstat(pool.reader(blob, check=False).fd)
        if info.st_size != blob.size:
            demote(pool, blob)
            return
        proof = Proof(info.st_size, info.st_mtime_ns)
        pool.records.add_proofs([(blob.id, proof)])
        pool.proofs[blob.id] = proof
