"""Just enough HTTP/1.1 to sit between an S3 client and its server: heads, bodies, both kinds of length."""

import socket
from collections.abc import Callable
from typing import NamedTuple

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024


class Closed(ConnectionError):
    """The other side ended the connection between two messages."""


class Head(NamedTuple):
    """The first line and headers of a message, and their bytes as they came."""

    raw: bytes
    first: list[str]  # the three words of the first line
    headers: dict[str, str]  # names in lower case

    @property
    def length(self) -> int:
        """Content-Length; 0 without one."""
        return int(self.headers.get("content-length", "0"))

    @property
    def chunked(self) -> bool:
        """Whether the body brings its own lengths."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()


class Wire:
    """One side's connection with its read buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def head(self) -> Head:
        """The next head.

        Raises:
            Closed: the connection ended where a message would begin.
            ConnectionError: it ended inside a head, or that is too long.
        """
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ConnectionError("head too long")
            data = self.sock.recv(PIECE_BYTES)
            if not data:
                raise Closed("closed") if not self._buffer else ConnectionError("closed in a head")
            self._buffer += data
        raw = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        words = first.split(" ", 2)
        return Head(raw, words, {name.lower(): value.strip() for name, _, value in pairs})

    def some(self, limit: int) -> bytes:
        """1 to `limit` bytes of a body.

        Raises:
            ConnectionError: the connection ended.
        """
        if not self._buffer:
            self._buffer += self.sock.recv(min(limit, PIECE_BYTES))
            if not self._buffer:
                raise ConnectionError("closed in a body")
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return data

    def line(self) -> bytes:
        """One line of a chunked body, its end included."""
        line = bytearray()
        while not line.endswith(b"\r\n"):
            line += self.some(1)
        return bytes(line)


def pass_body(source: Wire, head: Head, emit: Callable[[bytes], None]) -> None:
    """Pass on a body of either kind, byte for byte as on the wire."""
    if not head.chunked:
        left = head.length
        while left:
            data = source.some(min(left, PIECE_BYTES))
            left -= len(data)
            emit(data)
        return
    while True:
        size_line = source.line()
        emit(size_line)
        left = int(size_line.split(b";")[0], 16)
        if not left:
            while (line := source.line()) != b"\r\n":  # trailers
                emit(line)
            emit(b"\r\n")
            return
        left += 2  # its line end
        while left:
            data = source.some(min(left, PIECE_BYTES))
            left -= len(data)
            emit(data)
