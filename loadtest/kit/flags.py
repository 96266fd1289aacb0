"""What flags of the load tests may be, told before minutes have gone into a run. For argparse's `type`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from p2pcache.core.units import parse_duration, parse_rate, parse_size
from p2pcache.errors import UsageError

LEAST_BYTES = 64 << 10  # of a model: room for its shards' headers


def count(text: str) -> int:
    """A number of things, at least one."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def share(text: str) -> float:
    """A part of a whole, 0 to 1."""
    if not 0 <= (part := float(text)) <= 1:
        raise argparse.ArgumentTypeError("between 0 and 1")
    return part


def out_file(text: str) -> Path:
    """A file that can be written when the run is over."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent}")
    return path


def rate(text: str) -> str:
    """A rate above 0, such as 50mbit; as it was written."""
    if not _read(parse_rate, text):
        raise argparse.ArgumentTypeError("more than 0")
    return text


def rates(text: str) -> str:
    """Rates above 0, separated by commas; as they were written."""
    for one in text.split(","):
        rate(one)
    return text


def duration(text: str) -> str:
    """A duration above 0, such as 250ms; as it was written."""
    if not _read(parse_duration, text):
        raise argparse.ArgumentTypeError("more than 0")
    return text


def size(text: str) -> str:
    """A size that a model can have, such as 128MiB; as it was written."""
    if _read(parse_size, text) < LEAST_BYTES:
        raise argparse.ArgumentTypeError("at least 64KiB")
    return text


def _read(parse: Callable[[str], float], text: str) -> float:
    try:
        return parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
