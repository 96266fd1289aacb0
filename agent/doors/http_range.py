"""The `Range` header of doors: one range of bytes, as in RFC 9110, section 14."""

import re

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def wanted_bytes(header: str, size: int) -> tuple[int, int] | None:
    """The bytes [start, end) that a request wants.

    Args:
        header: of the request, "" without one. Several ranges, and what isn't understood, mean the whole file.
        size: of the file.

    Returns:
        The bytes; None: the file has no such bytes (416).
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match.group(0) == "bytes=-":
        return 0, size
    first, last = match.groups()
    if not first:  # the last so many bytes
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return 0, size
    return (start, end) if start < end else None
