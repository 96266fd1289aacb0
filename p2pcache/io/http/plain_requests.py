"""Requests that our servers answer only with a refusal: packed bodies, and heads that aren't ASCII.

A packed body unpacks to a thousand times its size, and an unpacker is one more thing that a
stranger can break. A head with other bytes becomes text that can't be encoded again: every answer
and every line of the log that quotes it would fail. No client of ours sends either.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Refusal(NamedTuple):
    """Why a request is refused, and the HTTP status that says so."""

    status: int
    text: str


_NOT_ASCII = Refusal(
    400, "the request's path and headers must be ASCII; write other characters as %XX"
)
_PACKED = Refusal(415, "this server takes no packed bodies; send it without Content-Encoding")


def refusal(path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
    """Why a request isn't even looked at; None: it may go on.

    Args:
        path: the target as it was sent.
        headers: names and values as they were sent.
    """
    if not path.isascii():
        return _NOT_ASCII
    packed = False
    for name, value in headers:
        if not (name.isascii() and value.isascii()):
            return _NOT_ASCII
        packed = packed or (name.lower() == b"content-encoding" and not _plain(value))
    return _PACKED if packed else None


def _plain(value: bytes) -> bool:
    return all(coding.strip().lower() in (b"", b"identity") for coding in value.split(b","))
