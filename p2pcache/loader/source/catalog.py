"""The table of a model's tensors, read from a source that may still be arriving."""

import math
import numbers
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2pcache.errors import InvalidHeader, TimedOut, UsageError
from p2pcache.loader.format.header import LENGTH_BYTES, Header, TensorInfo, header_bytes, parse
from p2pcache.loader.format.index import find_index, likely_files, merge, parse_index, weight_files
from p2pcache.loader.source.base import Range, Source

MAX_ALL_HEADERS_BYTES = (
    256 << 20
)  # over all files; 91,000 tensors take 12 MB, and parsing ten times their text
_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a model holds."""

    tensors: dict[str, TensorInfo]  # in order of file and offset
    metadata: dict[str, str]  # of all files; of a name that stands twice, the first file's
    files: dict[str, int]  # path -> bytes, also those that hold no tensors


class Deadline:
    """The caller's own time limit."""

    def __init__(self, timeout_s: float | None, model: str) -> None:
        self._model = model
        self._timeout_s = timeout_s
        told: Any = timeout_s  # whatever somebody wrote
        number = isinstance(told, numbers.Real) and not math.isnan(told)
        if timeout_s is not None and not number:
            raise UsageError(f"timeout_s {timeout_s!r}: expected seconds, or None for no limit")
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self) -> None:
        """Nothing, while there is time.

        Raises:
            TimedOut: the time is up.
        """
        if self._ends is not None and time.monotonic() > self._ends:
            raise TimedOut(
                f"{self._model}: not all that was needed arrived within {self._timeout_s:g} s; "
                "load it again to go on from there"
            )

    def slice_s(self, most_s: float) -> float:
        """How long to block now."""
        if self._ends is None:
            return most_s
        return max(0.0, min(most_s, self._ends - time.monotonic()))


def open_catalog(source: Source, deadline: Deadline) -> Catalog:
    """Read index and headers, whichever comes first, before any weights.

    Raises:
        InvalidHeader: a file or the index breaks a rule of its format.
        NotFound: no safetensors file in it.
        TimedOut: the caller's time is up.
    """
    files = dict(source.files())
    index = find_index(files, source.name)
    weight_map = None
    if index is not None:
        # The headers come beside it: who waited for one after the other would wait twice behind
        # whatever the swarm is fetching meanwhile.
        likely = _firsts(sorted(likely_files(files)), files)
        data = fetch(source, [Range(index, 0, files[index]), *likely], deadline)[0]
        weight_map = parse_index(data, files, index)
    paths = weight_files(files, weight_map, source.name)
    firsts = _firsts(paths, files)
    lengths = [
        header_bytes(first, files[path], path)
        for path, first in zip(paths, fetch(source, firsts, deadline), strict=True)
    ]
    if sum(lengths) > MAX_ALL_HEADERS_BYTES:
        raise InvalidHeader(f"{source.name}: its headers claim {sum(lengths)} bytes; push it again")
    bodies = [
        Range(path, LENGTH_BYTES, LENGTH_BYTES + length)
        for path, length in zip(paths, lengths, strict=True)
    ]
    headers: dict[str, Header] = {
        path: parse(data, files[path], path)
        for path, data in zip(paths, fetch(source, bodies, deadline), strict=True)
    }
    metadata: dict[str, str] = {}
    for header in headers.values():
        metadata = header.metadata | metadata
    return Catalog(merge(headers, weight_map, source.name), metadata, files)


def _firsts(paths: Sequence[str], files: Mapping[str, int]) -> list[Range]:
    """The bytes that say how long each file's header is."""
    return [Range(path, 0, min(LENGTH_BYTES, files[path])) for path in paths]


def fetch(source: Source, ranges: Sequence[Range], deadline: Deadline) -> list[bytes]:
    """Small byte ranges, read as they arrive.

    Raises:
        TimedOut: the caller's time is up.
        IntegrityError: a file is shorter than the source said.
    """
    found: list[bytes] = [b""] * len(ranges)
    pending = [i for i, r in enumerate(ranges) if r.end > r.start]
    while pending:
        there = [i for i in pending if source.available(*ranges[i])]
        if not there:
            deadline.check()
            source.wait([ranges[i] for i in pending], deadline.slice_s(_WAIT_S))
        for i in there:
            path, start, end = ranges[i]
            data = bytearray(end - start)
            source.read(path, start, [memoryview(data)])
            found[i] = bytes(data)
            pending.remove(i)
    return found
