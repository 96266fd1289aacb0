"""Whether the bytes of blobs are believed: proved by reading, doubted, taken back.

A proved chunk of a published blob rests on the blob's proof record. When its bytes turn out wrong the
blob is demoted: a copy of it becomes partial, and the bad chunks are mended there.
"""

import logging
import os
from collections.abc import Iterable

from p2pcache.errors import P2PCacheError
from p2pcache.io.blobs.blob_file import BlobFile, OpenFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.blobs.reservation import check
from p2pcache.io.disk.agent_db import proof_of
from p2pcache.io.disk.cache_dir import cache_errors
from p2pcache.io.disk.region_hash import proves
from p2pcache.io.disk.syscalls import is_hole

_log = logging.getLogger(__name__)


def recheck(pool: BlobPool, blob: BlobFile) -> None:
    """Compare a published file with its proof record; a file that was changed is believed no longer."""
    with pool.lock:
        if not blob.published or not blob.whole:
            return  # it is being proved already
        try:
            info = os.stat(blob.id, dir_fd=pool.folders.blobs, follow_symlinks=False)
            if pool.proofs.get(blob.id) == proof_of(blob.id, info):
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
    wrong = False
    for position in positions:
        with pool.lock:
            if blob.suspect is None or not blob.suspect[position]:
                continue
            file = pool.reader(blob, check=False)
        good = _proves(blob, position, file)
        with pool.lock:
            # A cleared flag means that a writer began meanwhile, or that the space was given back: the bytes that we
            # read may be there no more.
            if blob.clear_suspect(position):
                if good:
                    blob.gain([position])
                wrong = wrong or not good
    if blob.published and wrong:
        _log.warning(
            "blob %s was complete, and a part of it is wrong on disk: somebody changed the file, or the disk fails "
            "(look at `dmesg`); its model is incomplete until that part was fetched again", blob.id,
        )  # fmt: skip
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
    """Make a published blob partial again, in a new file, so that its bad chunks can be mended there.

    Who has the published file open or mapped keeps it as it is: it loses its name and is never written
    again. Trees that show it are removed first: a model's path is complete or absent. The proof record
    goes before the name, so a crash in between believes nothing. Where the disk has no room for a
    second file, or can't read the first, all of the blob comes anew.
    """
    with pool.maintenance, cache_errors(pool, f"{pool.root}/blobs/{blob.id}"):
        pool.before_demote(blob.id)
        name = f"mended-{blob.id}"
        try:
            with pool.lock:
                if not blob.published:
                    return
                pool.proofs.pop(blob.id, None)
                pool.records.remove_proofs([blob.id])
                file = pool.reader(blob, check=False)
            _copy(pool, blob, file, name)
            with pool.lock:
                _replace(pool, blob, name)
        except (OSError, P2PCacheError) as error:
            _log.warning(
                "no copy of the damaged blob %s (%s): all of it comes anew", blob.id, error
            )
            with pool.lock:
                _start_over(pool, blob, name)
        pool.disk.sync(pool.folders.partial)
        pool.disk.sync(pool.folders.blobs)


def _copy(pool: BlobPool, blob: BlobFile, file: OpenFile, name: str) -> None:
    """Copy a published file to `tmp/`, durably. Without the lock: a large one takes seconds."""
    check(pool, blob.size, 0)
    fd = pool.disk.open_write(pool.folders.tmp, name, create=True)
    try:
        pool.disk.truncate(fd, blob.size)
        found = min(os.fstat(file.fd).st_size, blob.size)
        pool.disk.copy_range(file.fd, 0, fd, 0, found)
        pool.disk.sync(fd)
    finally:
        os.close(fd)


def _replace(pool: BlobPool, blob: BlobFile, name: str) -> None:
    """Let the copy take the published file's place, as a partial one. Under the lock."""
    if not blob.published:  # deleted behind our back meanwhile
        pool.disk.unlink(pool.folders.tmp, name)
        return
    pool.write_bitmap(blob, blob.bits, blob.done_bytes)
    take_place(pool, blob, name)
    blob.dirty = True


def take_place(pool: BlobPool, blob: BlobFile, name: str) -> None:
    """Make a file in `tmp/` the partial blob in place of the published one. Its bitmap is written. Under the lock."""
    pool.disk.rename(pool.folders.tmp, name, pool.folders.partial, blob.id)
    pool.disk.unlink(pool.folders.blobs, blob.id)
    pool.on_demoted(blob)
    blob.allocated = os.fstat(pool.writer(blob).fd).st_blocks * 512


def _start_over(pool: BlobPool, blob: BlobFile, name: str) -> None:
    """Give up a published file. Nothing is believed of it, whatever the disk refuses. Under the lock."""
    pool.files.drop(blob.id)
    pool.on_deleted(blob)
    for folder, each in ((pool.folders.tmp, name), (pool.folders.partial, blob.id),
                         (pool.folders.blobs, blob.id)):  # fmt: skip
        pool.disk.unlink(folder, each)


def _proves(blob: BlobFile, position: int, file: OpenFile) -> bool:
    offset, length = blob.offsets[position], blob.lengths[position]
    if not blob.published and is_hole(file.fd, offset, length):
        return False  # never written
    return proves(file.fd, offset, length, blob.digest(position))


def _renew_proof(pool: BlobPool, blob: BlobFile) -> None:
    with pool.maintenance:
        with pool.lock:
            fd = pool.reader(blob, check=False).fd
            pool.disk.chmod(fd, 0o444)  # a crash may have left it as that of a partial one
            info = os.fstat(fd)
            if info.st_size == blob.size:
                proof = proof_of(blob.id, info)
                pool.records.add_proofs([proof])
                pool.proofs[blob.id] = proof
                return
        demote(pool, blob)
