"""Reserving disk space before the first byte of a model comes."""

from collections.abc import Iterable

from p2pcache.core.units import format_bytes
from p2pcache.errors import NoSpace, P2PCacheError
from p2pcache.io.blobs.blob_file import BlobFile
from p2pcache.io.blobs.blob_pool import BlobPool
from p2pcache.io.disk.disk import MAKE_INODES, free_bytes, free_inodes, is_read_only
from p2pcache.io.disk.store_info import Usage

# Larger files get their blocks at once. Of smaller ones only the sum is reserved; each is allocated when its
# first byte comes.
EAGER_BYTES = 1 << 20


def reserve(
    blobs: BlobPool, wanted: list[BlobFile], min_free_bytes: int, quota_bytes: int = 0
) -> None:
    """Reserve disk space for the missing parts of these blobs, on top of earlier reservations.

    Args:
        blobs: of the cache.
        wanted: for which there must be space.
        min_free_bytes: left free on the disk.
        quota_bytes: of the cache; 0: none.

    Raises:
        NoSpace: it doesn't fit; the message has the bytes needed, free and reserved.
    """
    with blobs.maintenance, blobs.lock:
        fresh = [b for b in wanted if not b.reserved]
        check(blobs, sum(b.promise() for b in fresh), min_free_bytes, quota_bytes)
        _check_inodes(blobs, sum(not b.on_disk for b in fresh))
        made = []
        try:
            for blob in fresh:
                if blob.size > EAGER_BYTES:
                    if not blob.on_disk:
                        made.append(blob)
                    blobs.reserve(blob)
                blob.reserved = True
        except P2PCacheError:
            _undo(blobs, fresh, made)
            raise


def promised_bytes(blobs: BlobPool) -> int:
    """Bytes that are reserved, and not written yet."""
    return sum(b.promise() for b in blobs.known() if b.reserved)


def filled_bytes(blobs: BlobPool) -> int:
    """Bytes that count against a quota: blobs, and the whole files of reserved ones."""
    with blobs.lock:
        files = [b for b in blobs.known() if not b.published]
        coming = sum(
            (b.size if b.reserved else max(b.allocated, b.done_bytes)) - b.done_bytes for b in files
        )
        return blobs.cached_bytes() + coming


def usage(blobs: BlobPool) -> Usage:
    """Bytes of models on this disk, and what is free."""
    cached, free = blobs.cached_bytes(), free_bytes(blobs.root)
    inodes = free_inodes(blobs.root)
    # To try it makes an inode: a disk at rest is left alone until it has refused a write, and after it took one.
    tries = blobs.refused
    read_only = is_read_only(blobs.root, tries=tries)
    if tries and not read_only:
        blobs.refused = False
    return Usage(cached, free, promised_bytes(blobs), filled_bytes(blobs), inodes, read_only)


def check(blobs: BlobPool, needed_bytes: int, min_free_bytes: int, quota_bytes: int = 0) -> None:
    """Refuse bytes that don't fit beside earlier reservations, the space kept free, and the quota.

    Raises:
        NoSpace: it doesn't fit.
    """
    promised = promised_bytes(blobs)
    free = free_bytes(blobs.root)
    short = needed_bytes + promised + min_free_bytes - free
    over = filled_bytes(blobs) + needed_bytes - quota_bytes if quota_bytes else 0
    if needed_bytes and over > 0 and over >= short:
        raise NoSpace(
            f"the quota of {blobs.root} is {format_bytes(quota_bytes)} (cache_quota): {format_bytes(needed_bytes)} "
            f"more are {format_bytes(over)} too many; `p2pcache evict --dry-run` says what could go and what may not",
            coming_bytes=needed_bytes, short_bytes=over,
        )  # fmt: skip
    if needed_bytes and short > 0:
        least = format_bytes(min_free_bytes)
        kept = f", {least} are kept free (min_free_bytes)" if min_free_bytes else ""
        others = f", {format_bytes(promised)} are promised to other pulls" if promised else ""
        raise NoSpace(
            f"not enough space in {blobs.root}: {format_bytes(needed_bytes)} needed, {format_bytes(free)} free"
            f"{others}{kept}; make room with `p2pcache rm` or `p2pcache prune --all`, or choose another cache dir",
            coming_bytes=needed_bytes, short_bytes=short,
        )  # fmt: skip


def _check_inodes(blobs: BlobPool, files: int) -> None:
    free = free_inodes(blobs.root)
    if free is not None and files > free:
        raise NoSpace(
            f"{files} files don't fit into {blobs.root}: {free} left of its inodes; {MAKE_INODES}"
        )


def _undo(blobs: BlobPool, promised: Iterable[BlobFile], made: Iterable[BlobFile]) -> None:
    for blob in promised:
        blob.reserved = False
    for blob in made:
        blobs.delete_files(blob.id)
        blob.on_disk = blob.dirty = False
        blob.allocated = 0
