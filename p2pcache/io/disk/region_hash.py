"""Hashing parts of files, to prove them."""

import errno
import logging
import os
import threading
from typing import Protocol, TypeVar

from blake3 import blake3

SLICE_BYTES = 1 << 20  # as quick as whole chunks, a bounded buffer per thread
OF_DISKS = (
    errno.EIO,
    errno.EUCLEAN,
    errno.ENODEV,
    errno.ENXIO,
)  # of failing disks, never of sockets
_local = threading.local()
_log = logging.getLogger(__name__)


class Hasher(Protocol):
    """BLAKE3's, or one of `hashlib`."""

    def update(self, data: memoryview, /) -> object:
        """Go on with these bytes."""


SomeHasher = TypeVar("SomeHasher", bound=Hasher)


def hash_region(fd: int, offset: int, length: int, hasher: SomeHasher) -> SomeHasher:
    """Feed a part of a file to a hasher, through one reused buffer per thread."""
    buffer: bytearray | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = bytearray(SLICE_BYTES)
    view = memoryview(buffer)
    done = 0
    while done < length:
        n = os.preadv(fd, [view[: min(SLICE_BYTES, length - done)]], offset + done)
        if n == 0:
            break  # shorter than it should be: the digest won't match
        hasher.update(view[:n])
        done += n
    return hasher


def proves(fd: int, offset: int, length: int, digest: bytes) -> bool:
    """Whether a part of a file has this BLAKE3 digest; False, with a warning, if the disk can't read it.

    Raises:
        OSError: reading failed for another reason than a failing disk.
    """
    try:
        return hash_region(fd, offset, length, blake3()).digest() == digest
    except OSError as error:
        if error.errno not in OF_DISKS:
            raise
        _log.warning("the cache's disk failed to read: %s (`dmesg` says more)", error.strerror)
        return False
