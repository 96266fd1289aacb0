"""Sizes, rates and durations as people write them, both ways.

size       512, 10GiB, 10Gi, 1.5GB, 64k     bytes; k M G T are powers of 1000, Ki Mi .. of 1024
part       80%, or a size               bytes of a whole
rate       100MiB/s, 1.5GB, 200mbit, 25gbit bytes per second; *bit is bits per second
duration   30, 30s, 250ms, 5m, 2h, 7d       seconds
"""

import re
from decimal import Decimal

from p2pcache.errors import UsageError

_NUMBER = r"(?P<number>[0-9]{1,20}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kmgt]?)(?P<binary>i?)(?P<unit>b?)", re.IGNORECASE)
_BITS = re.compile(rf"{_NUMBER}\s*(?P<prefix>[kmgt]?)bit(?:/s)?", re.IGNORECASE)
_DURATION = re.compile(rf"{_NUMBER}\s*(?P<unit>ms|s|m|h|d|)")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"": "1", "s": "1", "ms": "0.001", "m": "60", "h": "3600", "d": "86400"}
_LARGEST = 1 << 62  # fits a signed 64-bit integer everywhere below us


def parse_size(text: str) -> int:
    """Bytes of a size such as `10GiB`, `1.5GB` or `512`.

    Raises:
        UsageError: not a size, or beyond 4 EiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match["binary"] and not match["prefix"]):
        raise UsageError(f"not a size: {text!r}; expected for example 512, 10GiB or 1.5GB")
    step = 1024 if match["binary"] else 1000
    return _whole(text, Decimal(match["number"]) * step ** _POWER[match["prefix"].lower()])


def parse_part(text: str, whole: int) -> int:
    """Bytes of a size such as `500GiB`, or of a share of a whole such as `80%`.

    Raises:
        UsageError: neither, nothing at all, or more than all of it.
    """
    plain = text.strip()
    if not plain.endswith("%"):
        size = parse_size(plain)
    else:
        match = re.fullmatch(_NUMBER, plain[:-1].strip())
        if match is None or Decimal(match["number"]) > 100:
            raise UsageError(f"not a share: {text!r}; expected for example 80%")
        size = int(Decimal(match["number"]) * whole / 100)
    if not size:
        raise UsageError(f"{text!r} is nothing; expected for example 500GiB or 80%")
    return size


def parse_rate(text: str) -> int:
    """Bytes per second of a rate such as `100MiB/s`, `1.5GB` or `200mbit`.

    Raises:
        UsageError: not a rate. `mbps` is refused: some tools mean bits by it, some bytes.
    """
    plain = text.strip()
    bits = _BITS.fullmatch(plain)
    if bits is not None:
        return _whole(text, Decimal(bits["number"]) * 1000 ** _POWER[bits["prefix"].lower()] / 8)
    try:
        return parse_size(plain.removesuffix("/s"))
    except UsageError:
        raise UsageError(
            f"not a rate: {text!r}; expected for example 100MiB/s, 1.5GB/s or 200mbit"
        ) from None


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `30`, `250ms`, `5m` or `7d`.

    Raises:
        UsageError: not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"not a duration: {text!r}; expected for example 30, 250ms, 5m or 7d")
    return float(Decimal(match["number"]) * Decimal(_SECONDS[match["unit"]]))


def parse_lasting(text: str) -> float:
    """Seconds of a duration that isn't nothing: 0 has another meaning where it is passed on.

    Raises:
        UsageError: not a duration, or 0.
    """
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"{text!r} is over at once; expected for example 30, 5m or 7d")
    return seconds


def counted(count: object, word: str) -> str:
    """A number of things: "1 file", "2 files"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def format_bytes(count: float) -> str:
    """Three digits and a decimal unit: `0 B`, `999 B`, `1.50 GB`, `140 GB`."""
    value = float(count)
    units = ["TB", "GB", "MB", "kB", "B"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop()
    unit = units[-1]
    if unit == "B":
        return f"{value:.0f} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_duration(seconds: float) -> str:
    """Two units at most: `0.4s`, `12s`, `3m05s`, `2h10m`, `4d3h`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def _whole(text: str, value: Decimal) -> int:
    if value > _LARGEST:
        raise UsageError(f"{text!r} is too large; the limit is 4 EiB")
    return int(value)
