"""The body of one ranged read from S3, read straight from the connection into the caller's buffer."""

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Callable
from typing import Any

from p2pcache.errors import OriginUnavailable, P2PCacheError
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.s3.errors import FOREIGN

# A thread is woken for as many bytes as come in WAKE_S, at most. Fewer bytes cost more processor time, and until then
# a cancel isn't heeded.
WAKE_S = 0.05
WAKE_BYTES = 256 * 1024


class S3Body(Body):
    """Reads past the HTTP response's own buffer; a body read to its end gives the connection back."""

    def __init__(
        self,
        url: str,
        raw: Any,
        length: int,
        translate: Callable[[Exception], P2PCacheError],
        *,
        counted: bool,
    ) -> None:
        """Nothing is read yet.

        Args:
            url: of the object, for messages.
            raw: urllib3's response.
            length: bytes of the range.
            translate: the error of our tree for one of `FOREIGN`.
            counted: the answer tells its body's length.
        """
        self._url = url
        self._translate = translate
        self._left = self._length = length
        self._counted = counted
        self._raw = raw
        # urllib3's own readinto reads into bytes and copies them: twice the memory traffic
        below = getattr(self._raw, "_fp", None)
        self._source = below if isinstance(below, http.client.HTTPResponse) else self._raw
        found = getattr(getattr(raw, "connection", None), "sock", None)
        self._socket = found if isinstance(found, socket.socket) else None
        self._direct = False  # the response's own buffer is empty
        self._lowat = 1  # SO_RCVLOWAT as set now
        self._began, self._first = 0.0, 0  # when the first bytes had come, and how many those were

    def readinto(self, buffer: memoryview) -> int:
        """See `Body`."""
        if not self._left:
            return 0
        try:
            count = self._read_some(buffer[: self._left])
        except FOREIGN as error:
            raise self._translate(error) from None
        if not count:
            raise OriginUnavailable(f"{self._url}: the body ended {self._left} bytes early")
        self._left -= count
        return count

    def close(self) -> None:
        """See `Body`."""
        self._wake_for(1)  # the head of the next answer is shorter
        # The rest of the body, or the end mark of one without a length, may still be on its way. Then
        # no other request can use the connection.
        if self._left or not self._counted:
            self._raw.close()
        else:
            self._raw.release_conn()

    def _read_some(self, buffer: memoryview) -> int:
        """Read the bytes that have come, up to the buffer's length.

        `HTTPResponse.readinto` goes on until the buffer is full. When the connection breaks before that,
        the bytes that had come are lost with the exception, and are read from the origin a second time.
        """
        source = self._source
        plain = isinstance(source, http.client.HTTPResponse) and not source.chunked
        if not plain or source.length is None or source.fp is None:
            return int(source.readinto(buffer))
        view = buffer[: source.length]
        if self._direct and self._socket is not None:
            count = self._receive(self._socket, view)
        else:
            count = source.fp.readinto1(view)
            # One read that is larger than the response's buffer empties it, or goes past it.
            self._direct = self._socket is not None and len(view) > io.DEFAULT_BUFFER_SIZE
            self._began, self._first = time.monotonic(), count
        source.length -= count
        if not count or not source.length:
            source.readinto(view[:0])  # it notices its end, and frees the connection
        return int(count)

    def _receive(self, sock: socket.socket, view: memoryview) -> int:
        came, seconds = self._length - self._left - self._first, time.monotonic() - self._began
        # Never more than came so far: the first gust says little of what follows.
        due = came if seconds < WAKE_S else int(came * WAKE_S / seconds)
        self._wake_for(max(1, min(due, len(view), WAKE_BYTES)))
        try:
            return sock.recv_into(view)
        except TimeoutError:
            self._wake_for(1)
            return _receive_rest(sock, view)

    def _wake_for(self, least: int) -> None:
        """Wait for so many bytes from now on, or the connection's end. TLS hides how many bytes are ours."""
        if least != self._lowat and type(self._socket) is socket.socket:
            self._lowat = least
            with contextlib.suppress(OSError):  # it is closed
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


def _receive_rest(sock: socket.socket, view: memoryview) -> int:
    """Receive what came within the time limit, fewer bytes than were waited for.

    Raises:
        TimeoutError: nothing did.
    """
    limit_s = sock.gettimeout()
    sock.settimeout(0)
    try:
        return sock.recv_into(view)
    except BlockingIOError:
        raise TimeoutError from None
    finally:
        sock.settimeout(limit_s)
