"""The body of one ranged read from S3, read straight from the HTTP response into the caller's buffer."""

import http.client
from collections.abc import Callable
from typing import Any

from p2pcache.errors import OriginUnavailable, P2PCacheError
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.s3.errors import FOREIGN


class S3Body(Body):
    """Reads the HTTP response's own buffer; a body read to its end gives the connection back."""

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
        self._left = length
        self._counted = counted
        self._raw = raw
        # urllib3's own readinto reads into bytes and copies them: twice the memory traffic
        below = getattr(self._raw, "_fp", None)
        self._source = below if isinstance(below, http.client.HTTPResponse) else self._raw

    def readinto(self, buffer: memoryview) -> int:
        """See `Body`."""
        if not self._left:
            return 0
        try:
            count = _read_some(self._source, buffer[: self._left])
        except FOREIGN as error:
            raise self._translate(error) from None
        if not count:
            raise OriginUnavailable(f"{self._url}: the body ended {self._left} bytes early")
        self._left -= count
        return count

    def close(self) -> None:
        """See `Body`."""
        # The rest of the body, or the end mark of one without a length, may still be on its way. Then
        # no other request can use the connection.
        if self._left or not self._counted:
            self._raw.close()
        else:
            self._raw.release_conn()


def _read_some(source: Any, buffer: memoryview) -> int:
    """Read the bytes that have come, up to the buffer's length.

    `HTTPResponse.readinto` goes on until the buffer is full. When the connection breaks before that,
    the bytes that had come are lost with the exception, and are read from the origin a second time.
    """
    plain = isinstance(source, http.client.HTTPResponse) and not source.chunked
    if not plain or source.length is None or source.fp is None:
        return int(source.readinto(buffer))
    count = source.fp.readinto1(buffer[: source.length])
    source.length -= count
    if not count or not source.length:
        source.readinto(buffer[:0])  # it notices its end, and frees the connection
    return int(count)
