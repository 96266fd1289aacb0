"""Reading parts of files for their proof."""

import os
import threading

from blake3 import blake3

SLICE_BYTES = 1 << 20  # as quick as whole chunks, a bounded buffer per thread
_local = threading.local()


def hash_region(fd: int, offset: int, length: int, hasher: blake3) -> blake3:
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
