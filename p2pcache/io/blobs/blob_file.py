"""One blob's file on this node: its proved chunks, and open handles to it."""

import os
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

from p2pcache.core.format.manifest import File
from p2pcache.ids import DIGEST_BYTES

OPEN_FILES = 256  # well under the usual limit of 1024 fds a process; sockets need the rest
BLOCK_BYTES = 4096  # a file takes whole blocks; ten thousand one-byte files take 40 MB


class OpenFile:
    """An fd that is closed with its last reference.

    The cache, every `ChunkSource` and every writer refer to one. So an fd in use is never closed or
    reused, and idle ones don't pile up.
    """

    __slots__ = ("__weakref__", "fd", "writing")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        # Held while bytes are written. Linux lets one thread at a time write a file, and the others spin until it
        # is done: four of them took 0.7 CPU-s per GB for 0.2 at the same rate (docs/lab/0127-one-writer-of-a-file.md).
        self.writing = threading.Lock()

    def __del__(self) -> None:
        os.close(self.fd)


class ChunkSource(NamedTuple):
    """Where a proved chunk can be read, for `os.sendfile(sock, s.fd, s.offset, s.length)`.

    The fd is valid for as long as this object is held (`file` keeps it open).
    """

    fd: int
    offset: int
    length: int
    file: OpenFile


class Owner(Protocol):
    """A model that a blob belongs to (`model_chunks.ModelStore`). Called under the pool's lock."""

    def blob_gained(self, number: int, positions: Iterable[int]) -> None:
        """Positions of the owner's blob `number`, each once, are proved now and weren't before."""

    def blob_lost(self, number: int, positions: Iterable[int]) -> None:
        """Positions of the owner's blob `number`, each once, are proved no longer."""


class BlobFile:
    """State of one blob. All fields are guarded by the pool's lock.

    Positions count the blob's own chunk list. Invariants: `left` counts the zeros in `bits`, and
    `suspects_left` the flags in `suspect`;
    a set bit means that the chunk's bytes on disk matched their digest; a flag in `suspect` means
    that bytes lie there which this process hasn't proved, and that the position has no set bit
    and no writer; a published file is never written.
    """

    __slots__ = (
        "allocated", "bits", "digests", "dirty", "done_bytes", "hoped", "id", "left", "lengths", "made", "offsets",
        "on_disk", "owners", "published", "readers", "reserved", "size", "suspect", "suspects_left",
    )  # fmt: skip

    def __init__(self, blob_id: str, file: File) -> None:
        self.id = blob_id
        self.size = file.size
        self.lengths: array[int] = file.lengths
        self.digests = file.digests
        self.offsets: array[int] = array("Q", accumulate(file.lengths[:-1], initial=0))
        self.bits = bytearray(len(file.lengths))
        self.left = len(file.lengths)
        self.done_bytes = 0
        self.published = False
        self.on_disk = False
        self.made = 0  # how often the partial file was created; each is another inode
        self.allocated = 0  # bytes of disk that the file holds already
        self.reserved = False  # its missing space counts against other models
        self.suspect: bytearray | None = None
        self.suspects_left = 0
        self.hoped = False  # nobody has ever believed the suspects
        self.readers: list[ref[OpenFile]] = []  # may still send what was let go
        self.dirty = False  # the bitmap on disk is older than `bits`
        self.owners: list[tuple[Owner, int]] = []

    @property
    def whole(self) -> bool:
        """Whether every chunk is proved."""
        return self.left == 0

    def position(self, offset: int) -> int:
        """Position of the chunk that starts at a byte offset."""
        return bisect_right(self.offsets, offset) - 1

    def digest(self, position: int) -> bytes:
        """BLAKE3 digest of the chunk at a position."""
        return self.digests[position * DIGEST_BYTES : (position + 1) * DIGEST_BYTES]

    def set_bits(self, bits: bytearray) -> None:
        """Replace all bits by those of a bitmap."""
        self.bits = bits
        self.left = bits.count(0)
        self.done_bytes = sum(n for n, bit in zip(self.lengths, bits, strict=True) if bit)

    def set_all(self) -> None:
        """Mark every chunk as proved."""
        self.bits = bytearray(b"\x01") * len(self.lengths)
        self.left = 0
        self.done_bytes = self.size

    def gain(self, positions: Iterable[int]) -> None:
        """Mark positions as proved, and call the owners."""
        fresh = [p for p in dict.fromkeys(positions) if not self.bits[p]]
        for p in fresh:
            self.bits[p] = 1
            self.left -= 1
            self.done_bytes += self.lengths[p]
        self.dirty = True
        for owner, number in self.owners:
            owner.blob_gained(number, fresh)

    def lose(self, positions: Iterable[int]) -> None:
        """Mark positions as not proved, and call the owners."""
        gone = [p for p in dict.fromkeys(positions) if self.bits[p]]
        for p in gone:
            self.bits[p] = 0
            self.left += 1
            self.done_bytes -= self.lengths[p]
        self.dirty = True
        for owner, number in self.owners:
            owner.blob_lost(number, gone)

    def doubt(self) -> None:
        """Believe nothing of the file until it's proved again."""
        self.lose(range(len(self.bits)))
        self.suspect = bytearray(b"\x01") * len(self.bits)
        self.suspects_left, self.hoped = len(self.bits), False

    def hope_for(self, positions: Collection[int]) -> None:
        """Bytes lie at these positions of a file that was just found, and may be right."""
        flags = bytearray(len(self.bits))
        for position in positions:
            flags[position] = 1
        self.suspect, self.suspects_left = flags if positions else None, len(positions)
        self.hoped = True

    def suspects(self) -> list[int]:
        """Positions whose bytes are there but not proved."""
        if self.suspect is None:
            return []
        return [p for p, flag in enumerate(self.suspect) if flag]

    def clear_suspect(self, position: int) -> bool:
        """Clear a position's suspect flag; returns whether it was set."""
        if self.suspect is None or not self.suspect[position]:
            return False
        self.suspect[position] = 0
        self.suspects_left -= 1
        if not self.suspects_left:
            self.suspect = None
        return True

    def promise(self) -> int:
        """Bytes of disk that the file still needs to become whole."""
        if self.published:
            return 0
        rounded = -(-self.size // BLOCK_BYTES) * BLOCK_BYTES
        return max(0, rounded - max(self.allocated, self.done_bytes))


class FileCache:
    """The most recently used open files of blobs. Guarded by the pool's lock."""

    def __init__(self, capacity: int = OPEN_FILES) -> None:
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._live: WeakKeyDictionary[OpenFile, str] = WeakKeyDictionary()
        self._capacity = capacity

    def get(self, blob_id: str, opener: Callable[[], int]) -> OpenFile:
        """The blob's open file; `opener` opens it if it isn't cached."""
        file = self._files.get(blob_id)
        if file is not None:
            self._files.move_to_end(blob_id)
            return file
        file = self._files[blob_id] = OpenFile(opener())
        self._live[file] = blob_id
        if len(self._files) > self._capacity:
            self._files.popitem(last=False)
        return file

    def holders(self, blob_id: str) -> "list[ref[OpenFile]]":
        """The open files of a blob that somebody may be reading or writing now, outside of this cache too."""
        return [ref(file) for file, name in self._live.items() if name == blob_id]

    def drop(self, blob_id: str) -> None:
        """Forget a file; it's closed with its last reference."""
        self._files.pop(blob_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._files.clear()
