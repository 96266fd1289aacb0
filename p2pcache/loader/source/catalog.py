"""The table of a model's tensors, read from a source that may still be arriving."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2pcache.errors import InvalidHeader
from p2pcache.loader.format.header import LENGTH_BYTES, Header, TensorInfo, header_bytes, parse
from p2pcache.loader.format.index import find_index, likely_files, merge, parse_index, weight_files
from p2pcache.loader.source.base import Range, Source
from p2pcache.loader.source.deadline import Deadline

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
