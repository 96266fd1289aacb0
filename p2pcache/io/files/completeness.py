"""Signs that a directory isn't a whole model: a download that ended early, or pointers in the place of files."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from p2pcache.core.format.chunking import safetensors_header_bytes, safetensors_starts
from p2pcache.io.disk.disk import disk_errors

MAX_INDEX_BYTES = 100_000_000  # an index of 100,000 tensors takes about 10 MB
MAX_POINTER_BYTES = 1024  # Git LFS's own limit
_POINTER = b"version https://git-lfs.github.com/spec/"
_PARTS = (".incomplete", ".part", ".partial", ".crdownload", ".aria2")  # of downloads that go on
_SHARD = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.[^/]*)")


def signs_of_a_part(files: Mapping[str, Path]) -> list[str]:
    """What speaks against a whole model, each as one line that says what to do.

    Args:
        files: for each path of the model, the file that holds the bytes.

    Raises:
        NotFound, NotAllowed, P2PCacheError: a file can't be read.
    """
    found = [*_unfinished(files), *_shards(files)]
    for path, source in sorted(files.items()):
        with disk_errors(path):
            found += _inside(path, source, files)
    return list(dict.fromkeys(found))


def _unfinished(files: Mapping[str, Path]) -> Iterator[str]:
    for path in sorted(files):
        if path.endswith(_PARTS):
            yield f"{path} is a part of a download; let it end, or remove the file"


def _shards(files: Mapping[str, Path]) -> Iterator[str]:
    """Of shards that say their count, those that are missing."""
    series: dict[tuple[str, str, str], set[int]] = {}
    for path in files:
        if match := _SHARD.fullmatch(path):
            front, number, count, end = match.groups()
            series.setdefault((front, count, end), set()).add(int(number))
    for (front, count, end), numbers in sorted(series.items()):
        missing = int(count) - sum(1 <= n <= int(count) for n in numbers)
        if missing and 0 not in numbers:  # some count from 0
            first = next(n for n in range(1, int(count) + 1) if n not in numbers)
            yield _missing(f"{front}{first:05d}-of-{count}{end}", missing)


def _inside(path: str, source: Path, files: Mapping[str, Path]) -> Iterator[str]:
    name = PurePosixPath(path).name
    size = source.stat().st_size
    if (
        len(_POINTER) < size <= MAX_POINTER_BYTES
        and _first_bytes(source, len(_POINTER)) == _POINTER
    ):
        yield f"{path} is Git LFS's pointer to a file, not the file; run 'git lfs pull' there"
    elif name.endswith(".index.json") and size <= MAX_INDEX_BYTES:
        yield from _named_by_index(path, source, files)
    elif name.endswith(".safetensors") and not _whole_tensors(source, size):
        yield f"{path} isn't a whole safetensors file: it is cut off or damaged; fetch it again"


def _named_by_index(path: str, source: Path, files: Mapping[str, Path]) -> Iterator[str]:
    try:
        table = json.loads(source.read_bytes())
        named = {str(name) for name in table["weight_map"].values()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return  # an index of something else
    folder = PurePosixPath(path).parent
    missing = sorted(str(folder / name) for name in named if str(folder / name) not in files)
    if missing:
        yield _missing(missing[0], len(missing))


def _missing(first: str, count: int) -> str:
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"{first[:200]} is missing{more}: other files name it; fetch the whole model"


def _whole_tensors(source: Path, size: int) -> bool:
    length = safetensors_header_bytes(_first_bytes(source, 8), size)
    if length is None:
        return False
    if 8 + length == size:  # it may hold no tensor
        return True
    return bool(safetensors_starts(_first_bytes(source, 8 + length)[8:], size))


def _first_bytes(source: Path, count: int) -> bytes:
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(count)
