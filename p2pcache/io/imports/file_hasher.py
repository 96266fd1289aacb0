"""One file's chunks, hashed while its bytes come in order. The cuts are those of `index_directory`."""

import hashlib
from array import array

from blake3 import blake3

from p2pcache.core.format.chunking import (
    MiB,
    cut,
    safetensors_header_bytes,
    safetensors_starts,
)
from p2pcache.core.format.manifest import File
from p2pcache.errors import LocalProtocolError

MAX_HEADER_BYTES = 16 * MiB  # kept until it is whole; headers of the largest models have a few MiB
_FIRST_BYTES = 8  # of a safetensors file, which tell its header's length


class FileHasher:
    """The hashes of one file of a known size."""

    def __init__(self, path: str, size: int, *, sha256: bool) -> None:
        """Nothing is hashed yet.

        Args:
            path: inside the model; its ending decides how the file is cut.
            size: in bytes.
            sha256: compute the whole file's SHA-256, too.
        """
        self._path = path
        self._size = size
        self._sha256 = hashlib.sha256() if sha256 else None
        self._head: bytearray | None = bytearray() if path.endswith(".safetensors") else None
        self._lengths = array("I", cut(size) if self._head is None else ())
        self._digests = bytearray()
        self._number = 0  # of the chunk that is being hashed
        self._left = self._lengths[0] if self._lengths else 0
        self._hasher = blake3()
        self._seen = 0

    def update(self, data: memoryview) -> None:
        """Hash the next bytes of the file."""
        self._seen += len(data)
        if self._seen > self._size:
            raise LocalProtocolError(f"more than {self._size} bytes of {self._path}")
        if self._sha256 is not None:
            self._sha256.update(data)
        if self._head is None:
            self._hash(data)
            return
        self._head += data
        lengths = self._cuts(self._head)
        if lengths is not None:
            head, self._head = self._head, None
            self._lengths = array("I", lengths)
            self._left = self._lengths[0] if self._lengths else 0
            self._hash(memoryview(head))

    def file(self) -> File:
        """The file as a manifest lists it, once all its bytes are hashed."""
        if self._seen != self._size:
            raise LocalProtocolError(f"{self._seen} of {self._size} bytes of {self._path}")
        sha256 = b"" if self._sha256 is None else self._sha256.digest()
        return File(self._path, self._size, self._lengths, bytes(self._digests), sha256)

    def _cuts(self, head: bytearray) -> list[int] | None:
        """Chunk lengths as the header wants them; None: more of it must come first."""
        if len(head) < min(_FIRST_BYTES, self._size):
            return None
        length = safetensors_header_bytes(bytes(head[:_FIRST_BYTES]), self._size)
        if length is None or length > MAX_HEADER_BYTES:
            return cut(self._size)
        if len(head) < _FIRST_BYTES + length:
            return None
        header = bytes(head[_FIRST_BYTES : _FIRST_BYTES + length])
        return cut(self._size, safetensors_starts(header, self._size))

    def _hash(self, data: memoryview) -> None:
        while data:
            piece = data[: self._left]
            self._hasher.update(piece)
            data = data[len(piece) :]
            self._left -= len(piece)
            if not self._left:
                self._digests += self._hasher.digest()
                self._hasher = blake3()
                self._number += 1
                more = self._number < len(self._lengths)
                self._left = self._lengths[self._number] if more else 0
