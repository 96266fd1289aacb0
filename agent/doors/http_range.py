"""The `Range` header of doors: one range of bytes, as in RFC 9110, sections 13 and 14."""

import re
from collections.abc import Mapping

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def asked_range(request: Mapping[str, str], answer: Mapping[str, str]) -> str:
    """The `Range` header that counts: "" where `If-Range` says that the client has a part of another file.

    Args:
        request: headers of the request.
        answer: headers of the answer, which name the file by `ETag` or `Last-Modified`.
    """
    condition = request.get("If-Range", "").strip()
    same = {answer.get("ETag"), answer.get("Last-Modified")}
    return request.get("Range", "") if not condition or condition in same else ""


def is_range(header: str) -> bool:
    """Whether a `Range` header asks for a part, be it all of the file: the answer is 206, as some clients insist."""
    return _understood(header) is not None


def wanted_bytes(header: str, size: int) -> tuple[int, int] | None:
    """The bytes [start, end) that a request wants.

    Args:
        header: of the request, "" without one. Several ranges, and what isn't understood, mean the whole file.
        size: of the file.

    Returns:
        The bytes; None: the file has no such bytes (416).
    """
    found = _understood(header)
    if found is None:
        return 0, size
    first, last = found
    if not first:  # the last so many bytes
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end) if start < end else None


def _understood(header: str) -> tuple[str, str] | None:
    """The first and the last byte as they are written; "": it is left out. None: no range that we understand."""
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None:
        return None
    first, last = match.groups()
    backwards = bool(first and last) and int(last) < int(first)
    return None if backwards or not first + last else (first, last)
